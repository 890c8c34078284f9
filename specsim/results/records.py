"""What an engine hands over while it runs: rows in chunks, and sums that it adds to in place.

No row is computed here and none is looked at. What is not handed over cannot be known afterwards,
so the engine counts: deliveries per request, gaps per step, tokens per second, and the totals.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import SpecsimError
from specsim.results.logs import STEPS_NOT_KEPT, StepLog, record_type

REQUEST_FIELDS = record_type(
    ("<i8", "request"),
    ("<f8", "arrived_at scheduled_at ended_at"),
    ("<i4", "prompt_len output_len cached_len preemptions requeues"),
    ("<f8", "first_token_at"),
    ("<i4", "deliveries drafts draft_tokens accepted_tokens"),
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

TOTAL_FIELDS = record_type(
    ("<i8", "steps deliveries output_tokens num_requests"),
    ("<f8", "target_time draft_time overhead_time drafter_time"),
    ("<i8", "asked_tokens context_tokens batched_tokens beyond_context beyond_batched let_go"),
)
"""Sums over all steps, times in seconds, except `context_tokens` and `batched_tokens`: the largest
of any step. `drafter_time` is how long drafters worked, of which `draft_time` made steps longer;
`asked_tokens` is what they drafted. `beyond_context` and `beyond_batched` count the steps that
exceed what the profile was fitted on; `let_go` counts the sequences that the policy let the drafter
go of."""


class Share(NamedTuple):
    """What one replica has recorded, as arrays, which can go from process to process."""

    totals: NDArray[np.void]
    outcomes: NDArray[np.int64]
    requests: NDArray[np.void]
    gaps: tuple[NDArray[np.void], ...]
    seconds: NDArray[np.void]
    steps: NDArray[np.void] | None


class ReplicaRecords:
    """What one replica has handed over. Chunks are copied: the engine reuses its buffers.

    Args:
        max_draft_len: Longest draft that can occur, in tokens.
        step_log: Of all replicas of the run; without it no step is kept.
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
        """One record, to be added to in place."""
        width = max_draft_len + 1
        self.outcomes: NDArray[np.int64] = np.zeros((width, width), dtype=np.int64)
        """How many drafts of length i > 0 had an accepted length of j; to be added to in place."""
        self.numbers: NDArray[np.int64] | None = None
        """What the run calls the requests that the engine numbers from 0; None if the same."""
        self.step_log = step_log
        self._replica = replica
        self.delays = delays
        """What requests take to reach the engine, as the engine numbers them, seconds; None if
        nothing. Of clients, a request arrives when they send it."""
        self._requests: list[NDArray[np.void]] = []
        self._gaps: list[NDArray[np.void]] = []
        self._seconds: list[NDArray[np.void]] = []

    def add_steps(self, rows: NDArray[np.void]) -> None:
        """Take in steps, in the order in which they ended; dropped if not wanted."""
        if self.step_log is not None:
            self.step_log.add(self._replica, rows)

    def add_requests(self, rows: NDArray[np.void]) -> None:
        """Take in `REQUEST_FIELDS`, in the order in which requests ended here."""
        rows = rows.copy()
        self._to_clients(rows)
        if self.numbers is not None:
            rows["request"] = self.numbers[rows["request"]]
        self._requests.append(rows)

    def _to_clients(self, rows: NDArray[np.void]) -> None:
        """Turn arrivals at the engine into those that clients know of."""
        if self.delays is not None:
            rows["arrived_at"] -= self.delays[rows["request"]]

    def add_gaps(self, rows: NDArray[np.void]) -> None:
        """Take in `GAP_FIELDS`, in any order."""
        self._gaps.append(rows.copy())

    def add_seconds(self, rows: NDArray[np.void]) -> None:
        self._seconds.append(rows.copy())

    @property
    def keeps_steps(self) -> bool:
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

    def __eq__(self, other: object) -> bool:
        """Return whether another has recorded the same but for steps, bit by bit."""
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
    """Return the records that the replicas of a run are to fill; see `ReplicaRecords`."""
    log = StepLog(num_replicas) if keeps_steps else None
    return [ReplicaRecords(max_draft_len, log, number, delays) for number in range(num_replicas)]


class PrefillRecords(ReplicaRecords):
    """What one prefill replica has handed over: the token that it samples is nobody's answer."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._prefills: list[NDArray[np.void]] = []

    @property
    def request_chunks(self) -> list[NDArray[np.void]]:
        """`REQUEST_FIELDS` of the requests that were prefilled here, none of which ended here."""
        return self._prefills

    def add_requests(self, rows: NDArray[np.void]) -> None:
        """Take in the requests that were prefilled, in the order in which that ended."""
        rows = rows.copy()
        self._to_clients(rows)
        self._prefills.append(rows)

    def add_seconds(self, rows: NDArray[np.void]) -> None:
        """Leave out tokens that nobody gets."""

    def add_steps(self, rows: NDArray[np.void]) -> None:
        """Take in steps, none of which delivered anything to anybody."""
        rows = rows.copy()
        rows["deliveries"] = rows["output_tokens"] = 0
        super().add_steps(rows)

    def close(self, max_draft_len: int) -> None:
        """Take out of the totals what nobody gets; `max_draft_len` is that of the decode pool."""
        self.totals["deliveries"] = self.totals["output_tokens"] = 0
        self.outcomes = np.zeros((max_draft_len + 1, max_draft_len + 1), dtype=np.int64)


@dataclass(frozen=True)
class PoolTables:
    """What happened to each request before the decode pool had it; by index of the request."""

    prefills: NDArray[np.void]  # structured, `REQUEST_FIELDS`, of the prefill pool
    prefill_replicas: NDArray[np.int32]  # number of the replica in its pool
    transfers: NDArray[np.void]  # structured, `specsim.engine.pools.TRANSFER_FIELDS`
    decode_scheduled_at: NDArray[np.float64]  # when it first ran in the decode pool, seconds

    @classmethod
    def of(
        cls, records: list[PrefillRecords], transfers: NDArray[np.void], requests: NDArray[np.void]
    ) -> "PoolTables":
        """Return the tables of a run; the requests table becomes that of both pools.

        A request has arrived, and has first been scheduled, where it was prefilled; the tokens that
        it found cached are those that nobody had to compute.
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
        """What summary.json tells of the transfers."""
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
