"""RunTables: the records of all replicas of a run, put together and indexed by request.

`WeightedSample` gives statistics of values that occur many times, without repeating them in memory.
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
    """Return all gaps (`specsim.results.records.GAP_FIELDS`), by their tokens and then by value.

    Gaps that delivered equally many tokens stay in order when divided by them, so ITL and amortised
    ITL can both be read off the same rows.
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
        # A row has the size of a complex number, which numpy sorts in place by its first half, then
        # by its second; sorting by an index would need half as much memory again.
        group.view(np.complex128).sort()
    return rows


class _Group:
    """Gaps of equal tokens, ascending; each is divided into `shares` equal values."""

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
        """Return how many values are at most `limit`."""
        end = bisect_right(self._values, limit, key=lambda value: value / self._shares)
        block = end // _BLOCK
        rest = self._counts[block * _BLOCK : end].sum(dtype=np.int64)
        return self._shares * (self._before[block] + int(rest))

    def spelt_out(self) -> NDArray[np.float64]:
        """Return all values, each repeated as often as it occurred."""
        values: NDArray[np.float64] = self._values / self._shares
        return np.repeat(values, self._counts * np.int64(self._shares))

    def sums(self, offset: float, power: int) -> Iterable[float]:
        """Yield terms that add up to the sum of (value - offset) ** power over all values."""
        for block in self._blocks:
            terms = (self._values[block] / self._shares - offset) ** power
            # Not a dot product: its rounding depends on the version of BLAS and on the CPU.
            yield self._shares * float((terms * self._counts[block]).sum())


class WeightedSample:
    """Gaps, or their shares per token, each counted as often as it occurred.

    `gaps` are as `sorted_gaps` returns them, none negative. With `per_token` a gap of n tokens
    counts as n values of 1/n of it.
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
        """Return what `numpy.percentile` would return for all values repeated."""
        if len(self) <= 1 << 18:  # few enough to repeat all values: 2 MiB, and faster
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
        """Return the value that has `rank` others before it in ascending order.

        The bits of floats that are not negative, read as integers, have the same order. So 63
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
    """The results of a run by request, by gap between deliveries and by step; times in seconds."""

    requests: NDArray[np.void]
    """Structured, `TABLE_FIELDS`, one row per request in order of its index."""
    gap_chunks: tuple[NDArray[np.void], ...]
    """Structured, `specsim.results.records.GAP_FIELDS`, in chunks as the replicas recorded them."""
    seconds: NDArray[np.void]
    """Structured, `specsim.results.records.SECOND_FIELDS`, replica after replica."""
    totals: np.void  # one record, `specsim.results.records.TOTAL_FIELDS`, of all replicas
    outcomes: NDArray[np.int64]
    """Number of drafts of length i with accepted length j, shape (k + 1, k + 1)."""
    step_log: StepLog | None  # None if steps were not kept
    deliveries: EveryDelivery | None  # None if deliveries were not kept

    @property
    def gaps(self) -> NDArray[np.void]:
        """All of `gap_chunks`, by tokens and then by value; sorted anew each time.

        They are needed once, and are the largest table of a run of millions of steps.
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
    """Return the totals of several replicas, one record, `specsim.results.records.TOTAL_FIELDS`."""
    found = np.zeros(1, dtype=TOTAL_FIELDS)
    for records in replicas:
        for name in TOTAL_FIELDS.names or ():
            is_largest = name in ("context_tokens", "batched_tokens")
            combine = np.maximum if is_largest else np.add
            found[name] = combine(found[name], records.totals[name])
    total: np.void = found[0]
    return total


def assemble(replicas: list[ReplicaRecords], deliveries: EveryDelivery | None = None) -> RunTables:
    """Return the tables of a run from the records of all its replicas."""
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
