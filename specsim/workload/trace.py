"""Trace: a workload as columns, from a file of any format; building and describing it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from math import isfinite
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from specsim.core.blame import is_whole
from specsim.core.errors import TraceError
from specsim.core.request import NO_RECORDS, Columns, PrefixIds, Request

_ARRAYS = (
    "prompt_lens", "output_lens", "arrived_at", "priorities", "adapters", "sessions",
    "think_times", "shared_lens",
)  # fmt: skip
IN_FILES = {
    "ids": "id", "arrived_at": "arrived_at", "prompt_lens": "prompt_len",
    "output_lens": "output_len", "priorities": "priority", "adapters": "adapter",
    "sessions": "session", "think_times": "think_time", "after_turns": "after_turns",
    "shared_lens": "shared_len", "prompt_token_ids": "prompt_token_ids",
    "output_token_ids": "output_token_ids", "prefix_ids": "prefix_hash_ids",
}  # fmt: skip
"""Names of the trace's columns in specsim's own files, in order."""
_LISTS = ("ids", "prompt_token_ids", "output_token_ids", "prefix_ids", "after_turns")

Column = Sequence[NDArray[np.int64]]


@dataclass(frozen=True)
class Trace:
    """Requests as columns; None if a format lacks one. `arrived_at` starts at 0, never falling."""

    prompt_lens: NDArray[np.int64]  # shape (n,), tokens, each at least 1
    output_lens: NDArray[np.int64]  # shape (n,), tokens, each at least 1
    arrived_at: NDArray[np.float64] | None = None  # shape (n,), seconds after the first arrival
    ids: Sequence[str] | None = None
    priorities: NDArray[np.int64] | None = None
    adapters: NDArray[np.int64] | None = None
    """LoRA adapter of each request, from 1; 0 for none; shape (n,)."""
    prompt_token_ids: Column | None = None
    output_token_ids: Column | None = None
    prefix_ids: Sequence[PrefixIds] | None = None
    sessions: NDArray[np.int64] | None = None
    """Session of each request, numbered from 0, with turns in order; shape (n,)."""
    think_times: NDArray[np.float64] | None = None
    """Seconds from the end of the previous turn to the arrival; 0 for a first turn; shape (n,)."""
    after_turns: Sequence[tuple[int, ...]] | None = None
    """See `specsim.core.request.Request.after_turns`; by default each turn waits for the previous
    one."""
    shared_lens: NDArray[np.int64] | None = None
    """Shape (n,); see `specsim.core.request.Request.shared_len`."""
    recorded_lens: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    """Accepted length of a draft at every output position, by proposer and request."""
    max_tokens: int | None = None  # see `specsim.core.request.Request`; equal for all
    num_dropped: int = 0  # rows of failed requests (no prompt or no output), left out
    format: str = ""  # name of its reader
    note: str = ""  # what to know about how it was read
    resolution: float | None = None
    """Seconds to which arrivals were rounded, if rounding made some of them coincide."""

    def __len__(self) -> int:
        return len(self.prompt_lens)

    def take(self, rows: NDArray[np.int64]) -> "Trace":
        """Return the trace with only these rows, in this order; arrival times do not change."""
        order = rows.tolist()
        taken = {name: column[rows] for name, column in self._present(_ARRAYS).items()}
        taken |= {name: [c[row] for row in order] for name, c in self._present(_LISTS).items()}
        records = {name: [r[row] for row in order] for name, r in self.recorded_lens.items()}
        if self.after_turns is not None:
            taken["after_turns"] = self._after_among(order)
        return replace(self, recorded_lens=records, **taken)

    def _after_among(self, order: list[int]) -> list[tuple[int, ...]]:
        """Return the turns that each of these rows waits for; the previous one if none is left."""
        assert self.sessions is not None
        assert self.after_turns is not None
        sessions = self.sessions.tolist()
        turns = _numbered(sessions)
        left = _numbered([sessions[row] for row in order])
        places = {(sessions[row], turns[row]): turn for row, turn in zip(order, left, strict=True)}
        found: list[tuple[int, ...]] = []
        for row, turn in zip(order, left, strict=True):
            pairs = ((sessions[row], before) for before in self.after_turns[row])
            after = tuple(sorted(places[pair] for pair in pairs if pair in places))
            found.append(after or ((turn - 1,) if turn > 1 else ()))
        return found

    def followed_by(self, other: "Trace") -> "Trace":
        """Return these requests followed by another's, with the columns of both, without arrivals.

        Columns on when turns of sessions come are kept if either has them.
        """
        one, two = self, other
        if self.sessions is not None and other.sessions is not None:
            one, two = self._waiting_as(other), other._waiting_as(self)
        arrays, lists = one._present(_ARRAYS), one._present(_LISTS)
        more_arrays, more_lists = two._present(_ARRAYS), two._present(_LISTS)
        mine, others = self.recorded_lens, other.recorded_lens
        both = (arrays.keys() & more_arrays.keys()) - {"arrived_at"}
        joined: dict[str, Any] = {
            name: np.concatenate([arrays[name], more_arrays[name]]) for name in both
        }
        joined |= {name: [*lists[name], *more_lists[name]] for name in lists.keys() & more_lists}
        if self.sessions is not None and other.sessions is not None:
            first = int(self.sessions.max(initial=-1)) + 1
            joined["sessions"] = np.concatenate([self.sessions, other.sessions + first])
        records = {name: [*mine[name], *others[name]] for name in sorted(mine.keys() & others)}
        return Trace(**joined, recorded_lens=records)

    def with_prefixes_apart_from(self, other: "Trace") -> "Trace":
        """Return these requests with prefix ids that do not occur in another recording.

        Each recording numbers its own prefixes, mostly from 0 on.
        """
        if self.prefix_ids is None or other.prefix_ids is None:
            return self
        mine, theirs = (
            dict.fromkeys(each for prefix in prefixes for each in prefix.hash_ids)
            for prefixes in (self.prefix_ids, other.prefix_ids)
        )
        first = 1 + max((each for each in theirs if isinstance(each, int)), default=-1)
        numbers = {own: first + place for place, own in enumerate(mine)}
        prefixes = [
            PrefixIds([numbers[own] for own in each.hash_ids], each.block_size)
            for each in self.prefix_ids
        ]
        return replace(self, prefix_ids=prefixes)

    def _waiting_as(self, other: "Trace") -> "Trace":
        """Return these turns with the columns of another on when turns come.

        Turns without values come when the previous turn has ended.
        """
        assert self.sessions is not None
        think_times, after_turns = self.think_times, self.after_turns
        if think_times is None and other.think_times is not None:
            think_times = np.zeros(len(self))
        if after_turns is None and other.after_turns is not None:
            turns = _numbered(self.sessions.tolist())
            after_turns = [(turn - 1,) if turn > 1 else () for turn in turns]
        return replace(self, think_times=think_times, after_turns=after_turns)

    def _present(self, names: tuple[str, ...]) -> dict[str, Any]:
        columns = {name: getattr(self, name) for name in names}
        return {name: column for name, column in columns.items() if column is not None}

    def at_times(self, arrived_at: NDArray[np.float64]) -> "Trace":
        """Return the same requests with other arrival times, seconds, shape (n,)."""
        return replace(self, arrived_at=arrived_at)

    def without_sessions(self) -> "Trace":
        """Return the requests without sessions, so that none waits for another."""
        return replace(self, sessions=None, think_times=None, after_turns=None, shared_lens=None)

    @property
    def num_sessions(self) -> int:
        """Number of sessions; a request without one counts as a session."""
        return len(self) if self.sessions is None else len(np.unique(self.sessions))

    @property
    def session_places(self) -> NDArray[np.int64]:
        """Return each request's session, numbered from 0 in order of appearance, shape (n,)."""
        assert self.sessions is not None
        _, firsts, sessions = np.unique(self.sessions, return_index=True, return_inverse=True)
        return np.asarray(np.argsort(np.argsort(firsts))[sessions])

    def starting_at(self, times: NDArray[np.float64]) -> "Trace":
        """Return the sessions, in order, beginning at these times, seconds; others are left out."""
        if self.sessions is None:
            return self.take(np.arange(len(times))).at_times(times)
        places = self.session_places
        rows = np.flatnonzero(places < len(times))
        started = self.take(rows).at_times(times[places[rows]])
        assert started.arrived_at is not None
        return started.take(np.argsort(started.arrived_at, kind="stable"))

    def requests(self, numbers: Iterable[int] | None = None) -> Iterator[Request]:
        """Yield the requests in order, with these indices; by default from 0 on."""
        size = len(self)
        arrivals = [0.0] * size if self.arrived_at is None else self.arrived_at.tolist()
        priorities = [0] * size if self.priorities is None else self.priorities.tolist()
        adapters = [0] * size if self.adapters is None else self.adapters.tolist()
        lens = self.prompt_lens.tolist(), self.output_lens.tolist()
        rows = zip(*lens, arrivals, priorities, adapters, strict=True)
        records = self.recorded_lens
        once: dict[int, int] = {}  # one object per distinct length saves memory
        turns = repeat((None, 1, None, 0.0, None)) if self.sessions is None else self._turns()
        indices = range(len(self)) if numbers is None else numbers
        for index, (number, row) in enumerate(zip(indices, rows, strict=True)):
            prompt_len, output_len, arrived_at, priority, adapter = row
            session, turn, after_turns, think_time, shared_len = next(turns)
            yield Request(
                index=number,
                prompt_len=once.setdefault(prompt_len, prompt_len),
                output_len=once.setdefault(output_len, output_len),
                arrived_at=arrived_at,
                id=self.ids[index] if self.ids else "",
                priority=priority,
                adapter=adapter,
                max_tokens=self.max_tokens,
                prompt_token_ids=self.prompt_token_ids[index] if self.prompt_token_ids else None,
                output_token_ids=self.output_token_ids[index] if self.output_token_ids else None,
                prefix_ids=self.prefix_ids[index] if self.prefix_ids else None,
                session=session,
                turn=turn,
                after_turns=after_turns,
                think_time=think_time,
                shared_len=shared_len,
                recorded_lens={n: r[index] for n, r in records.items()} if records else NO_RECORDS,
            )

    def _turns(self) -> Iterator[tuple[int | None, int, tuple[int, ...] | None, float, int | None]]:
        assert self.sessions is not None
        size = len(self)
        waits = [0.0] * size if self.think_times is None else self.think_times.tolist()
        shared = repeat(None, size) if self.shared_lens is None else self.shared_lens.tolist()
        after = self.after_turns or repeat(None, size)
        said: dict[int, int] = {}
        turns: Counter[int] = Counter()
        lens = zip(self.prompt_lens.tolist(), self.output_lens.tolist(), strict=True)
        rows = zip(self.sessions.tolist(), after, waits, shared, lens, strict=True)
        for index, (session, before, wait, shared_len, (prompt_len, output_len)) in enumerate(rows):
            turns[session] += 1
            _check_after(index, turns[session], before)
            if shared_len is not None and prompt_len < said.get(session, 0):
                raise TraceError(
                    f"request {index}: a prompt of {prompt_len} tokens in turn {turns[session]} is "
                    f"shorter than the {said[session]} that its session has said before; leave out "
                    "shared_len where prompts do not grow"
                )
            said[session] = prompt_len + output_len
            yield session, turns[session], before, wait, shared_len


