"""What a step takes, as loops work it out: the engine's where it decides, and those of policies."""

from typing import Protocol

from specsim.core.compiled import inner
from specsim.core.desk import Floats, Ints
from specsim.latency._form import (
    BASIS,
    HAS_DRAFTER,
    HAS_LATENCY,
    OVERHEAD_REQUEST,
    OVERHEAD_STEP,
    REQUEST,
    STEP,
    TARGET_SHARE,
    TOKEN,
    forward_time,
)


class Charged(Protocol):
    """Arrays among which there are these."""

    @property
    def target(self) -> Floats:
        """Form of the target's forward pass."""

    @property
    def drafter(self) -> Floats:
        """Form of the drafter's."""

    @property
    def costs(self) -> Floats:
        """What else a step costs, in the order of `specsim.latency.COSTS`."""

    @property
    def load(self) -> Ints:
        """Context, batched tokens without drafts, sequences and prefill tokens of a step.

        Then the longest draft that it makes, and tokens of all that it makes.
        """

    @property
    def rows(self) -> Ints:
        """Sequences that draft a first token, a second and so on."""


@inner
def plain_time_of(desk: Charged, batched_tokens: int) -> float:
    """Return what a step of so many tokens takes where no drafter runs, seconds."""
    costs, load = desk.costs, desk.load
    time: float = forward_time(desk.target, load[0], batched_tokens, load[2], load[3])
    time += costs[OVERHEAD_STEP] + costs[OVERHEAD_REQUEST] * load[2]
    return time


@inner
def step_time_of(desk: Charged, batched_tokens: int, longest: int) -> float:
    """Return what a step of so many tokens takes; to the bit as `StepCosts.step_time`."""
    costs, load = desk.costs, desk.load
    context_tokens, num, prefill_tokens = load[0], load[2], load[3]
    target_time = forward_time(desk.target, context_tokens, batched_tokens, num, prefill_tokens)
    total: float = target_time + (costs[OVERHEAD_STEP] + costs[OVERHEAD_REQUEST] * num)
    if not costs[HAS_DRAFTER]:
        return total
    draft_time: float = 0.0
    if longest:
        draft_time = costs[TARGET_SHARE] * target_time + costs[TOKEN] * load[5]
        draft_time = draft_time + costs[STEP] + costs[REQUEST] * num
    if not costs[HAS_LATENCY]:
        return total + draft_time
    # One call for all passes: it is copied to wherever it stands.
    num_passes = max(1, longest) if costs[BASIS] == 0.0 else min(1, longest)
    if costs[BASIS] == 2.0:
        context_tokens, batched_tokens, prefill_tokens = 0, num, 0
    for number in range(num_passes):
        if number:
            context_tokens += batched_tokens
            num = batched_tokens = desk.rows[number]
            prefill_tokens = 0
        draft_time += forward_time(
            desk.drafter, context_tokens, batched_tokens, num, prefill_tokens
        )
    return total + draft_time
