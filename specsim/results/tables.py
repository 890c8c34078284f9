"""RunTables: what all replicas of a run have handed over, put together and indexed by request."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import SpecsimError
from specsim.results.records import REQUEST_FIELDS, TOTAL_FIELDS, Deliveries, ReplicaRecords
from specsim.results.step_log import STEPS_NOT_KEPT, StepLog
from specsim.results.weighted import sorted_gaps

TABLE_FIELDS = np.dtype(
    [
        ("request", "<i8"),
        ("replica", "<i4"),
        ("arrived_at", "<f8"),
        ("scheduled_at", "<f8"),
        ("first_token_at", "<f8"),
        ("ended_at", "<f8"),
        ("prompt_len", "<i4"),
        ("output_len", "<i4"),
        ("cached_len", "<i4"),
        ("preemptions", "<i4"),
        ("requeues", "<i4"),
        ("deliveries", "<i4"),
        ("drafts", "<i4"),
        ("draft_tokens", "<i4"),
        ("accepted_tokens", "<i4"),
    ]
)
"""Columns of the requests table; times in seconds, lengths in tokens, the rest counts."""

_LARGEST = ("context_tokens", "batched_tokens")
"""Totals that are the largest of all replicas, not their sum."""


@dataclass(frozen=True)
class RunTables:
    """What happened, by request, by gap between deliveries and by step; times in seconds."""

    requests: NDArray[np.void]
    """Structured, `TABLE_FIELDS`, one row per request in order of its index."""
    gap_chunks: tuple[NDArray[np.void], ...]
    """Structured, `specsim.results.records.GAP_FIELDS`, as the replicas handed them over."""
    seconds: NDArray[np.void]
    """Structured, `specsim.results.records.SECOND_FIELDS`, replica after replica."""
    totals: np.void
    """One record, `specsim.results.records.TOTAL_FIELDS`, of all replicas."""
    outcomes: NDArray[np.int64]
    """Shape (k + 1, k + 1): how many drafts of length i had an accepted length of j."""
    step_log: StepLog | None
    """None if the steps were not kept."""
    deliveries: Deliveries | None
    """None if they were not kept."""

    @property
    def gaps(self) -> NDArray[np.void]:
        """All of `gap_chunks`, in order of tokens and then of value; sorted anew each time.

        They are needed once, and in a run of millions of steps are the largest table of all.
        """
        return sorted_gaps(self.gap_chunks)

    @property
    def steps(self) -> NDArray[np.void]:
        """Structured, `specsim.results.step_log.STEP_FIELDS`, replica after replica."""
        return self._all_steps[1]

    @property
    def step_replicas(self) -> NDArray[np.int32]:
        """Replica of each step."""
        return self._all_steps[0]

    @cached_property
    def _all_steps(self) -> tuple[NDArray[np.int32], NDArray[np.void]]:
        if self.step_log is None:
            raise SpecsimError(STEPS_NOT_KEPT)
        return next(self.step_log.blocks(len(self.step_log)))


def assemble(replicas: list[ReplicaRecords], deliveries: Deliveries | None = None) -> RunTables:
    """Return the tables of a run."""
    requests = np.zeros(sum(len(r.requests) for r in replicas), dtype=TABLE_FIELDS)
    totals = np.zeros(1, dtype=TOTAL_FIELDS)
    for number, records in enumerate(replicas):
        rows = records.requests["request"]
        for name in REQUEST_FIELDS.names or ():
            requests[name][rows] = records.requests[name]
        requests["replica"][rows] = number
        for name in TOTAL_FIELDS.names or ():
            combine = np.maximum if name in _LARGEST else np.add
            totals[name] = combine(totals[name], records.totals[name])
    return RunTables(
        requests=requests,
        gap_chunks=tuple(chunk for records in replicas for chunk in records.gap_chunks),
        seconds=np.concatenate([records.seconds for records in replicas]),
        totals=totals[0],
        outcomes=np.sum([records.outcomes for records in replicas], axis=0),
        step_log=replicas[0].step_log,
        deliveries=deliveries,
    )
