"""An observed run, as a table."""

from rich.table import Table

from specsim.reality.observe import Observation
from specsim.results.metrics import latency_statistics
from specsim.show.render.tables import new_table

__all__ = ["observation_table"]

_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E latency"}
_STATISTICS = ("mean", "p50", "p90", "p99")


def observation_table(found: Observation, title: str) -> Table:
    """Return the table of an observed run."""
    mark = " INTERRUPTED" if found.is_interrupted else ""
    table = new_table(title + mark, ["ms", *_STATISTICS])
    samples = {_LATENCIES[name]: values for name, values in found.latencies().items()}
    for name, values in {**samples, "client late by": found.lateness}.items():
        known = latency_statistics(values)
        cells = (f"{known[statistic]:,.2f}" if len(values) else "-" for statistic in _STATISTICS)
        table.add_row(name, *cells)
    table.add_section()
    rows = [
        ("requests sent", f"{len(found.sent):,} of {found.num_planned:,}"),
        ("answered", f"{len(found.answered):,}"),
        ("failed", f"{found.errors.total():,}"),
        ("output tokens/s", f"{found.output_rate:,.1f}"),
    ]
    speculation = found.speculation()
    if speculation:
        rows.append(("draft acceptance", f"{speculation['acceptance_rate']:.1%}"))
        rows.append(("tokens per draft", f"{speculation['acceptance_length']:.3f}"))
    for name, value in rows:
        table.add_row(name, value, "", "", "")
    return table