def _numbered(sessions: list[int]) -> list[int]:
    """Return the turn number of each request in its session, from 1."""
    turns: Counter[int] = Counter()
    found = []
    for session in sessions:
        turns[session] += 1
        found.append(turns[session])
    return found


def _check_after(request: int, turn: int, after: tuple[int, ...] | None) -> None:
    """Raise unless a turn waits only for earlier ones, and only first turns wait for none."""
    if after is not None and not (all(0 < each < turn for each in after) and (after or turn == 1)):
        wanted = f"at least one turn from 1 to {turn - 1}" if turn > 1 else "none"
        raise TraceError(
            f"request {request}: after_turns = {list(after)} of turn {turn} of its session must "
            f"name {wanted}; turns are numbered from 1, in the order of the file"
        )


def mean_rate(times: NDArray[np.float64]) -> float | None:
    """Return the mean arrivals per second from first to last; None if all coincide."""
    span = float(np.ptp(times)) if len(times) else 0.0
    return (len(times) - 1) / span if span > 0 else None


class TraceRequests(Sequence[Request]):
    """The requests of a trace with given indices, each created when it is accessed."""

    def __init__(self, trace: Trace, numbers: NDArray[np.int64] | None = None) -> None:
        self._trace = trace
        self._numbers = np.arange(len(trace)) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._trace)

    @overload
    def __getitem__(self, place: int) -> Request: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Request]: ...
    def __getitem__(self, place: int | slice) -> Request | Sequence[Request]:
        """Return a request, or several as a sequence of the same kind."""
        rows = np.arange(len(self))[place]
        return self.take(rows) if isinstance(place, slice) else next(iter(self.take(rows[None])))

    def __iter__(self) -> Iterator[Request]:
        return self._trace.requests(self._numbers.tolist())

    def take(self, rows: NDArray[np.int64]) -> "TraceRequests":
        return TraceRequests(self._trace.take(rows), self._numbers[rows])

    @cached_property
    def columns(self) -> Columns:
        """The columns that can be known without creating requests."""
        trace, lens = self._trace, self._trace.output_lens
        known = (trace.prompt_token_ids, trace.prefix_ids, trace.sessions)
        return Columns(
            indices=self._numbers,
            prompt_lens=trace.prompt_lens,
            output_lens=lens,
            arrived_at=np.zeros(len(self)) if trace.arrived_at is None else trace.arrived_at,
            priorities=np.zeros_like(lens) if trace.priorities is None else trace.priorities,
            adapters=np.zeros_like(lens) if trace.adapters is None else trace.adapters,
            max_tokens=lens if trace.max_tokens is None else np.full_like(lens, trace.max_tokens),
            ids=trace.ids if trace.ids and any(trace.ids) else None,
            has_sessions=trace.sessions is not None,
            may_share=any(each is not None for each in known),
        )

    @property
    def has_lengths_only(self) -> bool:
        """Whether `columns` contains all there is to know."""
        trace = self._trace
        return not (self.columns.may_share or trace.output_token_ids or trace.recorded_lens)


