"""Intervals: how well a capacity is known from a few runs on either side of it.

Between two loads close together, the logarithm of the share of requests that miss a limit, and the
growth of the backlog, are taken to be lines over the logarithm of the load. Where the first of them
passes what is allowed is the capacity. The jackknife over replications turns that into an interval,
which is at least half as wide as the two loads are apart, for between them nothing was tried.

References:
    Tukey (1958), "Bias and confidence in not quite large samples"; Miller (1974), "The jackknife -
    a review", for pseudo-values and Student's t.
"""

from dataclasses import dataclass
from math import exp, inf, log

from specsim.study.capacity.probe import LoadProbe
from specsim.study.paired import mean_and_half_width

_UNKNOWN_BETWEEN = 1 / 4  # of the width of the bracket: so far at least the lines may be off
_REACH = 4  # times the width of the bracket: as far as the lines are believed beyond it


@dataclass(frozen=True)
class Interval:
    """A capacity, with its 95 % confidence interval."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width, as a share of the estimate."""
        return log(self.high / self.low) / 2

    def times(self, factor: float) -> "Interval":
        """Return the interval in another unit."""
        return Interval(self.estimate * factor, self.low * factor, self.high * factor)

    def around(self, load: float) -> "Interval":
        """Return the interval, made to hold a load that was confirmed."""
        return Interval(self.estimate, min(self.low, load), max(self.high, load))

    def moved_from(self, before: float, left: float) -> "Interval":
        """Return the interval, longer on the side to which the estimate has moved.

        Args:
            before: The estimate from shorter runs.
            left: What may be left of the movement, as a share of it.
        """
        moved = (self.estimate / before) ** left
        return Interval(self.estimate, self.low * min(1.0, moved), self.high * max(1.0, moved))


def interval_between(low: LoadProbe, high: LoadProbe, attainment: float) -> Interval | None:
    """Return where between a sustained load and one that is not the capacity lies.

    Args:
        low, high: Runs of the same seeds.
        attainment: Share of the requests that must keep all limits.

    Returns:
        None with a single replication, which says nothing about spread, and where `high` failed by
        nothing that can be told by how much.
    """
    slopes = _slopes(low, high, attainment)
    count = len(low.runs)
    if count < 2 or all(slope <= 0 for slope in slopes):
        return None
    whole = _root(low, high, attainment, slopes)
    others = (
        _root(low.without(number), high.without(number), attainment, slopes)
        for number in range(count)
    )
    _, half_width = mean_and_half_width([count * whole - (count - 1) * each for each in others])
    assert half_width is not None
    half_width = max(half_width, _UNKNOWN_BETWEEN * log(high.load / low.load))
    return Interval(exp(whole), exp(whole - half_width), exp(whole + half_width))


def _scores(probe: LoadProbe, attainment: float) -> tuple[float, float]:
    """Return by how much the limits, and a steady backlog, are missed; 0 is just allowed."""
    requests = sum(run.num_steady for run in probe.runs)
    least = 0.5 / max(requests, 1)  # of no request that was seen to miss, half a one is assumed
    allowed = max(1.0 - attainment, least)
    return log(max(1.0 - probe.attainment, least) / allowed), probe.trend.excess


def _slopes(low: LoadProbe, high: LoadProbe, attainment: float) -> tuple[float, ...]:
    """Return by how much each score rises from one load to the other; 0 if none is missed there."""
    pairs = zip(_scores(low, attainment), _scores(high, attainment), strict=True)
    return tuple(above - below if above > 0 else 0.0 for below, above in pairs)


def _root(low: LoadProbe, high: LoadProbe, attainment: float, slopes: tuple[float, ...]) -> float:
    """Return the logarithm of the load at which the first score passes 0."""
    middle, width = log(low.load * high.load) / 2, log(high.load / low.load)
    roots = [inf]
    for below, above, slope in zip(
        _scores(low, attainment), _scores(high, attainment), slopes, strict=True
    ):
        if slope > 0:
            roots.append(middle - (below + above) / 2 / slope * width)
    return min(max(min(roots), middle - _REACH * width), middle + _REACH * width)
