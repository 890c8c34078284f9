"""Records: what an engine records while it runs, as rows in chunks and sums added to in place.

Steps and deliveries are kept in memory or in a temporary file. No row is computed from another
here. What is not recorded cannot be known afterwards, so the engine counts deliveries per request,
gaps per step, tokens per second, and the totals.
"""

import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.step import Ints


class ArrayFile:
    """A temporary file of arrays, made when first written to and deleted with this object.

    Args:
        what: Subject and verb of an error message: "the steps do".
        option: The command-line option that leaves these arrays out.
    """

    def __init__(self, what: str, option: str) -> None:
        self._what, self._option = what, option
        self._file: IO[bytes] | None = None
        self._size = 0

    def append(self, rows: NDArray[Any]) -> int:
        """Write an array and return its first byte's place; a ConfigError if the disk refuses."""
        start = self._size
        try:
            self.write(rows)
        except OSError as error:
            raise ConfigError(
                f"{tempfile.tempdir or 'temporary files'}: {self._what} not fit there: "
                f"{error.strerror or error}; set TMPDIR to another folder, or leave them out "
                f"({self._option})"
            ) from error
        return start

    def write(self, rows: NDArray[Any]) -> None:
        if self._file is None:
            self._file = file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long
            weakref.finalize(self, file.close)
        left = np.ascontiguousarray(rows).view(np.uint8).data
        self._size += len(left)
        while left:  # an unbuffered file may take less than all
            left = left[self._file.write(left) :]

    def __getstate__(self) -> dict[str, Any]:
        """Return a state to pickle or copy, with the content of the file in it."""
        return {**vars(self), "_file": self.read(0, np.dtype(np.uint8), self._size)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _file=None, _size=0)
        if len(state["_file"]):
            self.append(state["_file"])

    def read(self, start: int, kind: np.dtype[Any], count: int) -> NDArray[Any]:
        """Return `count` elements of type `kind`, from the byte `start` on."""
        if not count:
            return np.zeros(0, dtype=kind)
        assert self._file is not None
        self._file.seek(start)
        rows: NDArray[Any] = np.fromfile(self._file, dtype=kind, count=count)
        self._file.seek(0, 2)  # where the next array goes
        assert len(rows) == count
        return rows


STEPS_NOT_KEPT = "the steps of this run were not kept; simulate(..., keeps_steps=True) keeps them"
"""Error if the steps of a run that did not keep them are asked for."""


def record_type(*columns: tuple[str, str]) -> np.dtype[np.void]:
    """Return a structured type, given (type, names of columns separated by blanks) in order."""
    return np.dtype([(name, kind) for kind, names in columns for name in names.split()])


STEP_FIELDS = record_type(
    ("<f8", "scheduled_at started_at ended_at target_time draft_time overhead_time"),
    ("<i8", "context_tokens"),
    ("<i4", "batched_tokens prefill_tokens num_requests num_running num_waiting free_blocks"),
    ("<i4", "preemptions drafts draft_tokens accepted_tokens output_tokens deliveries"),
    ("<f4", "asked_draft_len alpha_estimate"),
)
"""Columns of the steps table; times in seconds. `drafts` counts the sequences with drafts to
verify; like vLLM's counters it leaves out sequences that had ended before the step came back.
`asked_draft_len` is the mean draft length that the drafter was run for at the step's end,
`alpha_estimate` the policy's estimate of alpha at that time, NaN if it has none."""

MAX_IN_MEMORY = 32 * 1024  # steps, of all replicas together; 3.6 MiB

_Segment = tuple[int, int]  # steps of one replica in the file: number of the first, and how many