class TraceBuilder:
    """Collects rows of a file of any format into a trace, sorted by arrival."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path = path
        self._kind = kind
        self._lens: list[tuple[int, int]] = []
        self._arrivals: list[float] = []
        self._columns: dict[str, list[Any]] = {}
        self._recorded_lens: dict[str, list[bytes]] = {}
        self._unsaid: dict[str, Any] = {}  # value of a column in rows without one
        self._before: dict[object, object] = {}  # previous turn of each turn in its session
        self._num_dropped = 0
        self.note = ""

    def add(self, prompt_len: int, output_len: int, arrived_at: float | None = None) -> bool:
        """Add a request, lengths in tokens and arrival in seconds; return whether it was kept.

        A request without prompt or output failed: it is only counted, and its other columns are
        ignored. Raises a ValueError if a length is no whole number, or the arrival is not finite.
        """
        for name, length in (("prompt_len", prompt_len), ("output_len", output_len)):
            if not is_whole(length) or length < 0:
                raise ValueError(f"{name} = {length!r} must be a whole number of tokens")
        if arrived_at is not None and not isfinite(arrived_at):
            raise ValueError(f"arrived_at = {arrived_at!r} must be a finite number of seconds")
        if prompt_len == 0 or output_len == 0:
            self._num_dropped += 1
            return False
        self._lens.append((prompt_len, output_len))
        if arrived_at is not None:
            self._arrivals.append(arrived_at)
        return True

    def put(self, column: str, value: Any) -> None:
        """Append a value to another column, for the request that was just added."""
        self._columns.setdefault(column, []).append(value)

    def put_if_said(self, column: str, value: Any, unsaid: Any) -> None:
        """Do the same for a column that rows may lack; `unsaid` is the value of such rows."""
        self._unsaid[column] = unsaid
        self._pad(column, len(self._lens) - 1)
        self._columns[column].append(value)

    def _pad(self, column: str, length: int) -> None:
        values = self._columns.setdefault(column, [])
        values += [self._unsaid[column]] * (length - len(values))

    def link(self, turn: object, before: object) -> None:
        """Store which turn preceded another in its session, if any; in any order.

        Turns are the values of column ``sessions`` at that time; turns that are left out count,
        too.
        """
        self._before[turn] = before

    def _first_turn(self, turn: object) -> object:
        """Return the first turn of a session; any turn if they form a cycle."""
        seen = {turn}
        while (before := self._before.get(turn)) in self._before and before not in seen:
            seen.add(before)
            turn = before
        return turn

    def put_record(self, proposer: str, accepted_lens: bytes) -> None:
        """Append a proposer's recorded accepted lengths, for the request that was just added."""
        self._recorded_lens.setdefault(proposer, []).append(accepted_lens)

    def build(self) -> Trace:
        """Return the trace; a TraceError if it has no request, or a column only for some."""
        if not self._lens:
            dropped = f"; {self._num_dropped:,} rows had no prompt or no output"
            raise TraceError(
                f"{self._path}: no request in it{dropped if self._num_dropped else ''}; "
                "a workload has at least one"
            )
        lens = np.array(self._lens, dtype=np.int64)
        for name in self._unsaid:
            self._pad(name, len(lens))
        columns_of_some: dict[str, list[Any]] = {**self._columns, **self._recorded_lens}
        if self._arrivals:
            columns_of_some["arrived_at"] = self._arrivals
        for name, column in columns_of_some.items():
            if len(column) != len(lens):
                raise TraceError(
                    f"{self._path}: only {len(column):,} of {len(lens):,} requests have "
                    f"'{IN_FILES.get(name, name)}'; all of them must have it, or none"
                )
        columns: dict[str, Any] = dict(self._columns)
        if "sessions" in columns:  # named by the file, text or number
            numbers: dict[object, int] = {}
            firsts = map(self._first_turn, columns["sessions"])
            columns["sessions"] = [numbers.setdefault(n, len(numbers)) for n in firsts]
        for name in columns.keys() & set(_ARRAYS):
            is_time = name == "think_times"
            columns[name] = np.array(columns[name], dtype=np.float64 if is_time else np.int64)
        times = np.array(self._arrivals, dtype=np.float64)
        times -= times.min(initial=np.inf)
        said = self.note, self._left_out(), self._apart()
        bunched, resolution = _bunched(times, columns.get("sessions"))
        trace = Trace(
            prompt_lens=lens[:, 0],
            output_lens=lens[:, 1],
            arrived_at=times if len(times) else None,
            recorded_lens=dict(self._recorded_lens),
            num_dropped=self._num_dropped,
            format=self._kind,
            note="; ".join(filter(None, (*said, bunched))),
            resolution=resolution,
            **columns,
        )
        if trace.arrived_at is None:
            return trace
        order = np.argsort(trace.arrived_at, kind="stable")
        return trace if np.array_equal(order, np.arange(len(order))) else trace.take(order)

    def _left_out(self) -> str:
        count = self._num_dropped
        return f"rows without prompt or output, left out as failed: {count:,}" if count else ""

    def _apart(self) -> str:
        """Return a note if the prompts of sessions are not known to continue one another."""
        known = {"shared_lens", "prefix_ids", "prompt_token_ids"} & self._columns.keys()
        if known or "sessions" not in self._columns:
            return ""
        return "no shared_len: prompts of a session have nothing in common"


