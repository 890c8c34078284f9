"""What a step takes, as loops work it out: the engine's where it decides, and those of policies."""

from math import nan
from typing import Protocol

from specsim.core.compiled import inner, run
from specsim.core.desk import Floats, Ints
from specsim.core.policy_loops import Pricing
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


@inner
def priced(pricing: Pricing, batched_tokens: int, draft_len: int) -> float:
    """Return what the step in `load` takes that batches so much and drafts so long, seconds."""
    load = pricing.load
    load[4], load[5] = draft_len, draft_len * load[2]
    if pricing.asked[0]:
        return _told(pricing, batched_tokens, 0)
    for place in range(draft_len):
        pricing.rows[place] = load[2]
    return step_time_of(pricing, batched_tokens, draft_len)


@inner
def priced_plain(pricing: Pricing, batched_tokens: int) -> float:
    """Return what it takes where no drafter runs, not even to keep up with the target, seconds."""
    if pricing.asked[0]:
        return _told(pricing, batched_tokens, 1)
    return plain_time_of(pricing, batched_tokens)


@inner
def _told(pricing: Pricing, batched_tokens: int, is_plain: int) -> float:
    pricing.asked[1], pricing.asked[2] = batched_tokens, is_plain
    pricing.answer[0] = nan
    run(pricing.ask)
    return float(pricing.answer[0])


@inner
def put_load(pricing: Pricing, context: int, tokens: int, num: int, prefills: int) -> None:
    """Put down a step: context, batched tokens without drafts, sequences, and prefill tokens."""
    load = pricing.load
    load[0], load[1], load[2], load[3] = context, tokens, num, prefills
