"""Arrivals: open processes, closed-loop clients, and recorded arrivals."""

from dataclasses import replace
from pathlib import Path
from typing import Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from specsim.core.errors import ConfigError, TraceError
from specsim.core.rng import indexed_hashes, stream_id
from specsim.workload.arrivals import Arrivals, OpenArrivals, RenewalArrivals
from specsim.workload.readers import read_named
from specsim.workload.trace import Trace, mean_rate

_SPREAD = stream_id("arrivals within an instant")


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
        return 0.0 if duration is None else self.rate * duration


@final
class Poisson(RenewalArrivals):
    """A Poisson process: independent exponential gaps."""

    kind: Literal["poisson"] = "poisson"
    examples = ({"rate": 8.0},)

    def gaps(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
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
        rate = self.rate * self.burstiness or 5e-324  # so small a rate is refused by the clock
        return rng.gamma(self.burstiness, 1.0 / rate, count)


@final
class Piecewise(OpenArrivals):
    """A Poisson process whose rate is constant on each of several segments, for load ramps.

    Drawn by time change: the arrivals of a unit-rate process, mapped through the inverse of the
    cumulative rate (Cinlar 1975, "Introduction to Stochastic Processes", 4.7).
    """

    kind: Literal["piecewise"] = "piecewise"
    examples = ({"segments": [[40, 1], [40, 16], [40, 48]]},)
    segments: tuple[tuple[PositiveFloat, NonNegativeFloat], ...] = Field(min_length=1)
    """(seconds, requests per second) of each segment in order; nothing arrives after the last."""

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        if not any(rate for _, rate in self.segments):
            raise ValueError("all rates of the segments are 0: nothing would ever arrive")
        if not self.expected_count(None) <= 1e15:
            raise ValueError(
                f"segments: {self.expected_count(None):.3g} requests would come; lower the rates "
                "or the durations"
            )
        return self

    def expected_count(self, duration: float | None) -> float:
        left, count = float("inf") if duration is None else duration, 0.0
        for span, rate in self.segments:
            count += min(span, left) * rate
            left = max(0.0, left - span)
        return count

    def times(
        self, rng: np.random.Generator, *, count: int | None, duration: float | None
    ) -> NDArray[np.float64]:
        spans, rates = np.array(self.segments).T
        ends = np.concatenate([[0.0], np.cumsum(spans)])
        totals = np.concatenate([[0.0], np.cumsum(spans * rates)])
        expected = self.expected_count(duration)
        size = int(expected + 10 * np.sqrt(expected) + 100)
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
    """Number of clients, and so the most requests in the system."""
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


def _inferred(trace: Trace) -> NDArray[np.int64]:
    """Return the session of each request; the first continuation continues it, others branch off.

    An id stands for a block and all blocks before it, so that the last full block identifies a
    prompt.
    """
    assert trace.prefix_ids is not None
    sessions: NDArray[np.int64] = np.arange(len(trace))
    open_turns: dict[int, int] = {}
    prompt_lens, ends = trace.prompt_lens.tolist(), (trace.prompt_lens + trace.output_lens).tolist()
    for row, (prefix, length) in enumerate(zip(trace.prefix_ids, prompt_lens, strict=True)):
        pieces = prefix.hash_ids[: length // prefix.block_size]
        known = next((piece for piece in reversed(pieces) if piece in open_turns), None)
        if known is not None and ends[open_turns[known]] <= length:
            sessions[row] = sessions[open_turns.pop(known)]
        if pieces:
            open_turns[pieces[-1]] = row
    return sessions


@final
class TraceReplay(Arrivals):
    """Replays the arrivals of a file of any known format, as recorded, stretched or squeezed.

    A turn of a session arrives when it was recorded to, but not before the turn before it has ended
    and its think time is over.

    Without `workload.lengths` the lengths, token ids and prefixes come from the same rows.
    """

    kind: Literal["trace"] = "trace"
    examples = ({"path": "traces/chat.parquet"},)
    path: Path
    """A workload of any known format; shipped ones, ``traces/...``, are found from any folder."""
    window: tuple[NonNegativeFloat, NonNegativeFloat] | None = None
    """Keep only arrivals in [start, end), seconds of the recording."""
    resolution: float | None = Field(default=None, gt=0)
    """Resolution of the recording's clock, seconds: requests of one instant are spread at random
    until its next tick, in their order, equally in every run. By default as recorded."""
    time_scale: float = Field(default=1.0, gt=0)
    """Multiplies all times, think times too: 0.5 replays twice as fast."""
    rate: float | None = Field(default=None, gt=0, le=1e15)
    """Mean requests per second to stretch or squeeze to, in place of `time_scale`."""
    sessions: Literal["inferred", "ignored"] | None = None
    """Whether turns wait for each other: by the file's sessions (default, if it has any);
    ``inferred`` from prefix ids, where a prompt continues an earlier one if it begins with all its
    full blocks and is at least as long as it and its answer; or ``ignored``."""

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.rate is not None and self.time_scale != 1.0:
            raise ValueError("give either rate or time_scale, not both")
        if self.window is not None and self.window[0] >= self.window[1]:
            raise ValueError(f"window {list(self.window)}: its start must come before its end")
        return self

    def select(self, count: int | None, duration: float | None) -> Trace:
        """Return the rows to replay with their times: the first `count`, and before `duration`.

        Raises a TraceError if the file has no arrivals, or none in the window.
        """
        trace = read_named(self.path, "workload.arrivals.path")
        if trace.arrived_at is None:
            raise TraceError(
                f"{self.path}: has no arrival times ({trace.format}); give workload.arrivals of "
                "another kind and workload.lengths: {kind: trace, path: ...}"
            )
        arrived_at, (start, end) = self._spread(trace.arrived_at), self.window or (0.0, np.inf)
        rows = np.flatnonzero((arrived_at >= start) & (arrived_at < end))
        times = arrived_at[rows] - start
        factor = self._factor(times)
        times = times * factor
        keep = slice(None) if duration is None else times < duration
        rows, times = rows[keep][:count], times[keep][:count]
        if not len(rows):
            raise TraceError(
                f"{self.path}: no arrival in the window [{start:g}, {end:g}) s of its "
                f"{trace.arrived_at[-1]:g} s"
            )
        replayed = self._in_sessions(trace).take(rows).at_times(times)
        if replayed.think_times is None:
            return replayed
        return replace(replayed, think_times=replayed.think_times * factor)

    def _spread(self, arrived_at: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.resolution is None:
            return arrived_at
        hashes = indexed_hashes(0, _SPREAD, [0], [len(arrived_at)])
        return np.sort(arrived_at + self.resolution * (hashes / 2.0**64))

    def _in_sessions(self, trace: Trace) -> Trace:
        if self.sessions == "ignored":
            return trace.without_sessions()
        if self.sessions is None:
            return trace
        if trace.prefix_ids is None:
            raise TraceError(
                f"{self.path}: has no prefix ids ({trace.format}) to infer sessions from; leave "
                "workload.arrivals.sessions out"
            )
        return replace(trace, sessions=_inferred(trace))

    def _factor(self, times: NDArray[np.float64]) -> float:
        recorded_rate = mean_rate(times)
        if self.rate is None or recorded_rate is None:
            return self.time_scale
        return recorded_rate / self.rate
