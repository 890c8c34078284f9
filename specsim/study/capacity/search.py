"""Search: the largest load that is sustained, by bracketing and bisection, and loads below it.

A generator, which asks for a load and is sent whether that is sustained: so many searches can go on
side by side, and a closed form can stand for the simulations.
"""

from collections.abc import Generator
from dataclasses import dataclass
from math import sqrt

from specsim.study.capacity.choices import Goal
from specsim.study.capacity.load_probe import LoadProbe

SHARES = (0.25, 0.5, 0.75)
"""Of the capacity: where else latency and cost are looked at."""

_DOWN = 2.0
_UP = 1.25  # the start is near saturation, so that one step up is mostly enough
_LOWEST = 1 / 64
_HIGHEST = 64.0


@dataclass(frozen=True)
class Bracket:
    """Between which loads a server ceases to keep its limits."""

    sustained: float | None
    """The largest load that was seen to be sustained; None if even the lowest was not."""
    exceeded: float | None
    """The smallest that was seen not to be; None if even the highest was sustained."""


def largest_sustained(
    start: float, tolerance: float, *, is_whole: bool = False
) -> Generator[float, bool, Bracket]:
    """Search for the largest sustained load.

    Args:
        start: Where to begin, best near saturation; a 64th to 64 times of it are covered.
        tolerance: Ratio, less 1, of the two ends of the bracket at which to stop.
        is_whole: Whether loads are whole numbers of at least 1.

    Yields:
        A load to try; to be answered by whether it is sustained.
    """
    step = 1.0 if is_whole else 0.0
    load = start = _possible(start, is_whole)
    low: float | None = None
    high: float | None = None
    while low is None or high is None:
        if (yield load):
            low = load
        else:
            high = load
        if high is None:
            load = max(load + step, _possible(load * _UP, is_whole))
            if load > start * _HIGHEST:
                return Bracket(low, None)
        elif low is None:
            load = _possible(load / _DOWN, is_whole)
            if load == high or load < start * _LOWEST:
                return Bracket(None, high)
    while high / low > 1 + tolerance:
        middle = _possible(sqrt(low * high), is_whole)
        if not low < middle < high:
            break
        if (yield middle):
            low = middle
        else:
            high = middle
    return Bracket(low, high)


def _possible(load: float, is_whole: bool) -> float:
    return float(max(1, round(load))) if is_whole else load


def explore(
    start: float, goal: Goal
) -> Generator[float, LoadProbe, tuple[Bracket, list[LoadProbe]]]:
    """Look for the capacity of one replica, and at some loads below it.

    Args:
        start: A load near saturation.

    Yields:
        A load to try; to be answered by its probe.

    Returns:
        The bracket, and all loads that were tried, rising.
    """
    probes: dict[float, LoadProbe] = {}
    search = largest_sustained(start, goal.tolerance, is_whole=goal.is_closed)
    load = next(search)
    while True:
        probes[load] = yield load
        try:
            load = search.send(probes[load].is_sustained(goal.attainment))
        except StopIteration as stop:
            bracket: Bracket = stop.value
            break
    for share in SHARES if bracket.sustained else ():
        load = _possible(share * (bracket.sustained or 0.0), goal.is_closed)
        if load not in probes:
            probes[load] = yield load
    return bracket, [probes[load] for load in sorted(probes)]
