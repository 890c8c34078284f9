"""Recording a run: rows are appended while it runs, and nothing is computed.

Rows are packed into byte buffers, so that a hundred thousand requests cost tens of megabytes. Three
tables come out, per replica: steps, deliveries (which request got how many tokens in which step),
and requests.
"""

from array import array
from dataclasses import dataclass
from itertools import compress
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from specsim.engine.engine_step import EngineStep
from specsim.engine.scheduler import Scheduler
from specsim.engine.sequence import Sequence

__all__ = ["REQUEST_FIELDS", "STEP_FIELDS", "Recorder", "ReplicaRecords"]

STEP_FIELDS = np.dtype(
    [
        ("scheduled_at", "<f8"),
        ("started_at", "<f8"),
        ("ended_at", "<f8"),
        ("target_time", "<f8"),
        ("draft_time", "<f8"),
        ("overhead_time", "<f8"),
        ("context_tokens", "<i8"),
        ("batched_tokens", "<i4"),
        ("prefill_tokens", "<i4"),
        ("num_requests", "<i4"),
        ("num_running", "<i4"),
        ("num_waiting", "<i4"),
        ("free_blocks", "<i4"),
        ("preemptions", "<i4"),
        ("drafts", "<i4"),
        ("draft_tokens", "<i4"),
        ("accepted_tokens", "<i4"),
        ("output_tokens", "<i4"),
        ("deliveries", "<i4"),
        ("asked_draft_len", "<f4"),
        ("alpha_estimate", "<f4"),
    ]
)
"""Columns of the steps table; times in seconds. `drafts` counts the sequences that had drafts to
verify; like vLLM's counters it leaves out those that had ended before the step came back.
`asked_draft_len` is the mean draft length that the drafter was run for at the step's end,
`alpha_estimate` the acceptance rate that the policy then believed in, NaN if it has no belief."""

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
    ]
)
"""Columns of the requests table, of the requests that ended at the replica. `cached_len`:
prefix-cache hit of the first admission. `requeues`: replicas that failed while they had it."""

_STEP = Struct("<6dq12i2f")
_REQUEST = Struct("<q3d5i")


@dataclass(frozen=True)
class ReplicaRecords:
    """The tables of one replica."""

    steps: NDArray[np.void]
    """Structured, `STEP_FIELDS`."""
    requests: NDArray[np.void]
    """Structured, `REQUEST_FIELDS`, in the order in which they ended."""
    delivered_to: NDArray[np.int32]
    """Request of each delivery, step by step; ``steps["deliveries"]`` of them per step."""
    delivered_lens: NDArray[np.uint8]
    """Tokens of each delivery."""
    drafted_lens: NDArray[np.uint8]
    """Drafts verified for each delivery; empty without speculation."""
    accepted_lens: NDArray[np.uint8]
    """Drafts accepted for each delivery; empty without speculation."""


class Recorder:
    """Observer of one engine that keeps its rows.

    Parameters
    ----------
    max_draft_len : int, tokens
        Longest draft that can occur.
    """

    def __init__(self, max_draft_len: int) -> None:
        self._steps = bytearray()
        self._requests = bytearray()
        self._delivered_to = array("i")
        self._delivered_lens = array("B")
        self._speculates = max_draft_len > 0
        self._drafted_lens = array("B")
        self._accepted_lens = array("B")

    def scheduled(self, scheduler: Scheduler, step: EngineStep) -> None:
        """Wait: a step is recorded when it has ended."""

    def updated(self, scheduler: Scheduler, step: EngineStep, ended: list[Sequence]) -> None:
        """Append the step, its deliveries and the requests that it ended."""
        plan, load = step.plan, step.load
        if not plan.sequences:
            return
        receivers = [sequence.index for sequence in plan.sequences]
        columns = [receivers, plan.emitted_lens, plan.verified_lens, step.accepted_lens]
        if 0 in plan.emitted_lens:  # mid-prefill, or ended before this step came back
            delivered = list(map(bool, plan.emitted_lens))
            columns = [list(compress(column, delivered)) for column in columns]
        receivers, emitted_lens, draft_lens, accepted_lens = columns
        self._delivered_to.extend(receivers)
        self._delivered_lens.extend(emitted_lens)
        if self._speculates:
            self._drafted_lens.extend(draft_lens)
            self._accepted_lens.extend(accepted_lens)
        asked = step.asked_lens
        self._steps += _STEP.pack(
            step.scheduled_at,
            step.started_at,
            step.ended_at,
            step.target_time,
            step.draft_time,
            step.overhead_time,
            load.context_tokens,
            load.batched_tokens,
            load.prefill_tokens,
            load.num_requests,
            step.num_running,
            step.num_waiting,
            step.free_blocks,
            len(plan.preempted),
            len(draft_lens) - draft_lens.count(0),
            sum(draft_lens),
            sum(accepted_lens),
            sum(emitted_lens),
            len(receivers),
            asked if isinstance(asked, int) else sum(asked) / len(asked),
            step.alpha_estimate,
        )
        for sequence in ended:
            self._add_request(sequence, step.ended_at)

    def _add_request(self, sequence: Sequence, now: float) -> None:
        self._requests += _REQUEST.pack(
            sequence.index,
            sequence.arrived_at,
            sequence.first_scheduled_at,
            now,
            sequence.prompt_len,
            sequence.output_len,
            sequence.cached_lens[0],
            sequence.num_preemptions,
            sequence.num_requeues,
        )

    def tables(self) -> ReplicaRecords:
        """Return everything recorded; nothing can be recorded afterwards."""
        return ReplicaRecords(
            steps=np.frombuffer(self._steps, dtype=STEP_FIELDS),
            requests=np.frombuffer(self._requests, dtype=REQUEST_FIELDS),
            delivered_to=np.frombuffer(self._delivered_to, dtype=np.int32),
            delivered_lens=np.frombuffer(self._delivered_lens, dtype=np.uint8),
            drafted_lens=np.frombuffer(self._drafted_lens, dtype=np.uint8),
            accepted_lens=np.frombuffer(self._accepted_lens, dtype=np.uint8),
        )