class StepLog:
    """The steps of all replicas of a run; beyond `max_in_memory` steps, in a temporary file."""

    def __init__(self, num_replicas: int, max_in_memory: int = MAX_IN_MEMORY) -> None:
        self._max_in_memory = max_in_memory
        self._chunks: list[list[NDArray[np.void]]] = [[] for _ in range(num_replicas)]
        self._num_in_memory = 0
        self._segments: list[list[_Segment]] = [[] for _ in range(num_replicas)]
        self._num_in_file = 0
        self._file = ArrayFile("the steps do", "--no-steps")

    def __len__(self) -> int:
        return self._num_in_file + self._num_in_memory

    def add(self, replica: int, rows: NDArray[np.void]) -> None:
        """Append a copy of a replica's steps (`STEP_FIELDS`); a ConfigError if the disk refuses."""
        self._chunks[replica].append(rows[list(STEP_FIELDS.names or ())].astype(STEP_FIELDS))
        self._num_in_memory += len(rows)
        if self._num_in_memory > self._max_in_memory:
            self._spill()

    def _spill(self) -> None:
        for segments, chunks in zip(self._segments, self._chunks, strict=True):
            count = sum(map(len, chunks))
            if not count:
                continue
            for chunk in chunks:
                self._file.append(chunk)
            segments.append((self._num_in_file, count))
            self._num_in_file += count
            chunks.clear()
        self._num_in_memory = 0

    def of_replica(self, replica: int) -> NDArray[np.void]:
        """Return all steps of a replica, structured, `STEP_FIELDS`, in order."""
        pieces = [*self._pieces(replica, len(self) + 1), np.zeros(0, dtype=STEP_FIELDS)]
        return np.concatenate(pieces)

    def blocks(self, size: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.void]]]:
        """Yield (replicas, steps), `size` steps at a time; each block overwrites the last one."""
        size = min(size, max(len(self), 1))
        replicas, block = np.empty(size, dtype=np.int32), np.empty(size, dtype=STEP_FIELDS)
        filled = 0
        for replica in range(len(self._chunks)):
            for piece in self._pieces(replica, size):
                taken = 0
                while taken < len(piece):
                    part = piece[taken : taken + size - filled]
                    block[filled : filled + len(part)] = part
                    replicas[filled : filled + len(part)] = replica
                    filled, taken = filled + len(part), taken + len(part)
                    if filled == size:
                        yield replicas, block
                        filled = 0
        if filled or not len(self):
            yield replicas[:filled], block[:filled]

    def _pieces(self, replica: int, most: int) -> Iterator[NDArray[np.void]]:
        """Yield the steps of a replica in order, at most `most` at a time from the file."""
        for start, count in self._segments[replica]:
            for offset in range(0, count, most):
                place = (start + offset) * STEP_FIELDS.itemsize
                yield self._file.read(place, STEP_FIELDS, min(most, count - offset))
        yield from self._chunks[replica]


_COLUMNS = {"at": np.float64, "lens": np.uint8, "drafted": np.uint8, "accepted": np.uint8}


class EveryDelivery(Protocol):
    """The deliveries of a run."""

    def column(self, name: str, counts: NDArray[np.integer], first: int = 0) -> NDArray[Any]:
        """Return one column of `Deliveries` for consecutive requests, end to end.

        Args:
            counts: Number of deliveries of each of these requests.
            first: Index of the first of these requests.
        """


@dataclass(frozen=True)
class Deliveries:
    """Every delivery of some requests, request after request; the engine writes into the arrays.

    Those of request r begin at ``starts[r]``; their number is a column of the requests table.
    """

    starts: Ints  # shape (n + 1,)
    at: NDArray[np.float64]  # time of each delivery, seconds
    lens: NDArray[np.uint8]  # tokens of each delivery
    drafted: NDArray[np.uint8]  # draft tokens verified for each delivery
    accepted: NDArray[np.uint8]  # draft tokens accepted for each delivery

    @classmethod
    def room_for(cls, output_lens: NDArray[np.integer]) -> "Deliveries":
        """Return arrays with room for one delivery per token; unused room costs no memory."""
        starts = _starts(output_lens)
        return cls(starts, *(np.zeros(starts[-1], dtype=kind) for kind in _COLUMNS.values()))

    def column(self, name: str, counts: NDArray[np.integer], first: int = 0) -> NDArray[Any]:
        firsts = self.starts[first : first + len(counts)]
        column: NDArray[Any] = getattr(self, name)[_places(firsts, counts)]
        return column

    def packed(self, counts: NDArray[np.integer]) -> "Deliveries":
        """Return a copy without unused room; `counts` are the deliveries of each request."""
        return Deliveries(_starts(counts), *(self.column(name, counts) for name in _COLUMNS))


class _Part(NamedTuple):
    requests: Ints  # in ascending order
    starts: Ints  # as in `Deliveries`
    offsets: dict[str, int]  # byte at which each of its columns begins in the file


