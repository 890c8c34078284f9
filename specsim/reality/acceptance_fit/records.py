"""Records: the recorded acceptance of one proposer, without what would distort a fit."""

from dataclasses import dataclass
from pathlib import Path

from specsim.core.errors import TraceError
from specsim.workload.readers import read_trace

__all__ = ["Records", "load_records"]


@dataclass(frozen=True)
class Records:
    """Survival tables of the requests that a fit looks at."""

    file: Path
    tables: list[bytes]
    """Per request, in the order of the file: accepted length of a draft at each position."""
    num_too_long: int
    """Requests left out because their outputs are longer than allowed."""
    num_too_short: int
    """Requests left out because no draft was made for them: one output token, or none recorded."""


def load_records(path: Path, proposer: str, max_output_len: int) -> Records:
    """Return the recorded acceptance in a token trace.

    Args:
        path: A workload with the column ``acc_<proposer>``.
        proposer: Such as ``eagle``.
        max_output_len: Longer outputs are left out: they are endless loops, which any proposer
            predicts, and the few of them would outweigh all others, in tokens.

    Raises:
        TraceError: The file cannot be read, has no such column, or no request is left.
    """
    trace = read_trace(path)
    if proposer not in trace.recorded_lens:
        known = ", ".join(sorted(trace.recorded_lens)) or "none"
        raise TraceError(
            f"{path}: no column 'acc_{proposer}' (recorded proposers: {known}); choose one of "
            "them with --proposer, or a token trace that carries it"
        )
    rows = zip(trace.recorded_lens[proposer], trace.output_lens.tolist(), strict=True)
    # A record may be that of another, longer answer to the same prompt.
    kept = [record[:output_len] for record, output_len in rows if output_len <= max_output_len]
    tables = [table for table in kept if len(table) > 1]
    if not tables:
        raise TraceError(
            f"{path}: no request with 2 to {max_output_len} recorded output tokens is in it; raise "
            "--max-output-len or use another trace"
        )
    return Records(path, tables, len(trace) - len(kept), len(kept) - len(tables))
