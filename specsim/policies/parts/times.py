"""What steps take, computed where it is used: inside the loops of policies."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import Hook
from specsim.core.desk import Desk
from specsim.core.policy_loops import Pricing
from specsim.core.step import Ints, StepLoad
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
from specsim.profile.step_time import COSTS, step_time_of

Lens = int | list[int] | Ints
TimesOf = Callable[[StepLoad, Ints, Lens], NDArray[np.float64]]

_NO_FORM, _NO_COSTS = np.zeros(7), np.zeros(len(COSTS))


def spending_desk(
    kind: type[Desk[Spending]] = Desk,
    target: NDArray[np.float64] = _NO_FORM,
    drafter: NDArray[np.float64] | None = None,
    costs: NDArray[np.float64] = _NO_COSTS,
) -> Desk[Spending]:
    """Return a desk to spend gains on, with what steps cost, if loops are to compute it."""
    return kind(
        Spending,
        *(best_budget, take_largest, time_steps, time_lens),
        target=target,
        drafter=_NO_FORM if drafter is None else drafter,
        costs=costs,
        ends=BUCKETS,
        extra=2,
        found=4,
        load=6,
        rows=256,
    )


class StepTimes:
    """`StepCosts.step_times`, the same to the bit, for costs that loops compute by themselves.

    Args:
        desk: From `spending_desk`, with those costs.
    """

    def __init__(self, desk: Desk[Spending]) -> None:
        self.desk = desk

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
            desk.rows[:longest] = load.num_requests
        desk.sizes[5], numbers = size, desk.load
        numbers[0], numbers[1], numbers[2], numbers[3] = load[:4]  # quicker than all at once
        numbers[4], numbers[5] = longest, drafted
        return desk

    def by_len(self, load: StepLoad, num_lens: int) -> list[float]:
        """Return the seconds of steps that draft and verify 0, 1, ... tokens per sequence."""
        num = load.num_requests
        desk = self.desk.fit(num_lens)
        desk.rows[:num_lens] = num
        desk.load[:] = (load.context_tokens, num, num, 0, 0, 0)
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
    return StepTimes(spending_desk(Desk, compiled.target, compiled.drafter, compiled.numbers))


class _Listed(NamedTuple):
    """What `step_time_of` looks at, for one step at a time without a loop."""

    target: Sequence[float]
    drafter: Sequence[float]
    costs: Sequence[float]
    load: list[int]
    rows: list[int]


def quick_step_time(costs: StepCosts) -> Callable[[StepLoad, Lens], float]:
    """Return `costs.step_time`, to the bit, from the numbers of its form if there is one.

    Linear forms are worked out here, which takes less than to call a loop.
    """
    times = quick_step_times(costs)
    if not isinstance(times, StepTimes):
        return costs.step_time
    desk = times.desk.fit(1)
    if desk.target[0] != COEFFICIENTS or desk.drafter[0] != COEFFICIENTS:
        return times.of_one
    load_numbers, rows = [0] * 6, [0] * 256
    forms = desk.target.tolist(), desk.drafter.tolist(), desk.costs.tolist()
    listed: Any = _Listed(forms[0], forms[1], forms[2], load_numbers, rows)

    def step_time(load: StepLoad, draft_lens: Lens) -> float:
        if not isinstance(draft_lens, int):
            return times.of_one(load, draft_lens)
        load_numbers[:4], load_numbers[5] = load[:4], draft_lens * load.num_requests
        rows[:draft_lens] = [load.num_requests] * draft_lens
        return step_time_of(listed, load.batched_tokens, draft_lens)

    return step_time


def pricing_of(
    step_times: TimesOf,
    step_time: Callable[[StepLoad, int], float],
    plain_time: Callable[[StepLoad], float] | None,
) -> Desk[Pricing]:
    """Return what steps take as loops see it: by numbers, or by asking these functions."""
    sizes: dict[str, Any] = {"load": 6, "rows": 256, "answer": 1}
    if isinstance(step_times, StepTimes) and plain_time is not None:
        known = step_times.desk.fit(1)
        forms = {"target": known.target, "drafter": known.drafter, "costs": known.costs}
        return Desk(Pricing, **sizes, **forms, asked=3)

    def ask() -> None:
        pricing = desk.arrays
        load = StepLoad(int(pricing.load[0]), int(pricing.asked[1]), *pricing.load[2:4].tolist())
        if pricing.asked[2] and plain_time is not None:
            pricing.answer[0] = plain_time(load)
        else:
            pricing.answer[0] = step_time(load, 0 if pricing.asked[2] else int(pricing.load[4]))

    desk: Desk[Pricing] = Desk(Pricing, **sizes, asked=np.array([1, 0, 0]), ask=Hook(ask))
    return desk
