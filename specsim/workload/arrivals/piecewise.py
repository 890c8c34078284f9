"""Arrivals whose rate changes over time."""

from typing import Annotated, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.workload.arrivals import OpenArrivals

Duration = Annotated[float, Field(gt=0)]
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
        return self

    def times(
        self, rng: np.random.Generator, *, count: int | None, duration: float | None
    ) -> NDArray[np.float64]:
        """Return the arrivals of all segments, up to the limits."""
        spans, rates = np.array(self.segments).T
        ends = np.concatenate([[0.0], np.cumsum(spans)])
        totals = np.concatenate([[0.0], np.cumsum(spans * rates)])
        size = int(totals[-1] + 10 * np.sqrt(totals[-1]) + 100)
        unit_times = np.cumsum(rng.exponential(1.0, size))
        unit_times = unit_times[unit_times < totals[-1]]
        segment = np.searchsorted(totals, unit_times, side="right") - 1
        times: NDArray[np.float64] = ends[segment] + (unit_times - totals[segment]) / rates[segment]
        return times[:count] if duration is None else times[times < duration][:count]