class DeliveryFile:
    """The deliveries of a run whose cells end one after another, in a temporary file."""

    def __init__(self) -> None:
        self._file = ArrayFile("the times of tokens do", "--no-details")
        self._parts: list[_Part] = []

    def add(self, requests: Ints, packed: Deliveries) -> None:
        """Append the deliveries of some requests, ascending; a ConfigError if the disk refuses."""
        offsets = {name: self._file.append(getattr(packed, name)) for name in _COLUMNS}
        self._parts.append(_Part(requests, packed.starts, offsets))

    def column(self, name: str, counts: NDArray[np.integer], first: int = 0) -> NDArray[Any]:
        starts, kind = _starts(counts), np.dtype(_COLUMNS[name])
        column = np.empty(starts[-1], dtype=kind)
        for part in self._parts:
            low, high = np.searchsorted(part.requests, (first, first + len(counts)))
            mine, theirs = part.requests[low:high] - first, part.starts[low : high + 1]
            start, num = part.offsets[name] + theirs[0] * kind.itemsize, theirs[-1] - theirs[0]
            places = _places(starts[mine], np.diff(theirs))
            column[places] = self._file.read(start, kind, num)
        return column


def _starts(counts: NDArray[np.integer]) -> Ints:
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _places(firsts: Ints, counts: NDArray[np.integer]) -> Ints:
    """Return the `counts[i]` consecutive places from each ``firsts[i]`` on, end to end."""
    starts = _starts(counts)
    return np.arange(starts[-1]) + np.repeat(firsts - starts[:-1], counts)


REQUEST_FIELDS = record_type(
    ("<i8", "request"),
    ("<f8", "arrived_at scheduled_at ended_at"),
    ("<i4", "prompt_len output_len cached_len preemptions requeues"),
    ("<f8", "first_token_at"),
    ("<i4", "deliveries drafts draft_tokens accepted_tokens"),
)
"""Columns of the requests that ended at a replica; times in seconds, lengths in tokens, the rest
counts. `cached_len`: prefix-cache hit at the first admission. `requeues`: how often a replica
failed while it had the request; counts from `deliveries` on are summed over its replicas."""

GAP_FIELDS = np.dtype([("value", "<f8"), ("tokens", "<i4"), ("count", "<i4")])
"""Gaps between two consecutive deliveries of a request (vLLM's ITL), seconds; tokens delivered at
the end of the gap; and how many deliveries share both. All sequences of a step share its end, so
there are about as many rows as steps."""

SECOND_FIELDS = np.dtype([("second", "<i8"), ("tokens", "<i8")])
"""Whole seconds since the first arrival of the run, and the output tokens of the steps that ended
in each. Seconds in which no step ended are absent; one may occur twice, in consecutive chunks."""

TOTAL_FIELDS = record_type(
    ("<i8", "steps deliveries output_tokens num_requests"),
    ("<f8", "target_time draft_time overhead_time drafter_time"),
    ("<i8", "asked_tokens context_tokens batched_tokens beyond_context beyond_batched let_go"),
)
"""Sums over all steps, times in seconds; `context_tokens` and `batched_tokens` are instead the
largest of any step. `drafter_time` is how long drafters worked, of which `draft_time` made steps
longer; `asked_tokens` the tokens that they drafted. `beyond_context` and `beyond_batched` count the
steps beyond the profile's valid range; `let_go` counts the sequences that the policy withdrew from
the drafter."""


class Share(NamedTuple):
    """The records of one replica as arrays, to be sent from process to process."""

    totals: NDArray[np.void]
    outcomes: NDArray[np.int64]
    requests: NDArray[np.void]
    gaps: tuple[NDArray[np.void], ...]
    seconds: NDArray[np.void]
    steps: NDArray[np.void] | None


