"""What every arrival process answers: when requests come."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from specsim.core.families import Member

__all__ = ["Arrivals", "OpenArrivals", "RenewalArrivals"]


class Arrivals(Member):
    """When requests come. Extend `OpenArrivals` or `RenewalArrivals`."""

    kind: str


class OpenArrivals(Arrivals):
    """Requests that come whatever happens to those before them."""

    @abstractmethod
    def times(
        self, rng: np.random.Generator, *, count: int | None, duration: float | None
    ) -> NDArray[np.float64]:
        """Return the arrival times.

        Args:
            count: How many; None: as many as come within the duration.
            duration: End of the arrivals; None: after `count` of them. In seconds.

        Returns:
            Not falling, from 0 on. Where both limits are given, the earlier one holds. Of shape
            (n,), in seconds.
        """


class RenewalArrivals(OpenArrivals):
    """Arrivals with independent, equally distributed gaps."""

    @abstractmethod
    def gaps(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return gaps between arrivals, seconds, shape (count,)."""

    @property
    @abstractmethod
    def mean_rate(self) -> float:
        """Mean arrivals per second."""

    def times(
        self, rng: np.random.Generator, *, count: int | None, duration: float | None
    ) -> NDArray[np.float64]:
        """Return the sums of the gaps."""
        if duration is None:
            assert count is not None
            return np.cumsum(self.gaps(rng, count))
        expected = int(self.mean_rate * duration * 1.1) + 100
        times = np.cumsum(self.gaps(rng, expected))
        while times[-1] < duration:
            times = np.concatenate([times, times[-1] + np.cumsum(self.gaps(rng, expected))])
        return times[times < duration][:count]
