"""What steps take, computed where it is used: inside the loops of policies."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from specsim.core.desk import Desk
from specsim.core.step import Ints, StepLoad
from specsim.core.trees import Tree
from specsim.latency import COEFFICIENTS
from specsim.policies.parts.spending import (
    BUCKETS,
    Spending,
    best_budget,
    take_largest,
    time_lens,
    time_steps,
)
from specsim.profile import StepCosts
from specsim.profile.costs import Drafts
from specsim.profile.step_time import PRICING_SIZES, Pricing, step_time_of

Lens = int | list[int] | Ints
TimesOf = Callable[[StepLoad, Ints, Lens], NDArray[np.float64]]


def spending_desk(
    kind: type[Desk[Any]] = Desk, pricing: Desk[Pricing] | None = None
) -> Desk[Spending]:
    """Return a desk to spend gains on, with what steps take, if loops are to compute it."""
    return kind(
        Spending,
        *(best_budget, take_largest, time_steps, time_lens),
        ends=BUCKETS,
        extra=2,
        found=4,
        pricing=kind(Pricing, **PRICING_SIZES) if pricing is None else pricing,
    )


class StepTimes:
    """`StepCosts.step_times`, the same to the bit, for costs that loops compute by themselves.

    Args:
        pricing: Those costs.
    """

    def __init__(self, pricing: Desk[Pricing]) -> None:
        self.pricing = pricing
        self.desk = spending_desk(Desk, pricing)

    def fit(self, num: int, load: StepLoad, draft_lens: Lens) -> Spending:
        """Return the desk with room for so many numbers and a step that is to be timed."""
        longest, drafted, size = 0, 0, 0
        if isinstance(draft_lens, int):
            longest, drafted = draft_lens, draft_lens * load.num_requests
        else:
            size = len(draft_lens)
        desk = self.desk.fit(max(num, size))
        if size:
            desk.counts[:size] = draft_lens
        elif longest:
            desk.pricing.rows[:longest] = load.num_requests
        desk.sizes[5], numbers = size, desk.pricing.load
        numbers[0], numbers[1], numbers[2], numbers[3] = load[:4]  # quicker than all at once
        numbers[4], numbers[5] = longest, drafted
        return desk

    def by_len(self, load: StepLoad, num_lens: int) -> list[float]:
        """Return the seconds of steps that draft and verify 0, 1, ... tokens per sequence."""
        num = load.num_requests
        desk = self.desk.fit(num_lens)
        desk.pricing.rows[:num_lens] = num
        desk.pricing.load[:] = (load.context_tokens, num, num, 0, 0, 0)
        desk.sizes[1] = num_lens
        self.desk.runs[3]()
        times: list[float] = desk.times[:num_lens].tolist()
        return times

    def __call__(
        self, load: StepLoad, batched_tokens: Ints, draft_lens: Lens
    ) -> NDArray[np.float64]:
        """Return what steps take that differ in their batched tokens only, seconds."""
        num = len(batched_tokens)
        desk = self.fit(num, load, draft_lens)
        desk.places[:num] = batched_tokens
        desk.sizes[1] = num
        self.desk.runs[2]()
        return desk.times[:num].copy()

    def of_one(self, load: StepLoad, draft_lens: Lens) -> float:
        """Return the seconds of one step."""
        desk = self.fit(1, load, draft_lens)
        desk.places[0], desk.sizes[1] = load.batched_tokens, 1
        self.desk.runs[2]()
        return float(desk.times[0])


def quick_step_times(costs: StepCosts) -> TimesOf:
    """Return `costs.step_times`, in a form that loops compute with if there is one."""
    compiled = costs.compiled()
    if compiled.target is None or not compiled.drafts or costs.expands_batch:
        return costs.step_times
    given: dict[str, Any] = {**PRICING_SIZES, "target": compiled.target, "costs": compiled.numbers}
    if compiled.drafter is not None:
        given["drafter"] = compiled.drafter
    pricing: Desk[Pricing] = Desk(Pricing, **given)
    return StepTimes(pricing)


def quick_step_time(costs: StepCosts) -> Callable[[StepLoad, Drafts], float]:
    """Return `costs.step_time`, to the bit, from the numbers of its form if there is one.

    Linear forms are worked out here, which takes less than to call a loop.
    """
    times = quick_step_times(costs)
    if not isinstance(times, StepTimes):
        return costs.step_time
    of_one = times.of_one

    def other_time(load: StepLoad, drafts: Drafts) -> float:
        if isinstance(drafts, Tree) or (isinstance(drafts, list) and Tree in map(type, drafts)):
            return costs.step_time(load, drafts)
        return of_one(load, cast(Lens, drafts))

    numbers = times.desk.fit(1).pricing
    if numbers.target[0] != COEFFICIENTS or numbers.drafter[0] != COEFFICIENTS:
        return other_time
    listed: Any = Pricing(*(field.tolist() for field in numbers[:5]), *numbers[5:])
    load_numbers, rows = listed.load, listed.rows

    def step_time(load: StepLoad, draft_lens: Drafts) -> float:
        if not isinstance(draft_lens, int):
            return other_time(load, draft_lens)
        load_numbers[:4], load_numbers[5] = load[:4], draft_lens * load.num_requests
        rows[:draft_lens] = [load.num_requests] * draft_lens
        return step_time_of(listed, load.batched_tokens, draft_lens)

    return step_time