_AT_ONCE = "requests of the same one come at once"


def spread(note: str) -> str:
    """Return a note on a trace in which coinciding arrivals are spread out."""
    return note.replace(_AT_ONCE, "requests are spread over theirs")


def as_recorded(note: str) -> str:
    """Return a note on a trace whose arrivals are replayed as recorded."""
    return note.replace(_AT_ONCE, f"{_AT_ONCE}, unless workload.arrivals.resolution is set")


def _bunched(
    times: NDArray[np.float64], sessions: NDArray[np.int64] | None
) -> tuple[str, float | None]:
    """Return how a coarse clock rounded the arrivals, as text, and its unit in seconds.

    They are whole minutes or seconds, or few distinct instants. For sessions only first turns
    count, since later ones wait for earlier ones.
    """
    if sessions is not None and len(times):
        begun = np.full(int(sessions.max()) + 1, np.inf)
        np.minimum.at(begun, sessions, times)
        times = begun
    instants = len(np.unique(times))
    if instants in (1, len(times)):
        return "", None
    for name, seconds in (("minutes", 60.0), ("seconds", 1.0)):
        if not (times % seconds).any():
            return f"arrivals are whole {name}: {_AT_ONCE}", seconds
    if 2 * instants > len(times):
        return "", None
    return f"arrivals are {instants:,} instants: {_AT_ONCE}", None


