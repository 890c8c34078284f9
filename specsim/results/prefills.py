"""What the replicas of a prefill pool hand over, and what of it belongs to the answers' tables."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.results.records import REQUEST_FIELDS, ReplicaRecords


class PrefillRecords(ReplicaRecords):
    """What one prefill replica has handed over: the token that it samples is nobody's answer."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        self._prefills: list[NDArray[np.void]] = []

    @property
    def request_chunks(self) -> list[NDArray[np.void]]:
        """`REQUEST_FIELDS` of the requests that were prefilled here, none of which ended here."""
        return self._prefills

    def add_requests(self, rows: NDArray[np.void]) -> None:
        """Take in the requests that were prefilled, in the order in which that ended."""
        rows = rows.copy()
        self.as_sent(rows)
        self._prefills.append(rows)

    def add_seconds(self, rows: NDArray[np.void]) -> None:
        """Leave out tokens that nobody gets."""

    def close(self, max_draft_len: int) -> None:
        """Take out of the totals what nobody gets; nothing comes any more.

        Args:
            max_draft_len: Of the decode pool, in tokens.
        """
        self.totals["deliveries"] = self.totals["output_tokens"] = 0
        self.outcomes = np.zeros((max_draft_len + 1, max_draft_len + 1), dtype=np.int64)


@dataclass(frozen=True)
class PoolTables:
    """What happened to each request before the decode pool had it; by index of the request."""

    prefills: NDArray[np.void]
    """Structured, `REQUEST_FIELDS`, of the prefill pool."""
    prefill_replicas: NDArray[np.int32]
    """Number of the replica in its pool."""
    transfers: NDArray[np.void]
    """Structured, `specsim.engine.pools.TRANSFER_FIELDS`."""
    decode_scheduled_at: NDArray[np.float64]
    """When it first ran in the decode pool, seconds."""

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
        """Columns of requests.parquet."""
        names = self.transfers.dtype.names or ()
        return {
            "prefill_replica": self.prefill_replicas,
            **{name: self.transfers[name] for name in names},
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
