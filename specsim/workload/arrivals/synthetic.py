"""Arrivals that are made: open processes, and clients that wait for their answer."""

from typing import Annotated, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.core.errors import ConfigError
from specsim.workload.arrivals import Arrivals, OpenArrivals, RenewalArrivals


@final
class Burst(OpenArrivals):
    """Every request at time 0: offline batch inference, or ``vllm bench serve`` at rate inf."""

    kind: Literal["burst"] = "burst"

    def times(
        self, rng: np.random.Generator, *, count: int | None, duration: float | None
    ) -> NDArray[np.float64]:
        """Return zeros; a ConfigError if only a duration is given."""
        if count is None:
            raise ConfigError("workload.duration: a burst has none; give num_requests")
        return np.zeros(count)


@final
class Constant(OpenArrivals):
    """One request every 1 / rate seconds, the first at 0."""

    kind: Literal["constant"] = "constant"
    examples = ({"rate": 8.0},)
    rate: float = Field(gt=0, le=1e15)
    """Requests per second."""

    def times(
        self, rng: np.random.Generator, *, count: int | None, duration: float | None
    ) -> NDArray[np.float64]:
        """Return the multiples of 1 / rate; divided, not summed, so that they do not drift."""
        if duration is not None:
            expected = int(np.ceil(duration * self.rate))
            count = expected if count is None else min(count, expected)
        assert count is not None
        times = np.arange(count) / self.rate
        return times if duration is None else times[times < duration]

    def expected_count(self, duration: float | None) -> float:
        """Return the number of requests within a duration."""
        return 0.0 if duration is None else self.rate * duration


@final
class Poisson(RenewalArrivals):
    """A Poisson process: independent exponential gaps."""

    kind: Literal["poisson"] = "poisson"
    examples = ({"rate": 8.0},)

    def gaps(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return exponential gaps."""
        return rng.exponential(1.0 / self.rate, count)


@final
class Gamma(RenewalArrivals):
    """Gamma-distributed gaps, with the meaning of burstiness that ``vllm bench serve`` has.

    `burstiness` is the shape of the gamma distribution: 1 is Poisson, below 1 is burstier, above 1
    more regular. The squared coefficient of variation of the gaps is its inverse.
    """

    kind: Literal["gamma"] = "gamma"
    examples = ({"rate": 8.0, "burstiness": 0.5},)
    burstiness: float = Field(ge=1e-6, le=1e6)

    def gaps(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return gamma-distributed gaps."""
        rate = self.rate * self.burstiness or 5e-324  # the clock refuses what comes so late
        return rng.gamma(self.burstiness, 1.0 / rate, count)


Duration = Annotated[float, Field(gt=0)]
_MOST_ARRIVALS = 1e15
Rate = Annotated[float, Field(ge=0)]


@final
class Piecewise(OpenArrivals):
    """A Poisson process whose rate is constant on each of several segments, for load ramps.

    Drawn by time change: the arrivals of a unit-rate process, mapped through the inverse of the
    cumulative rate (Cinlar 1975, "Introduction to Stochastic Processes", 4.7).
    """

    kind: Literal["piecewise"] = "piecewise"
    examples = ({"segments": [[40, 1], [40, 16], [40, 48]]},)
    segments: tuple[tuple[Duration, Rate], ...] = Field(min_length=1)
    """(seconds, requests per second), one after the other; after the last nothing arrives."""

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        if not any(rate for _, rate in self.segments):
            raise ValueError("all rates of the segments are 0: nothing would ever arrive")
        if not self.expected_count(None) <= _MOST_ARRIVALS:
            raise ValueError(
                f"segments: {self.expected_count(None):.3g} requests would come; lower the rates "
                "or the durations"
            )
        return self

    def expected_count(self, duration: float | None) -> float:
        """Return the mean number of requests of all segments, as far as they are within it."""
        left, count = float("inf") if duration is None else duration, 0.0
        for span, rate in self.segments:
            count += min(span, left) * rate
            left = max(0.0, left - span)
        return count

    def times(
        self, rng: np.random.Generator, *, count: int | None, duration: float | None
    ) -> NDArray[np.float64]:
        """Return the arrivals of all segments, up to the limits."""
        spans, rates = np.array(self.segments).T
        ends = np.concatenate([[0.0], np.cumsum(spans)])
        totals = np.concatenate([[0.0], np.cumsum(spans * rates)])
        size = int(totals[-1] + 10 * np.sqrt(totals[-1]) + 100)
        size = size if count is None else min(size, count)
        unit_times = np.cumsum(rng.exponential(1.0, size))
        unit_times = unit_times[unit_times < totals[-1]]
        segment = np.searchsorted(totals, unit_times, side="right") - 1
        times: NDArray[np.float64] = ends[segment] + (unit_times - totals[segment]) / rates[segment]
        return times[:count] if duration is None else times[times < duration][:count]


@final
class ClosedLoop(Arrivals):
    """A fixed number of clients; each sends its next request when the last is answered.

    ``vllm bench serve --max-concurrency`` with a rate of infinity, when there is no think time.
    """

    kind: Literal["closed_loop"] = "closed_loop"
    examples = ({"concurrency": 16, "think_time": 1.0},)
    concurrency: int = Field(gt=0, le=100_000_000)
    """Clients, and so the largest number of requests in the system."""
    think_time: float = Field(default=0.0, ge=0, le=1e9)
    """Mean time between an answer and the next request of that client, seconds."""
    think_time_shape: Literal["constant", "exponential"] = "constant"

    def think_times(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return the waits before requests, seconds, shape (count,); 0 before a client's first."""
        if self.think_time_shape == "exponential":
            times = rng.exponential(self.think_time, count)
        else:
            times = np.full(count, self.think_time)
        times[: self.concurrency] = 0.0
        return times
