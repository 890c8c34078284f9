"""A policy of one's own that trims: the step gets shorter by what it drops, however scheduled."""

from collections.abc import Callable
from typing import Any, Literal

import pytest

from specsim.api import BatchView, DraftView, Experiment, Policy, Summary, simulate
from specsim.core.errors import ConfigError
from specsim.policies import ServerView


class VerifyNothing(Policy):
    """Draft, and then verify none of it."""

    kind: Literal["verify_nothing"] = "verify_nothing"

    def draft_lens(self, batch: BatchView, memory: ServerView) -> int:
        return memory.max_draft_len

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: Any) -> list[int]:
        return [0] * batch.size


class HalfSure(VerifyNothing):
    """Stop drafting by confidence, without having asked for it."""

    @property
    def draft_threshold(self) -> float:
        return 0.5


def test_a_threshold_needs_confidences(tiny: Callable[..., Experiment]) -> None:
    with pytest.raises(ConfigError, match="must set uses_confidences"):
        tiny(policy=HalfSure())


@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_dropped_costs_nothing(
    is_async: bool, tiny: Callable[..., Experiment], constant_step: Callable[..., str]
) -> None:
    experiment = tiny(
        profile=constant_step(gamma_us=1000, drafts={"eagle3": {}}),
        workload={
            "arrivals": {"kind": "burst"},
            "lengths": {"kind": "constant", "prompt": 8, "output": 6},
            "num_requests": 1,
        },
    )
    engine = experiment.engine.model_copy(update={"async_scheduling": is_async})
    run = simulate(experiment.replace(engine=engine, policy=VerifyNothing()), check=True)
    steps = Summary(run).tables.steps
    decodes = steps[steps["prefill_tokens"] == 0]
    assert len(decodes) == 5
    assert (decodes["batched_tokens"] == 1).all()
    assert decodes["target_time"] == pytest.approx(1e-3)
    assert (decodes["draft_tokens"] == 0).all()
