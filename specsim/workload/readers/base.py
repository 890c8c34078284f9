"""What every reader does: recognise its format by content, and turn it into a trace."""

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import TraceError
from specsim.core.families import Member
from specsim.core.request import PrefixIds
from specsim.workload.files import Row, TraceFile
from specsim.workload.trace import Trace

__all__ = ["Reader", "TraceBuilder", "hashed_requests", "token_ids"]


class Reader(Member):
    """One trace format."""

    kind: str

    @abstractmethod
    def matches(self, file: TraceFile) -> bool:
        """Return whether the file is of this format.

        Returns:
            Judged by the container and the names of the columns, never by the file's name.
        """

    @abstractmethod
    def read(self, file: TraceFile) -> Trace:
        """Return the workload in the file.

        Args:
            file: One that `matches`.

        Raises:
            TraceError: A row breaks the format's rules; the message names file, line, field, value
                and rule.
        """


class TraceBuilder:
    """Collects rows into the columns of a trace, checks them and sorts them by arrival.

    Args:
        kind: Name of the format.
    """

    def __init__(self, file: TraceFile, kind: str) -> None:
        self._file = file
        self._kind = kind
        self._lens: list[tuple[int, int]] = []
        self._arrivals: list[float] = []
        self.columns: dict[str, list[Any]] = {}
        self.recorded_lens: dict[str, list[bytes]] = {}
        self.num_dropped = 0
        self.note = ""

    def add(self, prompt_len: int, output_len: int, arrived_at: float | None = None) -> bool:
        """Add a request; one without prompt or output failed, and is counted, not kept.

        Args:
            prompt_len, output_len: In tokens.
            arrived_at: In seconds.

        Returns:
            Whether it was kept, so that its other columns belong in as well.
        """
        if prompt_len == 0 or output_len == 0:
            self.num_dropped += 1
            return False
        self._lens.append((prompt_len, output_len))
        if arrived_at is not None:
            self._arrivals.append(arrived_at)
        return True

    def put(self, column: str, value: Any) -> None:
        """Append to another column of the request that was just added."""
        self.columns.setdefault(column, []).append(value)

    def build(self) -> Trace:
        """Return the trace.

        Raises:
            TraceError: There is no request in it.
        """
        if not self._lens:
            dropped = f"; {self.num_dropped} rows had no prompt or no output"
            raise TraceError(
                f"{self._file.path}: no request in it{dropped if self.num_dropped else ''}; "
                "a workload has at least one"
            )
        lens = np.array(self._lens, dtype=np.int64)
        for name, column in [*self.columns.items(), *self.recorded_lens.items()]:
            if len(column) != len(lens):
                raise TraceError(
                    f"{self._file.path}: only {len(column)} of {len(lens)} requests have "
                    f"'{name}'; all of them must have it, or none"
                )
        trace = Trace(
            prompt_lens=lens[:, 0],
            output_lens=lens[:, 1],
            arrived_at=self._zero_based(),
            recorded_lens=dict(self.recorded_lens),
            num_dropped=self.num_dropped,
            format=self._kind,
            note=self.note,
            **{name: self._as_array(name, column) for name, column in self.columns.items()},
        )
        if trace.arrived_at is None:
            return trace
        order = np.argsort(trace.arrived_at, kind="stable")
        return trace if np.array_equal(order, np.arange(len(order))) else trace.take(order)

    def _zero_based(self) -> NDArray[np.float64] | None:
        if not self._arrivals:
            return None
        arrivals = np.array(self._arrivals, dtype=np.float64)
        return arrivals - float(arrivals.min())

    @staticmethod
    def _as_array(name: str, column: list[Any]) -> Any:
        return np.array(column, dtype=np.int64) if name == "priorities" else column


def token_ids(row: Row, field: str) -> NDArray[np.int64]:
    """Return a field that must be a list of token ids, of shape (n,).

    Raises:
        TraceError: An id is not a whole number in [0, 2**31).
    """
    values = row.get(field)
    rule = "whole numbers from 0 to 2**31 - 1; correct or remove the row"
    if not isinstance(values, list):
        raise TraceError(f"{row.place}: {field} is not a list of token ids, {rule}")
    for place, value in enumerate(values):
        if type(value) is not int or not 0 <= value < 2**31:
            given = f"{value!r:.60}"
            raise TraceError(f"{row.place}: {field}[{place}] = {given}, but token ids are {rule}")
    return np.array(values, dtype=np.int64)


def hashed_requests(
    file: TraceFile, builder: TraceBuilder, *, piece_size: int, seconds_per_unit: float
) -> Trace:
    """Return a trace of the family that Mooncake began: lengths, and hash ids of prompt pieces.

    Args:
        piece_size: Prompt tokens per hash id.
        seconds_per_unit: Of the column ``timestamp``.
    """
    for row in file.rows():
        prompt_len = row.integer("input_length", minimum=0)
        hash_ids = row.get("hash_ids")
        if not isinstance(hash_ids, list) or len(hash_ids) < prompt_len // piece_size:
            raise TraceError(
                f"{row.place}: hash_ids must list an id for each {piece_size} of the {prompt_len} "
                "prompt tokens"
            )
        if builder.add(
            prompt_len,
            row.integer("output_length", minimum=0),
            row.number("timestamp") * seconds_per_unit,
        ):
            builder.put("prefix_ids", PrefixIds(tuple(hash_ids), piece_size))
    return builder.build()
