"""Splits of GPUs as a table."""

from typing import TYPE_CHECKING

from rich.table import Table

from specsim.show.render import new_table

if TYPE_CHECKING:
    from specsim.study.split import Split, SplitRow
    from specsim.study.split_search import Search


def split_table(found: "Split", title: str) -> Table:
    """Return the ways to use the GPUs, the best of each load first."""
    columns = [
        "", "rate/s", "GPUs", "req/s", "SLO", "TTFT ms", "p99", "TPOT ms", "p99", "transfer ms", "",
    ]  # fmt: skip
    has_policies = any(row.policy is not None for row in found.rows)
    rows = [_cells(row) for row in found.rows]
    if has_policies:
        columns.insert(1, "policy")
        for row, cells in zip(found.rows, rows, strict=True):
            cells.insert(1, row.policy or "-")
    return new_table(f"{title}: {found.gpus} GPUs, p prefill and d decode", columns, rows)


def _cells(row: "SplitRow") -> list[str]:
    values = row.values
    attainment = values["slo_attainment"]
    notes = ["UNSTABLE"] * row.is_unstable + ["efficient"] * row.is_efficient
    return [
        row.label,
        "-" if row.rate is None else f"{row.rate:g}",
        str(row.gpus),
        f"{values['request_throughput']:.2f}",
        "-" if attainment is None else f"{attainment:.1%}",
        *(
            f"{values[name]:,.1f}"
            for name in ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")
        ),
        "-" if values["mean_transfer_ms"] is None else f"{values['mean_transfer_ms']:,.1f}",
        ", ".join(notes),
    ]


def search_lines(search: "Search") -> list[str]:
    """Return what was looked at on the way, and how exact that was."""
    error = (
        ""
        if search.worst_error is None
        else (f"; their mean latency was predicted within {search.worst_error:.1%}")
    )
    return [
        f"{len(search.predictions) + search.too_small} splits in {search.seconds:.0f} s: "
        f"{search.pieces} pools simulated by themselves, {search.too_small} splits left out "
        f"because a queue kept growing, the most promising simulated whole (the table){error}",
        *(f"left out: {each}" for each in search.left_out),
    ]
