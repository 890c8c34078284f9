"""Search: the largest load that is sustained, by bracketing and bisection, and loads below it.

Generators, which ask for a load and are sent its probe: so many searches can go on side by side,
and a closed form can stand for the simulations of a `LoadProbe`.

Runs are made longer until the answer stops moving. The first are short and the search coarse; then
each time they are made four times as long, it begins where it ended before, and looks only around
that.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import log, sqrt

from specsim.study.capacity.choices import Goal
from specsim.study.capacity.probe import Interval, LoadProbe, interval_between

FILLS = 8
"""Times as many requests as the server holds at once are in runs of which it is full for most."""

_DOWN = 2.0
_UP = 1.25  # the start is near saturation, so that one step up is mostly enough
_LOWEST = 1 / 64
_HIGHEST = 64.0
_COARSE = 0.05  # tolerance of the first search, whose runs are short
_LONGER = 4  # times as long are the next runs
_WIDEST = 1.5  # times the tolerance: half the interval of an answer that has settled
_INSIDE = 1 / 8  # of the tolerance: so far below the estimate the answer is confirmed
_NEAR = 0.8  # of the capacity: from there on a server takes long to fill


@dataclass(frozen=True)
class Bracket:
    """Between which loads a server ceases to keep its limits."""

    sustained: float | None
    """The largest load that was seen to be sustained; None if even the lowest was not."""
    exceeded: float | None
    """The smallest that was seen not to be; None if even the highest was sustained."""


@dataclass(frozen=True)
class Asked:
    """A load to be tried."""

    load: float
    num_requests: int  # of each run


@dataclass(frozen=True)
class Answer:
    """What a search comes to."""

    bracket: Bracket
    interval: Interval | None
    """Of the capacity, in units of the load; None where nothing says how sure it is."""
    is_settled: bool  # whether the answer had stopped moving when the search ended
    num_requests: int  # of each of the last and longest runs
    probes: list[LoadProbe]  # of all loads that were tried, rising; of each the longest runs

    def at(self, load: float | None) -> LoadProbe | None:
        """Return the probe of a load; None if it was not tried."""
        return next((probe for probe in self.probes if probe.load == load), None)


Search = Generator[Asked, LoadProbe, Answer]
Steps = Generator[Asked, LoadProbe, None]


def largest_sustained(
    start: float, tolerance: float, *, is_whole: bool = False, up: float = _UP, down: float = _DOWN
) -> Generator[float, bool, Bracket]:
    """Search for the largest sustained load; answer each load by whether it is sustained.

    Args:
        start: Where to begin, best near saturation; a 64th to 64 times of it are covered.
        tolerance: Ratio, less 1, of the two ends of the bracket at which to stop.
        is_whole: Whether loads are whole numbers of at least 1.
        up, down: Ratios of the steps by which the bracket is looked for.
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
    """Runs of one length, and what they showed."""

    def __init__(self, goal: Goal, num_requests: int) -> None:
        self.num_requests = num_requests
        self.probes: dict[float, LoadProbe] = {}
        self.bracket = Bracket(None, None)
        self.interval: Interval | None = None
        self.answer: Interval | None = None
        """The same, as far as longer runs may still move it."""
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
        """Try a load, in longer runs if nothing is against it but that they end too soon."""
        probe = yield Asked(load, self.num_requests)
        longest = self.goal.max_requests or 0
        while probe.is_undecided and self.num_requests < longest:
            self.num_requests = min(longest, max(2 * self.num_requests, FILLS * probe.held))
            probe = yield Asked(load, self.num_requests)
        return probe

    def confirm(self) -> Steps:
        """Try loads just below the estimate until one is sustained, and narrow the bracket by them.

        What is said is a load that was tried, and so it would lie below its own estimate by up to
        the tolerance.
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
        """The capacity; the sustained load where nothing says more."""
        return self.interval.estimate if self.interval else self.bracket.sustained

    @property
    def is_long(self) -> bool:
        """Whether runs have so many requests that the server was full for most of them."""
        return self.num_requests >= FILLS * max(probe.held for probe in self.probes.values())

    @property
    def is_stable(self) -> bool:
        """Whether the load that was sustained is seen to be, for a server may go on to fill."""
        low = self.bracket.sustained
        return low is not None and self.probes[low].stability == "stable"

    def is_settled(self, before: float) -> bool:
        """Whether the capacity is known well enough, and agrees with that of shorter runs."""
        if self.interval is None:
            return False
        moved = abs(log(self.interval.estimate / before))
        tolerance = self.goal.tolerance
        return moved <= tolerance and self.interval.half_width <= _WIDEST * tolerance


def explore(start: float, goal: Goal, num_requests: int) -> Search:
    """Look for the capacity of one replica, and at some loads below it.

    Begin at a load near saturation; `num_requests` is of the first runs, or of all if it is fixed.
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
    """Look for a capacity that shorter runs have shown to be near.

    Args:
        num_requests: Of runs that are long enough to fill the server.
        is_enough: Whether an interval is as narrow as it has to be: then such runs grow no more.
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
    """Return the lengths of runs from the first on, each four times the one before."""
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
            # What is left of an error that falls with the length of the runs.
            stage.answer = stage.interval.moved_from(before, 1 / (ratio - 1))
            is_known = stage.is_long and is_enough(stage.answer)
            if is_known:
                yield from stage.confirm()
                is_known = stage.is_stable
            stage.has_settled = is_known or (not is_first and stage.is_settled(before))
    yield from stage.confirm()
    return stage
