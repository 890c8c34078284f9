"""Workloads: the requests of a run, when they arrive and how long they are."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.rng import generator
from specsim.core.settings import Settings, parts_of
from specsim.workload.arrivals import ARRIVALS, Arrivals, OpenArrivals, drawn_times
from specsim.workload.arrivals.patterns import ClosedLoop, TraceReplay
from specsim.workload.lengths import LENGTHS, Lengths, drawn, drawn_sessions
from specsim.workload.lengths.distributions import Empirical, TraceRows
from specsim.workload.readers import facts_of
from specsim.workload.trace import Trace, as_recorded, spread

__all__ = ["Trace", "WorkloadConfig"]


_LATEST = 2.0**43  # from here on, doubles are more than a millisecond apart


class AdapterMix(Settings):
    """LoRA adapter of each request, drawn at random; all turns of a session use the same one."""

    count: int = Field(gt=0, le=100_000)
    """Number of adapters, which are numbered from 1."""
    share: float = Field(default=1.0, ge=0, le=1)
    """Share of the requests, or sessions, that use an adapter."""
    exponent: float = Field(default=0.0, ge=0, le=10)
    """Adapter n is used in proportion to n ** -exponent (Zipf); 0: all equally."""

    def draw(self, trace: Trace, seed: int) -> Trace:
        rng, weights = generator(seed, "adapters"), np.arange(1.0, self.count + 1) ** -self.exponent
        owners = np.arange(len(trace)) if trace.sessions is None else trace.sessions
        size = int(owners.max(initial=-1)) + 1
        numbers = rng.choice(self.count, size, p=weights / weights.sum()) + 1
        numbers[rng.random(size) >= self.share] = 0
        return replace(trace, adapters=numbers[owners])


class WorkloadConfig(Settings):
    """The requests of a run."""

    arrivals: Annotated[Arrivals, ARRIVALS]
    lengths: Annotated[Lengths, LENGTHS] | None = None
    """Lengths of prompts and outputs. May be left out if a recorded trace provides them."""
    num_requests: int | None = Field(default=None, ge=1, le=100_000_000)
    """Number of requests; of a trace, its first ones."""
    duration: float | None = Field(default=None, gt=0, le=1e15)
    """Seconds during which requests arrive."""
    max_tokens: int | None = Field(default=None, ge=1, le=1 << 30)
    """Limit of the answer that each client requests. A shorter answer then ends by a stop token,
    which the scheduler does not foresee: with asynchronous scheduling it has scheduled one step too
    many. Without the limit, answers are exactly as long as requested (``ignore_eos``)."""
    adapters: AdapterMix | None = None
    """LoRA adapters of the requests, which need `engine.lora_config`; a trace may have its own
    (column ``adapter``)."""

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

    @property
    def expected_requests(self) -> float:
        """Expected number of requests; 0 if a file determines it."""
        count = self.arrivals.expected_count(self.duration)
        count *= 1.0 if self.lengths is None else self.lengths.mean_turns
        if self.num_requests is None:
            return count
        return min(count, self.num_requests) if count else self.num_requests

    @property
    def expected_tokens(self) -> float:
        """Expected tokens of all requests; 0 if a file determines them."""
        return self.expected_requests * (0.0 if self.lengths is None else self.lengths.mean_len)

    @property
    def traces(self) -> dict[str, Path]:
        """The files whose requests the workload replays or draws from, by field."""
        return {
            f"{field}.path": part.path
            for field, part in parts_of(self, "workload.")
            if isinstance(part, TraceReplay | TraceRows | Empirical)
        }

    @property
    def notes(self) -> list[str]:
        """How columns of these files were interpreted, and what was ignored; one line each.

        Files that cannot be read are left out, since the run reports them.
        """
        notes: dict[Path, str] = {}
        for field, path in self.traces.items():
            with suppress(SpecsimError):
                notes[path] = self._told(facts_of(path, field).note, field)
        found = [f"{path.name}: {note}" for path, note in notes.items() if note]
        if isinstance(self.lengths, TraceRows) and self._window_of == self.lengths.path:
            found.append(
                f"workload.lengths: those of the first rows of {self.lengths.path.name}, not of "
                "the window; leave lengths out, and each request keeps its own"
            )
        return found

    def _told(self, note: str, field: str) -> str:
        arrivals = self.arrivals
        if not isinstance(arrivals, TraceReplay) or not field.startswith("workload.arrivals"):
            return note
        return as_recorded(note) if arrivals.resolution is None else spread(note)

    @property
    def _window_of(self) -> Path | None:
        """The file of which only arrivals in a window are replayed; None if there is none."""
        arrivals = self.arrivals
        return arrivals.path if isinstance(arrivals, TraceReplay) and arrivals.window else None

    def build(self, seed: int) -> Trace:
        """Return the requests of one run, with arrival times except for a closed loop.

        Raises a TraceError if a file of the workload cannot be used; a ConfigError if the last
        requests arrive so late that the clock cannot tell them apart.

        Args:
            seed: Arrivals and lengths are drawn from separate streams.
        """
        trace = self._build(seed)
        if trace.arrived_at is not None and len(trace):
            _check_clock(float(trace.arrived_at[-1]))
        return self.completed(trace, seed)

    def completed(self, trace: Trace, seed: int) -> Trace:
        """Return requests with their adapters, and with the limit of their answers."""
        if self.adapters is not None:
            if trace.adapters is not None:
                raise ConfigError(
                    "workload.adapters: the trace says which adapter each request is for; leave "
                    "this out"
                )
            trace = self.adapters.draw(trace, seed)
        return trace if self.max_tokens is None else self._limited(trace)

    def _limited(self, trace: Trace) -> Trace:
        longest = int(trace.output_lens.max(initial=0))
        if longest > (self.max_tokens or 0):
            raise ConfigError(
                f"workload.max_tokens = {self.max_tokens} is less than the longest answer of "
                f"{longest} tokens; raise it, or shorten the answers"
            )
        return replace(trace, max_tokens=self.max_tokens)

    def _build(self, seed: int) -> Trace:
        if isinstance(self.arrivals, TraceReplay):
            trace = self.arrivals.select(self.num_requests, self.duration)
            if self.lengths is None:
                return trace
            assert trace.arrived_at is not None
            bodies = drawn_sessions(self.lengths, generator(seed, "lengths"), len(trace))
            replayed = bodies.starting_at(trace.arrived_at)
            self._check_sessions(bodies.num_sessions, len(trace), len(replayed))
            return replayed.take(np.arange(min(len(replayed), self.num_requests or len(replayed))))
        assert self.lengths is not None
        rng, count = generator(seed, "lengths"), self.num_requests or self.lengths.num_rows
        if not isinstance(self.arrivals, OpenArrivals):
            assert count is not None
            # Turns do not wait for recorded times: the arrivals say when sessions begin.
            return replace(drawn(self.lengths, rng, count), arrived_at=None)
        draw_times = partial(
            drawn_times, self.arrivals, generator(seed, "arrivals"), duration=self.duration
        )
        if count is None or not self.lengths.in_sessions:
            times = draw_times(count=count)
            return drawn_sessions(self.lengths, rng, len(times)).starting_at(times)
        bodies = drawn(self.lengths, rng, count)
        return bodies.starting_at(draw_times(count=bodies.num_sessions))

    def _check_sessions(self, sessions: int, arrivals: int, requests: int) -> None:
        """Raise a ConfigError if there are fewer sessions than recorded arrivals to begin them."""
        assert self.lengths is not None
        is_enough = self.num_requests is not None and requests >= self.num_requests
        if self.lengths.num_rows is not None and sessions < arrivals and not is_enough:
            raise ConfigError(
                f"workload.lengths: has {sessions:,} sessions, and each of the {arrivals:,} "
                f"arrivals begins one; give num_requests, at most {requests:,}, or a file with "
                "more of them"
            )


def _check_clock(last: float) -> None:
    """Raise an error if doubles cannot resolve a millisecond at the last arrival, seconds."""
    if not last < _LATEST:
        raise ConfigError(
            f"workload: the last request arrives after {last:.3g} s, where the clock cannot tell "
            f"1 ms any more (from {_LATEST:.2g} s on); raise the rate, or shorten the gaps"
        )
