"""Tables of one run say the same: what steps hand over is what requests got."""

from collections.abc import Callable
from typing import Any

import pytest

from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

TWO = {"replicas": 2}
FAILS = {"kind": "failure", "replica": 0, "at": 0.1, "until": 0.3}
WORLDS: dict[str, dict[str, Any]] = {
    "one": {},
    "off": {"policy": "off"},
    "preempted": {"engine": {"num_gpu_blocks": 40, "max_model_len": 512, "max_num_seqs": 16}},
    "fails": {**TWO, "incidents": [FAILS]},
    **{
        f"pools, {draft_kv}": {
            "pools": {"prefill": TWO, "decode": TWO, "transfer": {"draft_kv": draft_kv}}
        }
        for draft_kv in ("moved", "recomputed", "cold")
    },
    "pools, fails": {
        "pools": {"prefill": TWO, "decode": TWO},
        "incidents": [{**FAILS, "pool": "decode"}],
    },
}


@pytest.mark.parametrize("name", WORLDS)
def test_steps_and_requests_add_up_to_the_same(name: str, tiny: Callable[..., Experiment]) -> None:
    world = dict(WORLDS[name])
    base = tiny()
    if "engine" in world:
        speculation = {"speculative_config": base.engine.speculative_config}
        world["engine"] |= speculation
    summary = Summary(simulate(tiny(**world)))
    steps, requests = summary.tables.steps, summary.tables.requests
    for column in ("drafts", "draft_tokens", "accepted_tokens", "deliveries", "preemptions"):
        assert steps[column].sum() == requests[column].sum(), column
    assert steps["output_tokens"].sum() == requests["output_len"].sum()
    assert summary.data["total_output_tokens"] == requests["output_len"].sum()
    assert summary.data["specsim"]["tokens_per_step"] == pytest.approx(
        steps["output_tokens"].sum() / steps["deliveries"].sum()
    )
