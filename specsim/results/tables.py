"""RunTables: what all replicas of a run have handed over, put together and indexed by request.

A `WeightedSample` gives statistics of values that occur many times each, without spelling them out.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import fsum

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import SpecsimError
from specsim.results.records import (
    GAP_FIELDS,
    REQUEST_FIELDS,
    STEPS_NOT_KEPT,
    TOTAL_FIELDS,
    EveryDelivery,
    ReplicaRecords,
    StepLog,
    record_type,
)

_BLOCK = 4096  # rows between two cumulative counts, and rows that are multiplied at once


def sorted_gaps(chunks: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
    """Return all gaps, in order of their tokens and then of their value.

    The gaps of as many tokens stay in order if they are shared out among these, so both per-token
    latencies can be read off the same rows. All rows are `specsim.results.records.GAP_FIELDS`.
    """
    sizes = np.zeros(1, dtype=np.int64)
    for chunk in chunks:
        found = np.bincount(chunk["tokens"], minlength=len(sizes))
        found[: len(sizes)] += sizes
        sizes = found
    rows = np.empty(sizes.sum(), dtype=GAP_FIELDS)
    ends = np.cumsum(sizes)
    for tokens in np.flatnonzero(sizes).tolist():
        group = rows[ends[tokens] - sizes[tokens] : ends[tokens]]
        filled = 0
        for chunk in chunks:
            mine = chunk[chunk["tokens"] == tokens]
            group[filled : filled + len(mine)] = mine
            filled += len(mine)
        # A row has the size of a complex number, and those are sorted by their first half and then
        # by their second: in place, where an index to sort by would need half as much again.
        group.view(np.complex128).sort()
    return rows


class _Group:
    """Gaps in ascending order, each shared out evenly, so that it counts as so many values."""

    def __init__(self, rows: NDArray[np.void], shares: int) -> None:
        self._values: NDArray[np.float64] = rows["value"]
        self._counts: NDArray[np.int32] = rows["count"]
        self._blocks = [slice(start, start + _BLOCK) for start in range(0, len(rows), _BLOCK)]
        self._shares = shares
        sums = (int(self._counts[block].sum(dtype=np.int64)) for block in self._blocks)
        self._before = list(accumulate(sums, initial=0))
        self.size = shares * self._before[-1]
        self.largest = float(self._values[-1] / shares)

    def num_up_to(self, limit: float) -> int:
        """Return how many values are no larger."""
        end = bisect_right(self._values, limit, key=lambda value: value / self._shares)
        block = end // _BLOCK
        rest = self._counts[block * _BLOCK : end].sum(dtype=np.int64)
        return self._shares * (self._before[block] + int(rest))

    def spelt_out(self) -> NDArray[np.float64]:
        """Return every value as often as it counts."""
        values: NDArray[np.float64] = self._values / self._shares
        return np.repeat(values, self._counts * np.int64(self._shares))

    def sums(self, offset: float, power: int) -> Iterable[float]:
        """Yield parts of the sum of the powers of the values less an offset."""
        for block in self._blocks:
            terms = (self._values[block] / self._shares - offset) ** power
            # Not as a product of vectors: what BLAS makes of it depends on its version and the CPU.
            yield self._shares * float((terms * self._counts[block]).sum())


class WeightedSample:
    """Gaps, or their shares per token, each as often as it occurred.

    Gaps are as `sorted_gaps` returns them, and none is negative. Where each is shared out among its
    tokens, it occurs as many times more.
    """

    def __init__(self, gaps: NDArray[np.void], *, per_token: bool = False) -> None:
        self._groups: list[_Group] = []
        start = 0
        while start < len(gaps):
            tokens = int(gaps["tokens"][start])
            end = bisect_right(gaps["tokens"], tokens, lo=start)
            shares = tokens if per_token else 1
            self._groups.append(_Group(gaps[start:end], shares))
            start = end
        self._size = sum(group.size for group in self._groups)

    def __len__(self) -> int:
        return self._size

    def mean(self) -> float:
        return fsum(part for group in self._groups for part in group.sums(0.0, 1)) / len(self)

    def std(self) -> float:
        mean = self.mean()
        squares = fsum(part for group in self._groups for part in group.sums(mean, 2))
        return float(np.sqrt(squares / len(self)))

    def percentiles(self, percents: Sequence[float]) -> list[float]:
        """Return what `numpy.percentile` would return of the values spelt out."""
        if len(self) <= 1 << 18:  # values that are spelt out all the same: 2 MiB, and faster
            found: list[float] = np.percentile(self._spelt_out, percents).tolist()
            return found
        return [self._percentile(each) for each in percents]

    def _percentile(self, percent: float) -> float:
        place = (len(self) - 1) * (percent / 100)
        below = int(place)
        neighbours = [self._at(below), self._at(min(below + 1, len(self) - 1))]
        return float(np.quantile(neighbours, place - below))

    @cached_property
    def _spelt_out(self) -> NDArray[np.float64]:
        return np.concatenate([group.spelt_out() for group in self._groups])

    def _at(self, rank: int) -> float:
        """Return the value with so many others before it in ascending order.

        The bits of a float that is not negative, read as an integer, are in its order. So 63
        halvings find the smallest float up to which there are more than `rank` values.
        """
        largest = np.float64(max(group.largest for group in self._groups))
        low, high = -1, int(largest.view(np.int64))
        while high - low > 1:
            middle = (low + high) // 2
            limit = _of_bits(middle)
            if sum(group.num_up_to(limit) for group in self._groups) > rank:
                high = middle
            else:
                low = middle
        return _of_bits(high)


def _of_bits(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))


TABLE_FIELDS = record_type(
    ("<i8", "request"),
    ("<i4", "replica"),
    ("<f8", "arrived_at scheduled_at first_token_at ended_at"),
    ("<i4", "prompt_len output_len cached_len preemptions requeues"),
    ("<i4", "deliveries drafts draft_tokens accepted_tokens"),
)
"""Columns of the requests table; times in seconds, lengths in tokens, the rest counts."""


@dataclass(frozen=True)
class RunTables:
    """What happened, by request, by gap between deliveries and by step; times in seconds."""

    requests: NDArray[np.void]
    """Structured, `TABLE_FIELDS`, one row per request in order of its index."""
    gap_chunks: tuple[NDArray[np.void], ...]
    """Structured, `specsim.results.records.GAP_FIELDS`, as the replicas handed them over."""
    seconds: NDArray[np.void]
    """Structured, `specsim.results.records.SECOND_FIELDS`, replica after replica."""
    totals: np.void  # one record, `specsim.results.records.TOTAL_FIELDS`, of all replicas
    outcomes: NDArray[np.int64]
    """Shape (k + 1, k + 1): how many drafts of length i had an accepted length of j."""
    step_log: StepLog | None  # None if the steps were not kept
    deliveries: EveryDelivery | None  # None if they were not kept

    @property
    def gaps(self) -> NDArray[np.void]:
        """All of `gap_chunks`, in order of tokens and then of value; sorted anew each time.

        They are needed once, and in a run of millions of steps are the largest table of all.
        """
        return sorted_gaps(self.gap_chunks)

    @property
    def steps(self) -> NDArray[np.void]:
        """Structured, `specsim.results.records.STEP_FIELDS`, replica after replica."""
        return self._all_steps[1]

    @property
    def step_replicas(self) -> NDArray[np.int32]:
        return self._all_steps[0]

    @cached_property
    def _all_steps(self) -> tuple[NDArray[np.int32], NDArray[np.void]]:
        if self.step_log is None:
            raise SpecsimError(STEPS_NOT_KEPT)
        return next(self.step_log.blocks(len(self.step_log)))


def totals_of(replicas: Sequence[ReplicaRecords]) -> np.void:
    """Return one record, `specsim.results.records.TOTAL_FIELDS`, of several replicas."""
    found = np.zeros(1, dtype=TOTAL_FIELDS)
    for records in replicas:
        for name in TOTAL_FIELDS.names or ():
            is_largest = name in ("context_tokens", "batched_tokens")
            combine = np.maximum if is_largest else np.add
            found[name] = combine(found[name], records.totals[name])
    total: np.void = found[0]
    return total


def assemble(replicas: list[ReplicaRecords], deliveries: EveryDelivery | None = None) -> RunTables:
    """Return the tables of a run."""
    requests = np.zeros(sum(len(r.requests) for r in replicas), dtype=TABLE_FIELDS)
    for number, records in enumerate(replicas):
        rows = records.requests["request"]
        for name in REQUEST_FIELDS.names or ():
            requests[name][rows] = records.requests[name]
        requests["replica"][rows] = number
    return RunTables(
        requests=requests,
        gap_chunks=tuple(chunk for records in replicas for chunk in records.gap_chunks),
        seconds=np.concatenate([records.seconds for records in replicas]),
        totals=totals_of(replicas),
        outcomes=np.sum([records.outcomes for records in replicas], axis=0),
        step_log=replicas[0].step_log,
        deliveries=deliveries,
    )
