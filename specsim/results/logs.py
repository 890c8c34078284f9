"""Logs: the steps of a run, and when each request got tokens; in memory, or in a temporary file."""

import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.core.step import Ints


class ArrayFile:
    """A temporary file of arrays, made when it is first needed, which goes with this object.

    Args:
        what: Is stored there, for an error, with its verb: "the steps do".
        option: Leaves that out.
    """

    def __init__(self, what: str, option: str) -> None:
        self._what, self._option = what, option
        self._file: IO[bytes] | None = None
        self._size = 0

    def append(self, rows: NDArray[Any]) -> int:
        """Write an array; return where it begins, bytes. A ConfigError if that fails."""
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
        """Return what is pickled and copied: a file of its own with the same in it."""
        return {**vars(self), "_file": self.read(0, np.dtype(np.uint8), self._size)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _file=None, _size=0)
        if len(state["_file"]):
            self.append(state["_file"])

    def read(self, start: int, kind: np.dtype[Any], count: int) -> NDArray[Any]:
        """Return so many elements from some byte on."""
        if not count:
            return np.zeros(0, dtype=kind)
        assert self._file is not None
        self._file.seek(start)
        rows: NDArray[Any] = np.fromfile(self._file, dtype=kind, count=count)
        self._file.seek(0, 2)  # where the next array goes
        assert len(rows) == count
        return rows


STEPS_NOT_KEPT = "the steps of this run were not kept; simulate(..., keeps_steps=True) keeps them"
"""Error of whoever asks for them all the same."""


def record_type(*columns: tuple[str, str]) -> np.dtype[np.void]:
    """Return a structured type with some columns of a type each, in order: (type, names)."""
    return np.dtype([(name, kind) for kind, names in columns for name in names.split()])


STEP_FIELDS = record_type(
    ("<f8", "scheduled_at started_at ended_at target_time draft_time overhead_time"),
    ("<i8", "context_tokens"),
    ("<i4", "batched_tokens prefill_tokens num_requests num_running num_waiting free_blocks"),
    ("<i4", "preemptions drafts draft_tokens accepted_tokens output_tokens deliveries"),
    ("<f4", "asked_draft_len alpha_estimate"),
)
"""Columns of the steps table; times in seconds. `drafts` counts the sequences that had drafts to
verify; like vLLM's counters it leaves out those that had ended before the step came back.
`asked_draft_len` is the mean draft length that the drafter was run for at the step's end,
`alpha_estimate` the acceptance rate that the policy then believed in, NaN if it has no belief."""

MAX_IN_MEMORY = 32 * 1024  # steps; 3.6 MiB, however many there will be

_Segment = tuple[int, int]  # steps of one replica in the file: number of the first, and how many


class StepLog:
    """The steps of all replicas of a run; beyond `max_in_memory`, in a file that goes with it."""

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
        """Append a copy of `STEP_FIELDS` of a replica's steps; a ConfigError if that fails."""
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
        """Return all steps of a replica (`STEP_FIELDS`), in order."""
        pieces = [*self._pieces(replica, len(self) + 1), np.zeros(0, dtype=STEP_FIELDS)]
        return np.concatenate(pieces)

    def blocks(self, size: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.void]]]:
        """Yield all steps and their replicas, `size` at a time; each block overwrites the last."""
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
        """Yield the steps of a replica in order, from the file so many at a time at most."""
        for start, count in self._segments[replica]:
            for offset in range(0, count, most):
                place = (start + offset) * STEP_FIELDS.itemsize
                yield self._file.read(place, STEP_FIELDS, min(most, count - offset))
        yield from self._chunks[replica]


_COLUMNS = {"at": np.float64, "lens": np.uint8, "drafted": np.uint8, "accepted": np.uint8}


class EveryDelivery(Protocol):
    """The deliveries of a run."""

    def column(self, name: str, counts: NDArray[np.integer], first: int = 0) -> NDArray[Any]:
        """Return one of the columns of `Deliveries`, of consecutive requests, end to end.

        Args:
            counts: How many deliveries each of them has.
            first: The first of them.
        """


@dataclass(frozen=True)
class Deliveries:
    """Every delivery of some requests, one request after another; the engine writes into them.

    Those of request r begin at ``starts[r]``; how many there are stands in the requests table.
    """

    starts: Ints  # shape (n + 1,)
    at: NDArray[np.float64]  # time of each delivery, seconds
    lens: NDArray[np.uint8]  # tokens of each delivery
    drafted: NDArray[np.uint8]  # drafts verified for each delivery
    accepted: NDArray[np.uint8]  # drafts accepted for each delivery

    @classmethod
    def room_for(cls, output_lens: NDArray[np.integer]) -> "Deliveries":
        """Return room for one delivery per output token; what is left over costs no memory."""
        starts = _starts(output_lens)
        return cls(starts, *(np.zeros(starts[-1], dtype=kind) for kind in _COLUMNS.values()))

    def column(self, name: str, counts: NDArray[np.integer], first: int = 0) -> NDArray[Any]:
        firsts = self.starts[first : first + len(counts)]
        column: NDArray[Any] = getattr(self, name)[_places(firsts, counts)]
        return column

    def packed(self, counts: NDArray[np.integer]) -> "Deliveries":
        """Return them without the room that is left over."""
        return Deliveries(_starts(counts), *(self.column(name, counts) for name in _COLUMNS))


class _Part(NamedTuple):
    requests: Ints  # in ascending order
    starts: Ints  # as in `Deliveries`
    offsets: dict[str, int]  # of its columns in the file, bytes


class DeliveryFile:
    """The deliveries of a run of which some requests end after others; few are ever in memory."""

    def __init__(self) -> None:
        self._file = ArrayFile("the times of tokens do", "--no-details")
        self._parts: list[_Part] = []

    def add(self, requests: Ints, packed: Deliveries) -> None:
        """Take in those of some requests, in ascending order; a ConfigError if that fails."""
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
    """Return the places from each of `firsts` on, so many of each."""
    starts = _starts(counts)
    return np.arange(starts[-1]) + np.repeat(firsts - starts[:-1], counts)
