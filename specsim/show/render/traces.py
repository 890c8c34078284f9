"""Traces described."""

from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from specsim.show.render.tables import new_table
from specsim.workload.describe import TraceDescription

__all__ = ["description_json", "trace_table"]


def trace_table(description: TraceDescription, title: str) -> Table:
    """Return the table of ``specsim trace describe``."""
    table = new_table(title, ["", "value"])
    for name, value in (
        ("format", description.format),
        ("requests", f"{description.num_requests:,}"),
        ("failed requests left out", f"{description.num_dropped:,}"),
        ("duration, s", _number(description.duration)),
        ("mean rate, requests/s", _number(description.mean_rate)),
        ("peak rate over 10 s, requests/s", _number(description.peak_rate)),
        ("burstiness (1 = Poisson, less = burstier)", _number(description.burstiness)),
        ("reused prefix, share of prompt tokens", _number(description.reused_prefix_share)),
        ("recorded acceptance", ", ".join(description.recorded_acceptance) or "-"),
        ("note", description.note or "-"),
    ):
        table.add_row(name, escape(value))
    for name, lens in (("prompt", description.prompt), ("output", description.output)):
        table.add_section()
        table.add_row(f"{name} tokens in all", f"{lens.total:,}")
        table.add_row(f"{name} length, mean ± std", f"{lens.mean:,.1f} ± {lens.std:,.1f}")
        quantiles = "  ".join(f"{key} {value:,.0f}" for key, value in lens.quantiles.items())
        table.add_row(f"{name} length, quantiles", quantiles)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def description_json(description: TraceDescription) -> dict[str, Any]:
    """Return a description as plain values."""
    return asdict(description)