class ReplicaRecords:
    """What one replica has recorded. Chunks are copied, because the engine reuses its buffers.

    Args:
        max_draft_len: Longest draft that can occur, tokens.
        step_log: The steps of all replicas of the run; None to keep no step.
        delays: See `delays`.
    """

    def __init__(
        self,
        max_draft_len: int,
        step_log: StepLog | None = None,
        replica: int = 0,
        delays: NDArray[np.float64] | None = None,
    ) -> None:
        self.totals: NDArray[np.void] = np.zeros(1, dtype=TOTAL_FIELDS)
        """One record, `TOTAL_FIELDS`, which the engine adds to in place."""
        width = max_draft_len + 1
        self.outcomes: NDArray[np.int64] = np.zeros((width, width), dtype=np.int64)
        """How many drafts of length i > 0 had an accepted length of j; added to in place."""
        self.numbers: NDArray[np.int64] | None = None
        """Index in the run of each request that the engine numbers from 0; None if equal."""
        self.step_log = step_log
        self._replica = replica
        self.delays = delays
        """Time of each request from the client to the engine, seconds, by the engine's numbers;
        None if it is 0. Recorded arrivals are those at the client."""
        self._requests: list[NDArray[np.void]] = []
        self._gaps: list[NDArray[np.void]] = []
        self._seconds: list[NDArray[np.void]] = []

    def add_steps(self, rows: NDArray[np.void]) -> None:
        """Append steps, in the order in which they ended, unless steps are not kept."""
        if self.step_log is not None:
            self.step_log.add(self._replica, rows)

    def add_requests(self, rows: NDArray[np.void]) -> None:
        """Append requests (`REQUEST_FIELDS`), in the order in which they ended here."""
        rows = rows.copy()
        self._to_clients(rows)
        if self.numbers is not None:
            rows["request"] = self.numbers[rows["request"]]
        self._requests.append(rows)

    def _to_clients(self, rows: NDArray[np.void]) -> None:
        """Turn arrivals at the engine into arrivals at the client."""
        if self.delays is not None:
            rows["arrived_at"] -= self.delays[rows["request"]]

    def add_gaps(self, rows: NDArray[np.void]) -> None:
        """Append gaps (`GAP_FIELDS`), in any order."""
        self._gaps.append(rows.copy())

    def add_seconds(self, rows: NDArray[np.void]) -> None:
        self._seconds.append(rows.copy())

    @property
    def keeps_steps(self) -> bool:
        return self.step_log is not None

    @property
    def steps(self) -> NDArray[np.void]:
        """Structured, `STEP_FIELDS`; read from the log each time."""
        if self.step_log is None:
            raise SpecsimError(STEPS_NOT_KEPT)
        return self.step_log.of_replica(self._replica)

    @property
    def requests(self) -> NDArray[np.void]:
        """Structured, `REQUEST_FIELDS`, in the order in which they ended."""
        return _joined(self._requests, REQUEST_FIELDS)

    @property
    def request_chunks(self) -> list[NDArray[np.void]]:
        """Structured, `REQUEST_FIELDS`, in chunks as recorded, also while the run goes on."""
        return self._requests

    @property
    def seconds(self) -> NDArray[np.void]:
        """Structured, `SECOND_FIELDS`."""
        return _joined(self._seconds, SECOND_FIELDS)

    @property
    def gap_chunks(self) -> tuple[NDArray[np.void], ...]:
        """Structured, `GAP_FIELDS`, in chunks as recorded, because there may be many."""
        return tuple(self._gaps)

    def __eq__(self, other: object) -> bool:
        """Return whether all records except steps are equal, bit by bit."""
        return isinstance(other, ReplicaRecords) and self._bits() == other._bits()

    __hash__ = None  # type: ignore[assignment]

    def _bits(self) -> list[bytes]:
        whole = (self.totals, self.outcomes, self.requests, self.seconds)
        gaps = b"".join(chunk.tobytes() for chunk in self.gap_chunks)
        return [*(each.tobytes() for each in whole), gaps]

    def share(self) -> Share:
        steps = self.steps if self.keeps_steps else None
        gaps, seconds = self.gap_chunks, self.seconds
        return Share(self.totals, self.outcomes, self.requests, gaps, seconds, steps)

    def take_over(self, share: Share) -> None:
        self.totals[:], self.outcomes[:] = share.totals, share.outcomes
        self._requests.append(share.requests)
        self._gaps.extend(share.gaps)
        self._seconds.append(share.seconds)
        if share.steps is not None:
            self.add_steps(share.steps)


def _joined(chunks: list[NDArray[np.void]], fields: np.dtype[np.void]) -> NDArray[np.void]:
    if len(chunks) != 1:
        chunks[:] = [np.concatenate(chunks) if chunks else np.zeros(0, dtype=fields)]
    return chunks[0]


