"""StepLog: the steps of a run, in memory while they are few and in a temporary file afterwards."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from specsim.results.array_file import ArrayFile

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

    @property
    def is_on_disk(self) -> bool:
        return self._file.is_used

    def add(self, replica: int, rows: NDArray[np.void]) -> None:
        """Append a copy of a replica's steps (`STEP_FIELDS`); a ConfigError if that fails."""
        self._chunks[replica].append(rows.copy())
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
