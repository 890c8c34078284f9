"""One run."""

from typing import Any

from rich.table import Table

from specsim.run.summary import Summary
from specsim.show.render.tables import new_table

__all__ = ["LATENCIES", "STATISTICS", "run_table"]

LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E latency", "e2el"))
STATISTICS = ("mean", "p50", "p90", "p99")


def _scalar_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    own = data["specsim"]
    rows = [
        ("requests/s", f"{data['request_throughput']:.3f}"),
        ("output tokens/s", f"{data['output_throughput']:,.0f}"),
        ("tokens per step", f"{own['tokens_per_step']:.3f}"),
        ("preemptions", f"{own['num_preemptions']:,}"),
    ]
    if data["request_goodput"] is not None:
        rows.insert(1, ("goodput requests/s", f"{data['request_goodput']:.3f}"))
    if "spec_decode_acceptance_rate" in data:
        rows.append(("draft acceptance", f"{data['spec_decode_acceptance_rate']:.1f} %"))
    if own["num_requeues"]:
        rows.append(("re-queued by failures", f"{own['num_requeues']:,}"))
    if own["prefix_hit_tokens"]:
        rows.append(("prefix hit tokens", f"{own['prefix_hit_tokens']:,}"))
    return rows


def run_table(summary: Summary, title: str) -> Table:
    """Return the table of one run."""
    data = summary.data
    unstable = " UNSTABLE (queue still growing)" if summary.is_unstable else ""
    table = new_table(title + unstable, ["ms", *STATISTICS])
    for name, kind in LATENCIES:
        values = (data[f"{statistic}_{kind}_ms"] for statistic in STATISTICS)
        table.add_row(name, *(f"{value:,.2f}" for value in values))
    table.add_section()
    for name, value in _scalar_rows(data):
        table.add_row(name, value, "", "", "")
    return table
