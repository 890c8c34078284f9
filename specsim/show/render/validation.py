"""A measured run against its simulation, as tables."""

from rich.table import Table

from specsim.reality.validation import METRICS, Validation
from specsim.show.render.tables import new_table

__all__ = ["validation_tables"]

_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}
_ROWS = 10


def validation_tables(found: Validation, title: str) -> list[Table]:
    """Return the tables of a validation.

    Returns:
        The statistics, and the throughput over time.
    """
    return [_statistics(found, title), _throughput(found)]


def _statistics(found: Validation, title: str) -> Table:
    was_repeated = found.num_runs > 1
    columns = ["", "measured", "simulated", "error"]
    table = new_table(title, [*columns, "real spread"] if was_repeated else columns)
    for each in found.statistics:
        row = [
            f"{_NAMES[each.metric]} {each.name}, ms",
            f"{each.measured * 1e3:,.1f}",
            f"{each.simulated * 1e3:,.1f}",
            f"{each.error:+.2%}",
        ]
        if was_repeated:
            row.append("-" if each.spread is None else f"{each.spread:.2%}")
        table.add_row(*row)
    table.add_section()
    errors = found.request_errors()
    for metric in METRICS:
        table.add_row(
            f"{_NAMES[metric]}, mean |error| of a request", "", "", f"{errors[metric]:.2%}"
        )
    number = len(found.statistics)
    table.add_row(f"mean |error| of the {number} statistics", "", "", f"{found.mean_error:.2%}")
    worst = found.worst
    name = f"worst: {_NAMES[worst.metric]} {worst.name}"
    table.add_row(name, "", "", f"{abs(worst.error):.2%}")
    return table


def _throughput(found: Validation) -> Table:
    table = new_table("output tokens/s over time", ["seconds", "measured", "simulated", "error"])
    rows = found.throughput()
    width = -(-len(rows) // _ROWS)
    for first in range(0, len(rows), width):
        part = rows[first : first + width]
        real = sum(row["measured"] for row in part) / len(part)
        ours = sum(row["simulated"] for row in part) / len(part)
        error = f"{(ours - real) / real:+.1%}" if real else "-"
        span = f"{part[0]['start']:.0f} - {part[-1]['end']:.0f}"
        table.add_row(span, f"{real:,.0f}", f"{ours:,.0f}", error)
    return table
