"""RunTables: the tables of all replicas of a run, put together and indexed by request."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.results.records import ReplicaRecords

__all__ = ["TABLE_FIELDS", "RunTables", "assemble"]

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


@dataclass(frozen=True)
class RunTables:
    """What happened, by request, by delivery and by step; times in seconds."""

    requests: NDArray[np.void]
    """Structured, `TABLE_FIELDS`, one row per request in order of its index."""
    gaps: NDArray[np.float64]
    """Time between consecutive deliveries of a request (vLLM's ITL), request after request:
    ``requests["deliveries"] - 1`` of them each."""
    gap_lens: NDArray[np.uint8]
    """Tokens delivered at the end of each gap."""
    steps: NDArray[np.void]
    """Structured, `specsim.results.records.STEP_FIELDS`, replica after replica."""
    step_replicas: NDArray[np.int32]
    """Replica of each step."""
    outcomes: NDArray[np.int64]
    """Shape (k + 1, k + 1): how many drafts of length i had an accepted length of j."""


def assemble(replicas: list[ReplicaRecords], max_draft_len: int) -> RunTables:
    """Return the tables of a run.

    Parameters
    ----------
    replicas : list of ReplicaRecords
    max_draft_len : int, tokens

    Returns
    -------
    RunTables
    """
    requests = np.zeros(sum(len(r.requests) for r in replicas), dtype=TABLE_FIELDS)
    outcomes = np.zeros((max_draft_len + 1, max_draft_len + 1), dtype=np.int64)
    for number, records in enumerate(replicas):
        rows = records.requests["request"]
        for name in records.requests.dtype.names or ():
            requests[name][rows] = records.requests[name]
        requests["replica"][rows] = number
        _count(requests, records)
        outcomes += _outcomes(records, max_draft_len)
    ends = np.cumsum(requests["deliveries"] - 1)
    gaps = np.empty(ends[-1] if len(ends) else 0)
    gap_lens = np.empty(len(gaps), dtype=np.uint8)
    # A request that had to move has gaps that begin at one replica and end at another.
    for records in [_merged(replicas)] if requests["requeues"].any() else replicas:
        _place_gaps(records, requests, ends, gaps, gap_lens)
    return RunTables(
        requests=requests,
        gaps=gaps,
        gap_lens=gap_lens,
        steps=np.concatenate([records.steps for records in replicas]),
        step_replicas=np.repeat(
            np.arange(len(replicas), dtype=np.int32), [len(r.steps) for r in replicas]
        ),
        outcomes=outcomes,
    )


def _count(requests: NDArray[np.void], records: ReplicaRecords) -> None:
    """Add a replica's deliveries and drafts to its requests."""
    receivers, size = records.delivered_to, len(requests)
    requests["deliveries"] += np.bincount(receivers, minlength=size).astype(np.int32)
    if not len(records.drafted_lens):
        return
    drafted, accepted = records.drafted_lens, records.accepted_lens
    for name, weights in (
        ("drafts", drafted > 0),
        ("draft_tokens", drafted),
        ("accepted_tokens", accepted),
    ):
        sums = np.bincount(receivers, weights=weights, minlength=size)
        requests[name] += sums.astype(np.int32)


def _outcomes(records: ReplicaRecords, max_draft_len: int) -> NDArray[np.int64]:
    width = max_draft_len + 1
    if not len(records.drafted_lens):
        return np.zeros((width, width), dtype=np.int64)
    pairs = records.drafted_lens.astype(np.int32) * width + records.accepted_lens
    counts = np.bincount(pairs, minlength=width * width).reshape(width, width)
    counts[0] = 0  # deliveries without a draft
    return counts


def _merged(replicas: list[ReplicaRecords]) -> ReplicaRecords:
    """Return the steps and deliveries of all replicas as of one, in the order of the clock."""
    steps = np.concatenate([records.steps for records in replicas])
    order = np.argsort(steps["ended_at"], kind="stable")
    counts = steps["deliveries"].astype(np.int64)
    starts = np.cumsum(counts) - counts
    sorted_counts = counts[order]
    shifts = starts[order] - (np.cumsum(sorted_counts) - sorted_counts)
    places = np.arange(counts.sum()) + np.repeat(shifts, sorted_counts)
    columns = {
        name: np.concatenate([getattr(records, name) for records in replicas])
        for name in ("requests", "delivered_to", "delivered_lens", "drafted_lens", "accepted_lens")
    }
    return ReplicaRecords(
        steps=steps[order],
        **{
            name: column if name == "requests" or not len(column) else column[places]
            for name, column in columns.items()
        },
    )


def _place_gaps(
    records: ReplicaRecords,
    requests: NDArray[np.void],
    ends: NDArray[np.int64],
    gaps: NDArray[np.float64],
    gap_lens: NDArray[np.uint8],
) -> None:
    """Write a replica's gaps to the places of its requests, and their first token times."""
    times = np.repeat(records.steps["ended_at"], records.steps["deliveries"])
    order = np.argsort(records.delivered_to, kind="stable")
    receivers, times = records.delivered_to[order], times[order]
    is_first = np.empty(len(receivers), dtype=bool)
    is_first[:1] = True
    np.not_equal(receivers[1:], receivers[:-1], out=is_first[1:])
    requests["first_token_at"][receivers[is_first]] = times[is_first]
    later = np.flatnonzero(~is_first)
    # The gaps of a request end where its place ends; count back from there.
    left_after = np.searchsorted(receivers, receivers[later], side="right") - later
    places = ends[receivers[later]] - left_after
    gaps[places] = times[later] - times[later - 1]
    gap_lens[places] = records.delivered_lens[order][later]
