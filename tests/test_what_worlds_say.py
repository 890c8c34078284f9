"""What random worlds draw from: every member of every family, and every field, but for a few."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from pydantic import BaseModel
from world_making import draw_world

from specsim.acceptance import ACCEPTANCE
from specsim.autoscaling import AUTOSCALING
from specsim.core.families import Family
from specsim.engine.config import EngineConfig
from specsim.engine.incidents import Failure
from specsim.engine.transfer import OffloadConfig, TransferConfig
from specsim.hardware.kv_groups import KVLayers
from specsim.latency import LATENCY
from specsim.policies import POLICIES
from specsim.profile.costs import Overhead
from specsim.profile.profile import Profile
from specsim.proposers import PROPOSERS
from specsim.results.metrics import Slo
from specsim.routing import ROUTING
from specsim.run.experiment import Experiment, PoolConfig, PoolsConfig
from specsim.workload import WorkloadConfig
from specsim.workload.arrivals import ARRIVALS
from specsim.workload.lengths import LENGTHS

FAMILIES: tuple[Family[Any], ...] = (
    *(ACCEPTANCE, ARRIVALS, AUTOSCALING, LATENCY, LENGTHS, POLICIES, PROPOSERS, ROUTING),
)
HELD: dict[str, type[BaseModel]] = {
    **{"config": Experiment, "engine": EngineConfig, "workload": WorkloadConfig, "slo": Slo},
    **{"pools": PoolsConfig, "prefill": PoolConfig, "transfer": TransferConfig},
    **{"kv_offload": OffloadConfig, "kv_groups": KVLayers, "incidents": Failure},
    **{"profile": Profile, "overhead": Overhead},
}
"""Other settings, by the field that holds them."""
NOT_DRAWN = {
    "dataset": "lognormal lengths under names, which are too long for a quick world",
    **dict.fromkeys(
        (f"{method}.model" for method in PROPOSERS.members), "a name for the record, not read"
    ),
    "round_robin.refresh_ms": "refused: it looks at nothing",
    "random.refresh_ms": "refused: it looks at nothing",
    **{
        f"engine.{name}_parallel_size": "must be the profile's, and is it by default"
        for name in ("tensor", "pipeline", "decode_context")
    },
    "engine.kv_cache_memory_bytes": "another number of blocks, which all worlds have",
    "kernels.data_parallel_size": "the engine's",
    "kernels.enable_expert_parallel": "the engine's",
    "kernels.tensor_parallel_size": "the profile's",
    **{f"roofline.{field}": "the profile's" for field in ("model", "gpu", "tensor_parallel_size")},
    "roofline.is_mtp": "of a model that has such a layer, and none of theirs does",
    "profile.only_draft_lens": "refuses other runs, and changes none",
    **{
        f"{method}.num_speculative_tokens_per_batch_size": "refused: their policies know none"
        for method in ("draft_models", "hybrid")
    },
    **{
        f"{method}.enable_adaptive_verification": "refused: vLLM has it for heads and draft models"
        for method in PROPOSERS.members
        if method not in ("eagle", "eagle3", "mtp", "draft_model", "dflash", "dspark")
    },
    **{
        f"{method}.{field}": why
        for method in ("dflash", "dspark")
        for field, why in (
            ("parallel_drafting", "always so"),
            ("disable_mqa_scorer", "refused: vLLM V0 has no such drafter"),
            ("disable_lookahead_block_hashes", "their blocks look ahead in no version"),
        )
    },
    "ngram_gpu.disable_mqa_scorer": "refused: vLLM V0 has no such drafter",
}


def said(value: Any, name: str = "") -> Iterator[str]:
    """Yield the names of the kinds and of the fields in nested values."""
    if isinstance(value, list):
        for each in value:
            yield from said(each, name)
    elif isinstance(value, str):
        yield value.split(":")[0]  # a member, in short
    elif isinstance(value, dict):
        kind = str(value.get("kind", value.get("method", name)))
        yield kind
        for field, inner in value.items():
            yield from (f"{name}.{field}", f"{kind}.{field}")
            yield from said(inner, field)


@pytest.mark.slow
def test_worlds_say_all_that_a_yaml_can_say() -> None:
    drawn: set[str] = set()
    for number in range(6000):
        world = draw_world(Random(f"{number} 0"))
        drawn.update(said(world["config"], "config"), said(world["profile"], "profile"))
    kinds = [kind for family in FAMILIES for kind in family.members.items()]
    fields = {
        f"{name}.{field}"
        for name, model in [*kinds, *HELD.items()]
        if name not in NOT_DRAWN
        for field in model.model_fields.keys() - {"kind", "method"}
    }
    assert fields.union(name for name, _ in kinds) - drawn == NOT_DRAWN.keys()
