"""What steps take, computed where it is used: inside the loops of policies."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import Ints, StepLoad
from specsim.latency import COSTS
from specsim.policies._kernels import (
    BUCKETS,
    Desk,
    Spending,
    best_budget,
    blank,
    find_least,
    take_largest,
    time_lens,
    time_steps,
)
from specsim.profile import StepCosts

__all__ = ["Lens", "StepTimes", "TimesOf", "quick_step_times", "spending_desk"]

Lens = int | list[int] | Ints
TimesOf = Callable[[StepLoad, Ints, Lens], NDArray[np.float64]]
Costs = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]

_NO_FORM = np.zeros(7)


def spending_desk() -> Desk[Spending]:
    """Return a desk to spend gains on; what lasts there are the costs of steps, if any."""
    return Desk(_spending, best_budget, take_largest, find_least, time_steps, time_lens)


def _spending(room: int, costs: Costs | None) -> Spending:
    target, drafter, numbers = costs or (_NO_FORM, _NO_FORM, np.zeros(len(COSTS)))
    # One more: what is not kept is written down and overwritten.
    return blank(
        Spending,
        room + 1,
        ends=np.zeros(BUCKETS, dtype=np.int64),
        found=np.zeros(3),
        target=target,
        drafter=drafter,
        costs=numbers,
        load=np.zeros(6, dtype=np.int64),
        rows=np.zeros(256, dtype=np.int64),
    )


class StepTimes:
    """`StepCosts.step_times`, the same to the bit, for costs that loops compute by themselves.

    Args:
        costs: Forms of the target and of the drafter, and the numbers of `specsim.latency.COSTS`.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self.desk = spending_desk()

    def fit(self, num: int, load: StepLoad, draft_lens: Lens) -> Spending:
        """Return the desk with room for so many numbers and a step that is to be timed."""
        longest, drafted, size = 0, 0, 0
        if isinstance(draft_lens, int):
            longest, drafted = draft_lens, draft_lens * load.num_requests
        else:
            size = len(draft_lens)
        desk = self.desk.fit(max(num, size), self._costs)
        if size:
            desk.counts[:size] = draft_lens
        elif longest:
            desk.rows[:longest] = load.num_requests
        desk.sizes[5] = size
        desk.load[:] = *load[:4], longest, drafted
        return desk

    def by_len(self, load: StepLoad, num_lens: int) -> list[float]:
        """Return what steps take that draft and verify 0, 1, ... tokens of every sequence, seconds.

        The load is that of such a step without drafts and prefills.
        """
        num = load.num_requests
        desk = self.desk.fit(num_lens, self._costs)
        desk.rows[:num_lens] = num
        desk.load[:] = (load.context_tokens, num, num, 0, 0, 0)
        desk.sizes[1] = num_lens
        self.desk.runs[4]()
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
        self.desk.runs[3]()
        return desk.times[:num].copy()


def quick_step_times(costs: StepCosts) -> TimesOf:
    """Return `costs.step_times`, in a form that loops compute with if there is one."""
    compiled = costs.compiled()
    if compiled.target is None or not compiled.drafts or costs.expands_batch:
        return costs.step_times
    numbers = np.array([compiled.constants.get(name, 0.0) for name in COSTS])
    drafter = _NO_FORM if compiled.drafter is None else compiled.drafter
    return StepTimes((compiled.target, drafter, numbers))
