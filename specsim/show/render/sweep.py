"""The table of a small sweep."""

from itertools import groupby
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from specsim.show.render.tables import new_table

__all__ = ["sweep_tables"]

_MAX_ROWS = 40
_SHOWN = {
    "mean_ttft_ms": "TTFT mean, ms",
    "mean_tpot_ms": "TPOT mean, ms",
    "mean_e2el_ms": "E2E latency mean, ms",
    "output_throughput": "output tokens/s",
}


def sweep_tables(records: list[dict[str, Any]], name: str) -> list[Table]:
    """Return one row per combination, its replications averaged; nothing of a large sweep.

    Args:
        records: Of all points, in their order.
        name: Of the sweep.
    """
    rows = [(labels, list(each)) for labels, each in groupby(records, lambda r: r["labels"])]
    if len(rows) > _MAX_ROWS:
        return []
    fields = list(records[0]["labels"])
    table = new_table(name, [*(field.rpartition(".")[2] for field in fields), *_SHOWN.values(), ""])
    for labels, group in rows:
        found = [record["metrics"] for record in group if record["error"] is None]
        values = [f"{fmean(m[key] for m in found):,.2f}" if found else "-" for key in _SHOWN]
        problem = "FAILED" if len(found) < len(group) else ""
        unstable = "UNSTABLE" if any(m["unstable"] for m in found) else ""
        table.add_row(*(escape(labels[field]) for field in fields), *values, problem or unstable)
    return [table]
