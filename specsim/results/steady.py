"""Steady state: where a run's warm-up ends, and whether its server keeps up with what arrives.

The warm-up is found by MSER-5 on the number of requests in the system that each arrival meets.

References:
    White (1997), "An effective truncation heuristic for bias reduction in simulation output";
    White, Cobb, Spratt (2000), "A comparison of five steady-state truncation heuristics for
    simulation", for MSER-5.
"""

import numpy as np
from numpy.typing import NDArray

from specsim.results.metrics import Requests

Floats = NDArray[np.float64]

_BATCH = 5  # values averaged before MSER looks at them


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
