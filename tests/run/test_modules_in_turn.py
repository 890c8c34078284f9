"""Several MTP modules, which draft in turn: what they cost, keep, and refuse, as vLLM has them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specsim.core.errors import ConfigError
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate

Tiny = Callable[..., Experiment]
PASS = {"latency": {"kind": "linear", "alpha_ns": 0, "gamma_us": 10.0, "delta_ms": 0.5},
        "kv_bytes_per_token": 4096, "weights_gib": 0.25}  # fmt: skip


def spec(k: int, modules: int) -> dict[str, Any]:
    mtp = {"method": "mtp", "num_speculative_tokens": k, "num_nextn_predict_layers": modules}
    return {"speculative_config": mtp}


@pytest.mark.parametrize(("modules", "policy"), [(3, None), (2, None), (3, "goodput")])
def test_each_module_reads_the_step_whatever_is_drafted(
    modules: int, policy: Any, tiny: Tiny, constant_step: Callable[..., str]
) -> None:
    profile = constant_step(delta_ms=4.0, drafts={"mtp": PASS})
    run = tiny(engine=spec(4, modules), profile=profile, policy=policy)
    steps = simulate(run).replicas[0].steps
    tokens = steps["batched_tokens"]
    np.testing.assert_allclose(steps["draft_time"], 4 * (0.5e-3 + tokens * 10e-6), rtol=1e-9)
    assert len(set(tokens)) > 3


def test_each_module_has_weights_and_a_cache(tiny: Tiny, constant_step: Callable[..., str]) -> None:
    profile = constant_step(delta_ms=4.0, drafts={"mtp": PASS})
    one, three = (
        Deployment.of(tiny(engine=spec(3, modules), profile=profile, policy=None)).memory
        for modules in (1, 3)
    )
    assert three.draft_block_bytes == 3 * one.draft_block_bytes > 0
    assert three.draft_weight_bytes == 3 * one.draft_weight_bytes > 0


def test_no_piece_ends_just_before_the_end_of_its_prompt(
    tiny: Tiny, constant_step: Callable[..., str]
) -> None:
    """Prompts of 17 to 19 tokens in pieces of 16 leave 1 to 3, which four modules do not allow."""
    profile = constant_step(delta_ms=4.0, drafts={"mtp": PASS})
    ends = {}
    for modules in (1, 4):
        engine = {**spec(4, modules), "max_num_batched_tokens": 16, "max_num_seqs": 1}
        lengths = {"kind": "uniform", "prompt": [17, 19], "output": [4, 9]}
        workload = {"arrivals": {"kind": "burst"}, "num_requests": 30, "lengths": lengths}
        run = simulate(tiny(engine=engine, profile=profile, workload=workload, policy=None))
        steps = run.replicas[0].steps
        ends[modules] = set(steps["prefill_tokens"][steps["prefill_tokens"] > 0])
    assert 16 in ends[1]
    assert 16 not in ends[4]
    assert min(ends[4]) >= 4


@pytest.mark.parametrize(
    ("engine", "told"),
    [({"long_prefill_token_threshold": 2}, "a piece of it has room for 2"),
     ({"enable_prefix_caching": True, "block_size": 2}, r"engine\.block_size = 2"),
     ({"enable_prefix_caching": True, "vllm_version": "0.33",
       "kv_groups": [{"kind": "sliding_window", "window": 32, "layers": 2}]},
      "stops at an error of its own"),
     ({"enable_prefix_caching": True,
       "kv_groups": [{"kind": "state", "layers": 2}, {"kind": "full_attention", "layers": 2}]},
      "some prompts never end")],
)  # fmt: skip
def test_where_a_prompt_would_never_end_is_refused(
    engine: dict[str, Any], told: str, tiny: Tiny, constant_step: Callable[..., str]
) -> None:
    profile = constant_step(delta_ms=4.0, drafts={"mtp": PASS})
    run = tiny(engine={**spec(4, 3), **engine}, profile=profile, policy=None)
    with pytest.raises(ConfigError, match=told):
        assert Deployment.of(run).setup


def test_trees_are_refused(tiny: Tiny, constant_step: Callable[..., str]) -> None:
    profile = constant_step(delta_ms=4.0, drafts={"mtp": PASS})
    with pytest.raises(ConfigError, match="which several modules of method 'mtp' cannot"):
        tiny(engine=spec(4, 3), profile=profile, policy="eagle2_tree")
