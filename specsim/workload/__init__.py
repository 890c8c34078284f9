"""Workloads: which requests come, when, and how long they are."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from specsim.core.rng import generator
from specsim.core.settings import Settings
from specsim.workload.arrivals import ARRIVALS, Arrivals, OpenArrivals
from specsim.workload.arrivals.synthetic import ClosedLoop
from specsim.workload.arrivals.trace import TraceReplay
from specsim.workload.lengths import LENGTHS, Lengths
from specsim.workload.trace import Trace

__all__ = ["Trace", "WorkloadConfig"]


class WorkloadConfig(Settings):
    """The requests of a run."""

    arrivals: Annotated[Arrivals, ARRIVALS]
    lengths: Annotated[Lengths, LENGTHS] | None = None
    """May be left out where a recorded trace provides them."""
    num_requests: int | None = Field(default=None, ge=1, le=100_000_000)
    """Number of requests; of a trace, the first so many."""
    duration: float | None = Field(default=None, gt=0)
    """Seconds during which requests arrive."""

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if isinstance(self.arrivals, TraceReplay):
            return self
        if self.lengths is None:
            raise ValueError("'lengths' is missing; only arrivals of kind 'trace' bring their own")
        if isinstance(self.arrivals, ClosedLoop) and self.duration is not None:
            raise ValueError("duration: a closed loop ends by num_requests; give that instead")
        has_end = self.num_requests or self.duration or self.lengths.num_rows
        if not has_end and self.arrivals.kind != "piecewise":
            raise ValueError("give num_requests or duration (seconds): the workload has no end")
        return self

    def build(self, seed: int) -> Trace:
        """Return the requests of one run, with arrival times except for a closed loop.

        Args:
            seed: Arrivals and lengths are drawn from streams of their own.

        Raises:
            TraceError: A file that the workload names cannot be used.
        """
        if isinstance(self.arrivals, TraceReplay):
            trace = self.arrivals.select(self.num_requests, self.duration)
            if self.lengths is None:
                return trace
            assert trace.arrived_at is not None
            return self._bodies(seed, len(trace)).at_times(trace.arrived_at)
        count = self.num_requests or (self.lengths.num_rows if self.lengths else None)
        if isinstance(self.arrivals, OpenArrivals):
            times = self.arrivals.times(
                generator(seed, "arrivals"), count=count, duration=self.duration
            )
            return self._bodies(seed, len(times)).at_times(times)
        assert count is not None
        return self._bodies(seed, count)

    def _bodies(self, seed: int, count: int) -> Trace:
        assert self.lengths is not None
        return self.lengths.draw(generator(seed, "lengths"), count)
