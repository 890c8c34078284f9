"""Step times for Python, computed as the loops compute them, identical to the bit."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.desk import Desk, Floats, Ints, loop_on
from specsim.core.step import StepLoad
from specsim.decisions.loops import ROOMS
from specsim.latency import COEFFICIENTS
from specsim.profile import StepCosts
from specsim.profile.costs import Drafts, Lens, draft_load
from specsim.profile.step_time import (
    PRICING_SIZES,
    Pricing,
    put_len,
    put_lens,
    put_load,
    step_time_of,
)

_NONE = np.zeros(0, dtype=np.int64)
TimesOf = Callable[[StepLoad, Ints, Lens], NDArray[np.float64]]


class Timed(NamedTuple):
    """Steps that differ in their batched tokens alone, and their times."""

    tokens: Ints
    seconds: Floats
    lens: Ints  # draft length of each sequence, if they are not those of `pricing.load`
    sizes: Ints  # number of steps; number of `lens`
    pricing: Annotated[Any, Pricing]


@loop_on(Timed, *ROOMS)
def time_steps(timed: Timed) -> int:
    """Set `seconds` of the steps."""
    if timed.sizes[1]:
        put_lens(timed.pricing, timed.lens, timed.sizes[1])
    for index in range(timed.sizes[0]):
        tokens = timed.tokens[index]
        timed.seconds[index] = step_time_of(timed.pricing, tokens, timed.pricing.load[4])
    return 0


class StepTimes:
    """`StepCosts.step_times` by a compiled loop, identical to the bit.

    Args:
        pricing: The cost model as arrays.
    """

    def __init__(self, pricing: Desk[Pricing]) -> None:
        self.pricing = pricing
        self._desk: Desk[Timed] = Desk(Timed, time_steps, pricing=pricing, sizes=2)

    def __call__(self, load: StepLoad, batched_tokens: Ints, drafts: Drafts) -> NDArray[np.float64]:
        """Return the seconds of steps that differ in their batched tokens only, shape (n,)."""
        num, lens = len(batched_tokens), drafts if isinstance(drafts, np.ndarray) else _NONE
        desk = self._desk.fit(max(num, len(lens)))
        if not len(lens):
            made, rows = draft_load(load, drafts)
            desk.pricing.load[4:], desk.pricing.rows[: len(rows)] = made[4:], rows
        desk.pricing.load[:4], desk.lens[: len(lens)] = load[:4], lens
        desk.tokens[:num], desk.sizes[0], desk.sizes[1] = batched_tokens, num, len(lens)
        self._desk.runs[0]()
        return desk.seconds[:num].copy()

    def of_one(self, load: StepLoad, drafts: Drafts) -> float:
        """Return the seconds of one step."""
        return float(self(load, np.array([load.batched_tokens]), drafts)[0])


def quick_step_times(costs: StepCosts) -> TimesOf:
    """Return `costs.step_times`, compiled if its costs have a compiled form."""
    compiled = costs.compiled()
    if compiled.target is None or not compiled.drafts or costs.expands_batch:
        return costs.step_times
    given: dict[str, Any] = {**PRICING_SIZES, "target": compiled.target, "costs": compiled.numbers}
    if compiled.drafter is not None:
        given["drafter"] = compiled.drafter
    pricing: Desk[Pricing] = Desk(Pricing, **given)
    return StepTimes(pricing)


def quick_step_time(costs: StepCosts) -> Callable[[StepLoad, Drafts], float]:
    """Return `costs.step_time`, identical to the bit but faster where its costs allow.

    Linear forms are computed in Python, which is faster than to call a loop.
    """
    times = quick_step_times(costs)
    if not isinstance(times, StepTimes):
        return costs.step_time
    numbers: Any = times.pricing.fit(1)
    if numbers.target[0] != COEFFICIENTS or numbers.drafter[0] != COEFFICIENTS:
        return times.of_one
    listed: Any = Pricing(*(field.tolist() for field in numbers[:5]), *numbers[5:])

    def step_time(load: StepLoad, drafts: Drafts) -> float:
        if not isinstance(drafts, int):
            return times.of_one(load, drafts)
        put_load(listed, *load[:4])
        put_len(listed, drafts)
        return step_time_of(listed, load.batched_tokens, drafts)

    return step_time
