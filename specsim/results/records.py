"""What an engine hands over while it runs: rows in chunks, and sums that it adds to in place.

No row is computed here and none is looked at. What is not handed over cannot be known afterwards,
so the engine counts: deliveries per request, gaps per step, tokens per second, and the totals.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import SpecsimError
from specsim.results.step_log import STEPS_NOT_KEPT, StepLog

FrontTimes = float | NDArray[np.float64]
"""What requests take to reach the engine, seconds: all the same, or shape (n,)."""

REQUEST_FIELDS = np.dtype(
    [
        ("request", "<i8"),
        ("arrived_at", "<f8"),
        ("scheduled_at", "<f8"),
        ("ended_at", "<f8"),
        ("prompt_len", "<i4"),
        ("output_len", "<i4"),
        ("cached_len", "<i4"),
        ("preemptions", "<i4"),
        ("requeues", "<i4"),
        ("first_token_at", "<f8"),
        ("deliveries", "<i4"),
        ("drafts", "<i4"),
        ("draft_tokens", "<i4"),
        ("accepted_tokens", "<i4"),
    ]
)
"""Columns of the requests that ended at a replica; times in seconds, lengths in tokens, the rest
counts. `cached_len`: prefix-cache hit of the first admission. `requeues`: replicas that failed
while they had it; the counts from `deliveries` on are of all replicas that had it."""

GAP_FIELDS = np.dtype([("value", "<f8"), ("tokens", "<i4"), ("count", "<i4")])
"""Gaps between two consecutive deliveries of a request (vLLM's ITL), seconds; how many tokens were
delivered at their end; and how many deliveries share both. All sequences of a step share its end,
so there are about as many rows as steps."""

SECOND_FIELDS = np.dtype([("second", "<i8"), ("tokens", "<i8")])
"""Whole seconds since the first arrival of the run, and the output tokens of the steps that ended
in them. Those in which no step ended are absent; one may occur twice, at the seam of two chunks."""

TOTAL_FIELDS = np.dtype(
    [
        ("steps", "<i8"),
        ("deliveries", "<i8"),
        ("output_tokens", "<i8"),
        ("num_requests", "<i8"),
        ("target_time", "<f8"),
        ("draft_time", "<f8"),
        ("overhead_time", "<f8"),
        ("context_tokens", "<i8"),
        ("batched_tokens", "<i8"),
        ("beyond_context", "<i8"),
        ("beyond_batched", "<i8"),
    ]
)
"""Sums over all steps, times in seconds, except `context_tokens` and `batched_tokens`: the largest
of any step. `beyond_context` and `beyond_batched` count the steps that exceed what the profile was
fitted on."""


_AT_ONCE = 1024
"""Requests whose deliveries are taken over at a time."""


class Share(NamedTuple):
    """What one replica has recorded, as arrays, which can go from process to process."""

    totals: NDArray[np.void]
    outcomes: NDArray[np.int64]
    requests: NDArray[np.void]
    gaps: tuple[NDArray[np.void], ...]
    seconds: NDArray[np.void]
    steps: NDArray[np.void] | None


class ReplicaRecords:
    """What one replica has handed over.

    Chunks are copied: the engine reuses its buffers.

    Args:
        max_draft_len: Longest draft that can occur, in tokens.
        step_log: Of all replicas of the run; without it no step is kept.
        replica: Its number.
    """

    def __init__(
        self,
        max_draft_len: int,
        step_log: StepLog | None = None,
        replica: int = 0,
        front_times: FrontTimes = 0.0,
    ) -> None:
        self.totals: NDArray[np.void] = np.zeros(1, dtype=TOTAL_FIELDS)
        """One record, to be added to in place."""
        width = max_draft_len + 1
        self.outcomes: NDArray[np.int64] = np.zeros((width, width), dtype=np.int64)
        """How many drafts of length i > 0 had an accepted length of j; to be added to in place."""
        self.numbers: NDArray[np.int64] | None = None
        """What the run calls the requests that the engine numbers from 0; None if the same."""
        self.step_log = step_log
        self._replica = replica
        self.front_times = front_times
        """By the number that the engine gives a request."""
        self._requests: list[NDArray[np.void]] = []
        self._gaps: list[NDArray[np.void]] = []
        self._seconds: list[NDArray[np.void]] = []

    def add_steps(self, rows: NDArray[np.void]) -> None:
        """Take in `STEP_FIELDS`, in the order in which steps ended; dropped if not wanted."""
        if self.step_log is not None:
            self.step_log.add(self._replica, rows)

    def add_requests(self, rows: NDArray[np.void]) -> None:
        """Take in `REQUEST_FIELDS`, in the order in which requests ended here."""
        rows = rows.copy()
        self.as_sent(rows)
        if self.numbers is not None:
            rows["request"] = self.numbers[rows["request"]]
        self._requests.append(rows)

    def as_sent(self, rows: NDArray[np.void]) -> None:
        """Let requests arrive when clients send them, in place."""
        times = self.front_times
        rows["arrived_at"] -= times[rows["request"]] if isinstance(times, np.ndarray) else times

    def add_gaps(self, rows: NDArray[np.void]) -> None:
        """Take in `GAP_FIELDS`, in any order."""
        self._gaps.append(rows.copy())

    def add_seconds(self, rows: NDArray[np.void]) -> None:
        """Take in `SECOND_FIELDS`."""
        self._seconds.append(rows.copy())

    @property
    def keeps_steps(self) -> bool:
        """Whether anybody wants the steps."""
        return self.step_log is not None

    @property
    def steps(self) -> NDArray[np.void]:
        """Structured, `STEP_FIELDS`; read anew each time."""
        if self.step_log is None:
            raise SpecsimError(STEPS_NOT_KEPT)
        return self.step_log.of_replica(self._replica)

    @property
    def requests(self) -> NDArray[np.void]:
        """Structured, `REQUEST_FIELDS`, in the order in which they ended."""
        return _joined(self._requests, REQUEST_FIELDS)

    @property
    def request_chunks(self) -> list[NDArray[np.void]]:
        """Structured, `REQUEST_FIELDS`: as they were handed over, while the run goes on."""
        return self._requests

    @property
    def seconds(self) -> NDArray[np.void]:
        """Structured, `SECOND_FIELDS`."""
        return _joined(self._seconds, SECOND_FIELDS)

    @property
    def gap_chunks(self) -> tuple[NDArray[np.void], ...]:
        """Structured, `GAP_FIELDS`: as they were handed over, for they may be many."""
        return tuple(self._gaps)

    def share(self) -> Share:
        """Return everything, to be handed to other records."""
        steps = self.steps if self.keeps_steps else None
        gaps, seconds = self.gap_chunks, self.seconds
        return Share(self.totals, self.outcomes, self.requests, gaps, seconds, steps)

    def take_over(self, share: Share) -> None:
        """Take in what the same replica has recorded elsewhere."""
        self.totals[:], self.outcomes[:] = share.totals, share.outcomes
        self._requests.append(share.requests)
        self._gaps.extend(share.gaps)
        self._seconds.append(share.seconds)
        if share.steps is not None:
            self.add_steps(share.steps)


def _joined(chunks: list[NDArray[np.void]], fields: np.dtype[np.void]) -> NDArray[np.void]:
    """Return chunks as one, which takes their place."""
    if len(chunks) != 1:
        chunks[:] = [np.concatenate(chunks) if chunks else np.zeros(0, dtype=fields)]
    return chunks[0]


def records_of_run(
    num_replicas: int, max_draft_len: int, *, keeps_steps: bool, front_times: FrontTimes = 0.0
) -> list[ReplicaRecords]:
    """Return the records that the replicas of a run are to fill; see `ReplicaRecords`."""
    log = StepLog(num_replicas) if keeps_steps else None
    return [
        ReplicaRecords(max_draft_len, log, number, front_times) for number in range(num_replicas)
    ]


@dataclass(frozen=True)
class Deliveries:
    """Every delivery of a run, request after request; the engine writes into the arrays.

    Those of request r begin at ``starts[r]``; how many there are stands in the requests table.
    """

    starts: NDArray[np.int64]
    """Shape (n + 1,)."""
    at: NDArray[np.float64]
    """Time of each delivery, seconds."""
    lens: NDArray[np.uint8]
    """Tokens of each delivery."""
    drafted: NDArray[np.uint8]
    """Drafts verified for each delivery."""
    accepted: NDArray[np.uint8]
    """Drafts accepted for each delivery."""

    @classmethod
    def room_for(cls, output_lens: NDArray[np.integer]) -> "Deliveries":
        """Return room for one delivery per output token; what is left over costs no memory."""
        starts = np.zeros(len(output_lens) + 1, dtype=np.int64)
        np.cumsum(output_lens, out=starts[1:])
        lens, drafted, accepted = (np.zeros(starts[-1], dtype=np.uint8) for _ in range(3))
        return cls(starts, np.zeros(starts[-1]), lens, drafted, accepted)

    def places(self, counts: NDArray[np.integer], first: int = 0) -> NDArray[np.int64]:
        """Return where the deliveries of consecutive requests stand in the arrays.

        Args:
            counts: How many each of them has.
            first: Index of the first request.
        """
        ends = np.cumsum(counts, dtype=np.int64)
        shifts = self.starts[first : first + len(counts)] - (ends - counts)
        return np.arange(ends[-1] if len(ends) else 0) + np.repeat(shifts, counts)

    def take_over(self, other: "Deliveries", numbers: NDArray[np.int64]) -> None:
        """Take in those of some requests, which have these indices."""
        for first in range(0, len(numbers), _AT_ONCE):
            starts = other.starts[first : first + _AT_ONCE + 1]
            shifts = self.starts[numbers[first : first + _AT_ONCE]] - starts[:-1]
            theirs = slice(starts[0], starts[-1])
            places = np.arange(starts[0], starts[-1]) + np.repeat(shifts, np.diff(starts))
            for name in ("at", "lens", "drafted", "accepted"):
                getattr(self, name)[places] = getattr(other, name)[theirs]
