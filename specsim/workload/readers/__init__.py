"""Readers: workload files of every format, recognised by their content."""

from pathlib import Path

from specsim.core.errors import TraceError
from specsim.core.families import Family
from specsim.core.resources import locate
from specsim.workload.files import TraceFile
from specsim.workload.readers.base import Reader
from specsim.workload.trace import Trace

__all__ = ["READERS", "Reader", "read_trace"]

READERS = Family("workload.readers", Reader)

_TEXT = frozenset({"prompt", "messages", "conversations"})
"""Fields of logs that `specsim.tokens` turns into token traces."""


def read_trace(path: Path) -> Trace:
    """Return the workload in a file.

    Args:
        path: Of any known format, gzip-compressed or not.

    Raises:
        TraceError: The file is missing, empty, of no known format, or breaks its format's rules.
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
