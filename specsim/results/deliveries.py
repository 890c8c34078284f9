"""Deliveries: when each request got tokens, and how many; in memory, or in a temporary file."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import Ints
from specsim.results.array_file import ArrayFile

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
        """See `EveryDelivery`."""
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
        """See `EveryDelivery`."""
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
