"""Search: the largest load that is sustained, by bracketing and bisection, and loads below it.

The searches are generators that yield a load and are sent its probe, so that many can run side by
side, and a closed form can replace the simulations of a `LoadProbe`. The first runs are short and
the search is coarse. Runs then become four times as long, again and again, and the search continues
around the last answer until it stops moving.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import log, sqrt

from specsim.study.capacity.choices import Goal
from specsim.study.capacity.probe import Interval, LoadProbe, interval_between

FILLS = 8
"""Requests of a run, in units of those that the server holds at once, so that it is full for most
of the run."""

_DOWN = 2.0
_UP = 1.25  # the start is near saturation, so one step up is mostly enough
_LOWEST = 1 / 64
_HIGHEST = 64.0
_COARSE = 0.05  # tolerance of the first search with its short runs
_LONGER = 4  # times the length of the runs before
_WIDEST = 1.5  # times the tolerance: largest half-width of a settled interval
_INSIDE = 1 / 8  # of the tolerance: how far below the estimate the answer is confirmed
_NEAR = 0.8  # of the capacity: above this share a server takes long to fill


@dataclass(frozen=True)
class Bracket:
    """The loads between which a server stops keeping its limits."""

    sustained: float | None
    """The largest load that was sustained; None if not even the lowest was."""
    exceeded: float | None
    """The smallest load that was not sustained; None if even the highest was."""


@dataclass(frozen=True)
class Asked:
    """A load to simulate."""

    load: float
    num_requests: int  # of each run


@dataclass(frozen=True)
class Answer:
    """The result of a search."""

    bracket: Bracket
    interval: Interval | None
    """Interval of the capacity, in units of the load; None if not known."""
    is_settled: bool  # whether the answer had stopped moving when the search ended
    num_requests: int  # of each of the last and longest runs
    probes: list[LoadProbe]  # of all loads, ascending; of each load the longest runs

    def at(self, load: float | None) -> LoadProbe | None:
        """Return the probe of a load; None if it was not simulated."""
        return next((probe for probe in self.probes if probe.load == load), None)


Search = Generator[Asked, LoadProbe, Answer]
Steps = Generator[Asked, LoadProbe, None]


def largest_sustained(
    start: float, tolerance: float, *, is_whole: bool = False, up: float = _UP, down: float = _DOWN
) -> Generator[float, bool, Bracket]:
    """Search for the largest sustained load: yield loads, and be sent whether each is sustained.

    Args:
        start: First load, best near saturation; the range is 1/64 to 64 times this load.
        tolerance: Ratio - 1 of the ends of the bracket at which to stop.
        is_whole: Whether loads are whole numbers of at least 1.
        up, down: Ratios of the steps while there is no bracket.
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
            load = max(load + step, _possible(load * up, is_whole))
            up = min(up**2, _UP)
            if load > start * _HIGHEST:
                return Bracket(low, None)
        elif low is None:
            load = min(load - step, _possible(load / down, is_whole))
            down = min(down**2, _DOWN)
            if load < max(step, start * _LOWEST):
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


class _Stage:
    """A search with runs of one length, and its results."""

    def __init__(self, goal: Goal, num_requests: int) -> None:
        self.num_requests = num_requests
        self.probes: dict[float, LoadProbe] = {}
        self.bracket = Bracket(None, None)
        self.interval: Interval | None = None
        self.answer: Interval | None = None
        """`interval`, widened by how far longer runs may still move it."""
        self.has_settled = False
        self.goal = goal

    def search(self, start: float, tolerance: float, up: float, down: float) -> Steps:
        search = largest_sustained(start, tolerance, is_whole=self.goal.is_closed, up=up, down=down)
        load = next(search)
        while True:
            if load not in self.probes:
                self.probes[load] = yield from self._tried(load)
            try:
                load = search.send(self.probes[load].is_sustained)
            except StopIteration as stop:
                self.bracket = stop.value
                break
        low, high = self.bracket.sustained, self.bracket.exceeded
        if low is not None and high is not None:
            self.interval = interval_between(self.probes[low], self.probes[high])
            self.answer = self.interval

    def _tried(self, load: float) -> Generator[Asked, LoadProbe, LoadProbe]:
        """Probe a load, with longer runs if it fails only because runs are too short."""
        probe = yield Asked(load, self.num_requests)
        longest = self.goal.max_requests or 0
        while probe.is_undecided and self.num_requests < longest:
            self.num_requests = min(longest, max(2 * self.num_requests, FILLS * probe.held))
            probe = yield Asked(load, self.num_requests)
        return probe

    def confirm(self) -> Steps:
        """Try loads just below the estimate until one is sustained, which narrows the bracket.

        The answer is a load that was simulated; otherwise it could lie below the estimate by the
        tolerance.
        """
        low, high, found = self.bracket.sustained, self.bracket.exceeded, self.interval
        inside = 1 + self.goal.tolerance * _INSIDE
        while low and high and found and not self.goal.is_closed:
            load = found.estimate / inside
            if not low * inside < load < high:
                return
            self.probes[load] = yield Asked(load, self.num_requests)
            if self.probes[load].is_sustained:
                self.bracket = Bracket(load, high)
                return
            high, self.bracket = load, Bracket(low, load)
            found = interval_between(self.probes[low], self.probes[high])

    @property
    def estimate(self) -> float | None:
        """The capacity; the largest sustained load if there is no interval."""
        return self.interval.estimate if self.interval else self.bracket.sustained

    @property
    def is_long(self) -> bool:
        """Whether runs have so many requests that the server was full for most of them."""
        return self.num_requests >= FILLS * max(probe.held for probe in self.probes.values())

    @property
    def is_stable(self) -> bool:
        """Whether the sustained load was stable: otherwise the server may still fill up."""
        low = self.bracket.sustained
        return low is not None and self.probes[low].stability == "stable"

    def is_settled(self, before: float) -> bool:
        """Whether the interval is narrow, and agrees with `before` from shorter runs."""
        if self.interval is None:
            return False
        moved = abs(log(self.interval.estimate / before))
        tolerance = self.goal.tolerance
        return moved <= tolerance and self.interval.half_width <= _WIDEST * tolerance