_WINDOW = 10.0


@dataclass(frozen=True)
class LengthSummary:
    """Lengths of prompts or of outputs, tokens."""

    total: int
    mean: float
    std: float
    quantiles: dict[str, float]  # ``min``, ``p10``, ``p50``, ``p90``, ``p99``, ``max``


@dataclass(frozen=True)
class TraceDescription:
    """Statistics of a workload."""

    format: str
    num_requests: int
    num_dropped: int  # rows of failed requests, left out
    num_sessions: int | None  # None if no turn waits for another
    note: str
    duration: float | None  # from the first arrival to the last, seconds; None without arrivals
    mean_rate: float | None  # requests per second
    peak_rate: float | None  # requests per second in the busiest ten seconds
    burstiness: float | None
    """Shape of the gamma distribution with the variation of the gaps, as in ``vllm bench serve``: 1
    is Poisson, less is burstier."""
    prompt: LengthSummary
    output: LengthSummary
    reused_prefix_share: float | None
    """Share of prompt tokens whose whole prefix occurred earlier in the trace; None if the trace
    has neither token ids nor prefix ids."""
    recorded_acceptance: tuple[str, ...]  # proposers with accepted lengths in the trace


def describe(trace: Trace) -> TraceDescription:
    """Return a description of a workload."""
    arrivals = trace.arrived_at
    duration = None if arrivals is None else float(arrivals[-1])
    spread = arrivals if duration else None
    return TraceDescription(
        format=trace.format,
        num_requests=len(trace),
        num_dropped=trace.num_dropped,
        num_sessions=None if trace.sessions is None else trace.num_sessions,
        note=trace.note,
        duration=duration,
        mean_rate=None if spread is None else mean_rate(spread),
        peak_rate=None if spread is None else _peak_rate(spread),
        burstiness=None if spread is None else _burstiness(spread),
        prompt=_summary(trace.prompt_lens),
        output=_summary(trace.output_lens),
        reused_prefix_share=_reused_share(trace),
        recorded_acceptance=tuple(trace.recorded_lens),
    )


