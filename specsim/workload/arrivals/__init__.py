"""Arrivals: when requests come."""

from abc import abstractmethod
from math import inf

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.blame import held_to, is_shipped
from specsim.core.families import Family, Member

__all__ = ["ARRIVALS", "Arrivals", "OpenArrivals", "RenewalArrivals", "drawn_times"]


class Arrivals(Member):
    """When requests come. Extend `OpenArrivals` or `RenewalArrivals`."""

    kind: str

    def expected_count(self, duration: float | None) -> float:
        """Return the expected number of requests in `duration` seconds; 0 if not known."""
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


def drawn_times(
    arrivals: OpenArrivals,
    rng: np.random.Generator,
    *,
    count: int | None,
    duration: float | None = None,
) -> NDArray[np.float64]:
    """Return `OpenArrivals.times`; a PluginError if those of a user's class break its rules."""
    times = arrivals.times(rng, count=count, duration=duration)
    if not is_shipped(arrivals):
        end = inf if duration is None else duration
        is_right = (
            isinstance(times, np.ndarray)
            and times.ndim == 1
            and times.dtype.kind in "iuf"
            and (count is None or len(times) == count or (len(times) < count and end < inf))
            and bool(np.all((times >= 0) & (times <= end) & (times < inf)))
            and bool(np.all(times[:-1] <= times[1:]))
        )
        most = "" if count is None else f"{count} of them, "
        last = "on" if duration is None else f"to {duration:g}"
        rule = f"an array of seconds, {most}from 0 {last}, not falling"
        held_to(arrivals, "times", times, is_right, rule)
    return times


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
