"""Arrivals as they were recorded."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.core.errors import TraceError
from specsim.workload.arrivals import Arrivals
from specsim.workload.readers import read_trace
from specsim.workload.trace import Trace

Instant = Annotated[float, Field(ge=0)]


def _inferred(trace: Trace) -> NDArray[np.int64]:
    """Return the session of each request; one is continued once, others branch off as new ones.

    A piece stands for all before it, so that the last full piece of a prompt tells it.
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
    """A workload of any known format; shipped ones, ``traces/...``, are found from anywhere."""
    window: tuple[Instant, Instant] | None = None
    """Keep only arrivals in [start, end), seconds of the recording."""
    time_scale: float = Field(default=1.0, gt=0)
    """Multiplies all times: 0.5 replays twice as fast."""
    rate: float | None = Field(default=None, gt=0, le=1e15)
    """Mean requests per second to stretch or squeeze to, in place of `time_scale`."""
    sessions: Literal["inferred", "ignored"] | None = None
    """Whether turns wait for each other: by the file's sessions, if it has any; inferred from its
    prefix ids, where a prompt that begins with all full pieces of an earlier one, and is longer
    than that and its answer, continues it; or not at all."""

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.rate is not None and self.time_scale != 1.0:
            raise ValueError("give either rate or time_scale, not both")
        if self.window is not None and self.window[0] >= self.window[1]:
            raise ValueError(f"window {list(self.window)}: its start must come before its end")
        return self

    def select(self, count: int | None, duration: float | None) -> Trace:
        """Return the rows to replay, with their times.

        Args:
            count: Keep the first so many; None keeps all.
            duration: Keep the arrivals before this second of the replay; None keeps all.

        Raises:
            TraceError: The file has no arrivals, or none in the window.
        """
        trace = read_trace(self.path)
        if trace.arrived_at is None:
            raise TraceError(
                f"{self.path}: has no arrival times ({trace.format}); give workload.arrivals of "
                "another kind and workload.lengths: {kind: trace, path: ...}"
            )
        start, end = self.window or (0.0, np.inf)
        rows = np.flatnonzero((trace.arrived_at >= start) & (trace.arrived_at < end))
        times = self._replayed(trace.arrived_at[rows] - start)
        keep = slice(None) if duration is None else times < duration
        rows, times = rows[keep][:count], times[keep][:count]
        if not len(rows):
            raise TraceError(
                f"{self.path}: no arrival in the window [{start:g}, {end:g}) s of its "
                f"{trace.arrived_at[-1]:g} s"
            )
        return self._in_sessions(trace).take(rows).at_times(times)

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

    def _replayed(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.rate is None or len(times) < 2 or times[-1] == times[0]:
            return times * self.time_scale
        recorded_rate = (len(times) - 1) / (times[-1] - times[0])
        return times * float(recorded_rate / self.rate)