def records_of_run(
    num_replicas: int,
    max_draft_len: int,
    *,
    keeps_steps: bool,
    delays: NDArray[np.float64] | None = None,
) -> list[ReplicaRecords]:
    """Return an empty `ReplicaRecords` for each replica of a run."""
    log = StepLog(num_replicas) if keeps_steps else None
    return [ReplicaRecords(max_draft_len, log, number, delays) for number in range(num_replicas)]


class PrefillRecords(ReplicaRecords):
    """Records of one prefill replica, without the token that it samples: no client receives it."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._prefills: list[NDArray[np.void]] = []

    @property
    def request_chunks(self) -> list[NDArray[np.void]]:
        """`REQUEST_FIELDS` of the requests prefilled here, which end in the decode pool."""
        return self._prefills

    def add_requests(self, rows: NDArray[np.void]) -> None:
        """Append requests that were prefilled, in the order in which their prefills ended."""
        rows = rows.copy()
        self._to_clients(rows)
        self._prefills.append(rows)

    def add_seconds(self, rows: NDArray[np.void]) -> None:
        """Drop the tokens, since no client receives them."""

    def add_steps(self, rows: NDArray[np.void]) -> None:
        """Append steps, with their deliveries and output tokens set to 0."""
        rows = rows.copy()
        rows["deliveries"] = rows["output_tokens"] = 0
        super().add_steps(rows)

    def close(self, max_draft_len: int) -> None:
        """Remove sampled tokens from the totals; `max_draft_len` is that of the decode pool."""
        self.totals["deliveries"] = self.totals["output_tokens"] = 0
        self.outcomes = np.zeros((max_draft_len + 1, max_draft_len + 1), dtype=np.int64)


@dataclass(frozen=True)
class PoolTables:
    """What happened to each request before the decode pool had it, by index of the request."""

    prefills: NDArray[np.void]  # structured, `REQUEST_FIELDS`, of the prefill pool
    prefill_replicas: NDArray[np.int32]  # number of the replica in its pool
    transfers: NDArray[np.void]  # structured, `specsim.engine.pools.TRANSFER_FIELDS`
    decode_scheduled_at: NDArray[np.float64]  # when it first ran in the decode pool, seconds

    @classmethod
    def of(
        cls, records: list[PrefillRecords], transfers: NDArray[np.void], requests: NDArray[np.void]
    ) -> "PoolTables":
        """Return the pool tables; the requests table is changed in place to cover both pools.

        Arrival, first step and cached tokens of a request become those of its prefill.
        """
        prefills = np.zeros(len(requests), dtype=REQUEST_FIELDS)
        replicas = np.zeros(len(requests), dtype=np.int32)
        for number, each in enumerate(records):
            for rows in each.request_chunks:
                prefills[rows["request"]] = rows
                replicas[rows["request"]] = number
        tables = cls(prefills, replicas, transfers, requests["scheduled_at"].copy())
        requests["arrived_at"] = prefills["arrived_at"]
        requests["scheduled_at"] = prefills["scheduled_at"]
        requests["cached_len"] = prefills["cached_len"]
        for name in ("preemptions", "requeues"):
            requests[name] += prefills[name]
        return tables

    @property
    def columns(self) -> dict[str, NDArray[np.generic]]:
        return {
            "prefill_replica": self.prefill_replicas,
            **{name: self.transfers[name] for name in self.transfers.dtype.names or ()},
            "decode_scheduled_at": self.decode_scheduled_at,
        }

    @property
    def totals(self) -> dict[str, float]:
        """The fields of summary.json about transfers."""
        transfers = self.transfers
        times = transfers["transfer_ended_at"] - transfers["transfer_began_at"]
        times = times[np.isfinite(times)]
        return {
            "transfers": int(transfers["transfers"].sum()),
            "transferred_tokens": int(transfers["transferred_len"].sum()),
            "prefilled_by_decode": int((transfers["transfers"] == 0).sum()),
            "mean_transfer_ms": float(times.mean() * 1e3) if len(times) else 0.0,
            "mean_prefill_ms": float(
                (transfers["prefilled_at"] - self.prefills["arrived_at"]).mean() * 1e3
            ),
        }
