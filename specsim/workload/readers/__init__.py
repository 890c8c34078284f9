"""Readers: workload files of every format, recognised by their content."""

from pathlib import Path
from typing import ClassVar

from specsim.core.errors import TraceError
from specsim.core.families import Family, Member
from specsim.core.resources import locate
from specsim.workload.files import Row, TraceFile
from specsim.workload.trace import Trace, TraceBuilder

__all__ = ["READERS", "Reader", "read_trace"]

_TEXT = frozenset({"prompt", "messages", "conversations"})
"""Fields of logs that `specsim.tokens` turns into token traces."""


class Reader(Member):
    """One trace format."""

    kind: str
    containers: ClassVar[tuple[str, ...]] = ()
    """How its files are written (`TraceFile.container`)."""
    columns: ClassVar[frozenset[str]] = frozenset()
    """Those that every file of the format has."""

    def matches(self, file: TraceFile) -> bool:
        """Return whether the file is of this format, whatever its name."""
        return file.container in self.containers and self.columns <= set(file.columns)

    def read(self, file: TraceFile) -> Trace:
        """Return the workload in a file that `matches`, in order of arrival.

        A TraceError names file, line, field, value and rule if a row breaks the format's rules.
        """
        builder = TraceBuilder(file.path, self.kind)
        for row in file.rows():
            self.add(row, builder)
        return builder.build()

    def add(self, row: Row, builder: TraceBuilder) -> None:
        """Add what a row says; of a format without rows, `read` does everything."""
        raise NotImplementedError


READERS = Family("workload.readers", Reader)


def read_trace(path: Path) -> Trace:
    """Return the workload in a file of any known format, gzip-compressed or not.

    A TraceError if the file is missing, empty, of no known format, or breaks its format's rules.
    """
    file = TraceFile(locate(path))
    for kind in READERS.all_members():
        reader = READERS.parse({"kind": kind})
        if reader.matches(file):
            return reader.read(file)
    columns = ", ".join(file.columns) or "none"
    if _TEXT & set(file.columns):
        raise TraceError(
            f"{path}: holds text (columns: {columns}), no lengths and no token ids; `specsim "
            "tokens from-text` makes a token trace of it"
        )
    raise TraceError(
        f"{path}: no known format has these columns: {columns}; a native workload needs prompt_len "
        "and output_len (`specsim list` shows all readers)"
    )
