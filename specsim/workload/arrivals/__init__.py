"""Arrivals: when requests come."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.families import Family, Member

__all__ = ["ARRIVALS", "Arrivals", "OpenArrivals", "RenewalArrivals"]


class Arrivals(Member):
    """When requests come. Extend `OpenArrivals` or `RenewalArrivals`."""

    kind: str

    def expected_count(self, duration: float | None) -> float:
        """Return about how many requests come within a duration, seconds; 0 if nobody knows."""
        return 0.0


class OpenArrivals(Arrivals):
    """Requests that come whatever happens to those before them."""

    @abstractmethod
    def times(
        self, rng: np.random.Generator, *, count: int | None, duration: float | None
    ) -> NDArray[np.float64]:
        """Return the arrival times, seconds, from 0 on and not falling, shape (n,).

        They end after `count`, or at `duration` seconds, whichever is given and comes first.
        """


class RenewalArrivals(OpenArrivals):
    """Arrivals with independent, equally distributed gaps."""

    rate: float = Field(gt=0, le=1e15)
    """Mean requests per second."""

    @abstractmethod
    def gaps(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return gaps between arrivals, seconds, shape (count,)."""

    def times(
        self, rng: np.random.Generator, *, count: int | None, duration: float | None
    ) -> NDArray[np.float64]:
        if duration is None:
            assert count is not None
            return np.cumsum(self.gaps(rng, count))
        expected = int(self.rate * duration * 1.1) + 100
        size = expected if count is None else min(expected, count)
        times = np.cumsum(self.gaps(rng, size))
        while times[-1] < duration and (count is None or len(times) < count):
            times = np.concatenate([times, times[-1] + np.cumsum(self.gaps(rng, size))])
        return times[times < duration][:count]

    def expected_count(self, duration: float | None) -> float:
        return 0.0 if duration is None else self.rate * duration


ARRIVALS = Family("workload.arrivals", Arrivals)