def explore(start: float, goal: Goal, num_requests: int) -> Search:
    """Search for the capacity of one replica, and simulate some loads below it.

    `start` is a load near saturation, `num_requests` the length of the first runs, or of all if it
    is fixed.
    """
    stage = _Stage(goal, num_requests)
    longer = [] if goal.is_rough else _growing(num_requests * _LONGER, goal.max_requests or 0)
    coarse = max(_COARSE, goal.tolerance) if longer else goal.tolerance
    yield from stage.search(start, coarse, _UP, _DOWN)
    if longer:
        stage = yield from _lengthened(stage, longer)
    return (yield from _looked_below(stage, num_requests))


def refine(
    near: float, goal: Goal, num_requests: int, is_enough: Callable[[Interval], bool]
) -> Search:
    """Search for a capacity near the answer of shorter runs.

    Args:
        num_requests: Requests of runs that are long enough to fill the server.
        is_enough: Whether an interval is narrow enough, so that runs need not grow.
    """
    longest = goal.max_requests or num_requests
    first = num_requests if num_requests <= longest / 2 else longest // _LONGER
    before = _Stage(goal, first // _LONGER)
    before.bracket = Bracket(near, None)
    lengths = _growing(first, longest)
    if lengths[-1] < longest / 2:
        lengths.append(longest)
    stage = yield from _lengthened(before, lengths, is_enough)
    return (yield from _looked_below(stage, goal.num_requests))


def _looked_below(stage: _Stage, num_requests: int) -> Search:
    sustained, probes, interval = stage.bracket.sustained, dict(stage.probes), stage.answer
    if interval is not None and sustained is not None:
        interval = interval.around(sustained)
    for load in stage.goal.looked_at(sustained) if sustained else ():
        if load not in probes:
            is_near = sustained is not None and load > _NEAR * sustained
            probes[load] = yield Asked(load, stage.num_requests if is_near else num_requests)
    rising = [probes[load] for load in sorted(probes)]
    return Answer(stage.bracket, interval, stage.has_settled, stage.num_requests, rising)


def _growing(first: int, longest: int) -> list[int]:
    """Return lengths of runs, each four times the one before, up to the longest."""
    lengths = []
    while first <= longest:
        lengths.append(first)
        first *= _LONGER
    return lengths


def _lengthened(
    stage: _Stage, lengths: list[int], is_enough: Callable[[Interval], bool] = lambda _: False
) -> Generator[Asked, LoadProbe, _Stage]:
    first, goal = stage, stage.goal
    for num_requests in lengths:
        before, is_first = stage.estimate, stage is first
        if stage.has_settled or not before:
            break
        ratio, stage = num_requests / stage.num_requests, _Stage(goal, num_requests)
        start, step = before * (1 - _INSIDE * goal.tolerance), 1 + goal.tolerance
        yield from stage.search(start, goal.tolerance, step, step)
        if stage.interval is not None:
            # the part of an error that remains, if it falls as runs get longer
            stage.answer = stage.interval.moved_from(before, 1 / (ratio - 1))
            is_known = stage.is_long and is_enough(stage.answer)
            if is_known:
                yield from stage.confirm()
                is_known = stage.is_stable
            stage.has_settled = is_known or (not is_first and stage.is_settled(before))
    yield from stage.confirm()
    return stage
