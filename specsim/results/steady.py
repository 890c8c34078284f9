"""Steady state: where a run's warm-up ends, and whether its backlog grows after it.

The warm-up is found by MSER-5 on the number of requests in the system that each arrival meets. The
backlog is the number of requests that wait for their first step: a server that is still filling up
has more and more of them running, but none that waits, so that filling up is not taken for growth.

References:
    White (1997), "An effective truncation heuristic for bias reduction in simulation output";
    White, Cobb, Spratt (2000), "A comparison of five steady-state truncation heuristics for
    simulation", for MSER-5.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.results.metrics import Requests

Floats = NDArray[np.float64]

_BATCH = 5  # values averaged before MSER looks at them
_PERIODS = 20  # of equal time, by whose increments growth is told
_CRITICAL = 2.539483190622288  # stdtrit(_PERIODS - 1, 0.99): 1 % of false alarms if nothing grows
_LEAST_GROWTH = 0.01
_MOST_CUT = 4  # at most a quarter: of a backlog that grows, MSER would cut as much as it may
_MIN_REQUESTS = 40


def warm_up_len(series: Floats) -> int:
    """Return how many values at the beginning of a series are warm-up, by MSER-5.

    The values are averaged by fives, and cut where the standard error of the mean of what is left
    is smallest, but at most half: then the series may be too short to be steady.
    """
    count = len(series) // _BATCH
    if count < 2:
        return 0
    means = series[: count * _BATCH].reshape(count, _BATCH).mean(axis=1)
    means = means - means.mean()  # so that sums of squares lose no digits
    left = np.arange(count, 0, -1)
    sums, squares = (np.cumsum(values[::-1])[::-1] for values in (means, means**2))
    errors = (squares - sums**2 / left) / left**2
    return int(np.argmin(errors[: count // 2 + 1])) * _BATCH


def arrival_order(requests: Requests) -> NDArray[np.int64]:
    """Return the places of the requests by rising arrival."""
    return np.argsort(requests["arrived_at"], kind="stable")


def warm_up_of(requests: Requests) -> int:
    """Return how many requests, in the order of arrival, belong to the warm-up of a run."""
    arrived_at = np.sort(requests["arrived_at"])
    ended = np.searchsorted(np.sort(requests["ended_at"]), arrived_at, side="right")
    return warm_up_len((np.arange(len(arrived_at)) - ended).astype(np.float64))


@dataclass(frozen=True)
class Trend:
    """By how much a backlog grows."""

    growth: float  # requests by which it grows per request that arrives; negative if it shrinks
    error: float  # standard error of `growth`

    @classmethod
    def pooled(cls, trends: "Sequence[Trend]") -> "Trend":
        """Return the mean of independent runs."""
        count = len(trends)
        errors = [trend.error for trend in trends]
        return cls(
            float(np.mean([trend.growth for trend in trends])),
            float(np.hypot.reduce(errors)) / count,
        )

    @property
    def excess(self) -> float:
        """By how much the growth exceeds what chance explains and what counts; negative if not."""
        return self.growth - max(_LEAST_GROWTH, _CRITICAL * self.error)

    @property
    def is_growing(self) -> bool:
        """Whether it grows by 1 % of the arrivals at least, beyond doubt."""
        return self.excess > 0


def backlog_trend(requests: Requests) -> Trend:
    """Return the trend of the requests that wait for their first step, after the warm-up.

    Time from the end of the warm-up, or the first quarter of the requests if that is shorter, to
    the last arrival is cut into 20 equal periods, and the mean of the 20 increments is held against
    its standard error. A server that just keeps up has increments that are independent of each
    other and whose mean is 0; where it has time to spare they cancel each other. So autocorrelation
    of the backlog makes the test milder, never rasher, which a line fitted through the backlog
    itself would not be.

    There is no growth of fewer than 40 requests, which prove nothing, or of all at one instant.
    """
    arrived_at = np.sort(requests["arrived_at"])
    count = len(arrived_at)
    if count < _MIN_REQUESTS or arrived_at[0] == arrived_at[-1]:
        return Trend(0.0, 0.0)
    first = min(warm_up_of(requests), count // _MOST_CUT)
    instants = np.linspace(arrived_at[first], arrived_at[-1], _PERIODS + 1)
    arrived = np.searchsorted(arrived_at, instants, side="right")
    begun = np.searchsorted(np.sort(requests["scheduled_at"]), instants, side="right")
    increments = np.diff(arrived - begun)
    per_request = _PERIODS / (count - first)
    error = increments.std(ddof=1) / np.sqrt(_PERIODS)
    return Trend(float(increments.mean()) * per_request, float(error) * per_request)


def is_unstable(requests: Requests) -> bool:
    """Return whether the backlog of a run kept growing while requests arrived.

    ``experiments/capacity-statistics`` has how often it says so of servers that keep up, and of
    servers that do not.
    """
    return backlog_trend(requests).is_growing