def _summary(lens: NDArray[np.int64]) -> LengthSummary:
    names = ("min", "p10", "p50", "p90", "p99", "max")
    values = np.quantile(lens, (0.0, 0.1, 0.5, 0.9, 0.99, 1.0))
    return LengthSummary(
        total=int(lens.sum()),
        mean=float(lens.mean()),
        std=float(lens.std()),
        quantiles={name: float(value) for name, value in zip(names, values, strict=True)},
    )


def _peak_rate(arrivals: NDArray[np.float64]) -> float:
    ends = np.searchsorted(arrivals, arrivals + _WINDOW, side="left")
    return float((ends - np.arange(len(arrivals))).max() / min(_WINDOW, arrivals[-1]))


def _burstiness(arrivals: NDArray[np.float64]) -> float | None:
    gaps = np.diff(arrivals)
    spread = gaps.var()
    return float(gaps.mean() ** 2 / spread) if spread > 0 else None


def _reused_share(trace: Trace) -> float | None:
    if trace.prompt_token_ids is None and trace.prefix_ids is None:
        return None
    seen: set[object] = set()
    reused = 0
    for request in trace.requests():
        size = request.prefix_ids.block_size if request.prefix_ids else 16
        keys = request.block_keys(size)[: request.prompt_len // size]
        hits = next((number for number, key in enumerate(keys) if key not in seen), len(keys))
        reused += hits * size
        seen.update(keys)
    return reused / int(trace.prompt_lens.sum())
