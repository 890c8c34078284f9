"""Real engines: a calibration, a validation, and an observed run."""

from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from specsim.reality.calibration import JUDGED, Calibration, CaseResult, judged
from specsim.reality.validation import METRICS, STATISTICS, Validation
from specsim.results.metrics import SHOWN, TITLES, latency_statistics
from specsim.show.render import add_wide_rows, new_table

if TYPE_CHECKING:
    from specsim.reality.observe import Observation

_NAMES = {**TITLES, "latency": "latency"}
_THROUGHPUT_ROWS = 10


def calibration_tables(found: Calibration) -> list[Table]:
    """Return the tables of a calibration: by case, and by statistic over all cases."""
    return [_cases(found), _statistics_over_cases(found)]


def error_tables(found: Calibration) -> list[Table]:
    """Return every error: a table for each load, a column for each policy."""
    tables = []
    for load in dict.fromkeys(each.case.load.name for each in found.results):
        mine = [each for each in found.results if each.case.load.name == load]
        title = f"{load}: error / at speed (real spread)"
        table = new_table(title, ["", *(each.case.policy for each in mine)])
        for number, first in enumerate(mine[0].statistics):
            cells = [
                f"{each.statistics[number].error:+.1%} / {each.at_speed[number].error:+.1%} "
                f"({each.statistics[number].spread or 0.0:.1%})"
                for each in mine
            ]
            table.add_row(f"{_NAMES[first.metric]} {first.name}", *cells)
        table.add_section()
        sizes = [(each.mean_error, each.mean_error_at_speed, each.mean_spread) for each in mine]
        cells = [f"{error:.1%} / {at_speed:.1%} ({apart:.1%})" for error, at_speed, apart in sizes]
        table.add_row("mean size", *cells)
        tables.append(table)
    return tables


def _cases(found: Calibration) -> Table:
    columns = ["acceptance, load, policy"]
    for metric in JUDGED:
        columns += [f"mean {_NAMES[metric]}, ms", "simulated", "error", "at speed", "spread"]
    columns += ["mean |error| of 15", "at speed", ""]
    table = new_table("measured against simulated", columns)
    last = None
    for each in found.results:
        place = (each.case.acceptance, each.case.load.name)
        if last not in (None, place):
            table.add_section()
        last = place
        row = [" ".join((*place, each.case.policy))]
        for metric in JUDGED:
            mean = each.statistic(metric, "mean")
            spread = "-" if mean.spread is None else f"{mean.spread:.1%}"
            row += [
                f"{mean.measured * 1e3:,.1f}",
                f"{mean.simulated * 1e3:,.1f}",
                f"{mean.error:+.1%}",
                f"{each.mean_at_speed(metric).error:+.1%}",
                spread,
            ]
        row += [f"{each.mean_error:.1%}", f"{each.mean_error_at_speed:.1%}"]
        row.append("" if judged(each, found.stated_error) else "beyond")
        table.add_row(*row)
    return table


def _statistics_over_cases(found: Calibration) -> Table:
    title = f"the 15 statistics over {len(found.results)} cases"
    columns = ["", "median |error|", "largest", "median real spread", "largest"]
    table = new_table(title, columns)
    for metric in METRICS:
        for name in STATISTICS:
            table.add_row(f"{_NAMES[metric]} {name}", *_over_cases(found.results, metric, name))
    return table


def _over_cases(results: list[CaseResult], metric: str, name: str) -> list[str]:
    found = [each.statistic(metric, name) for each in results]
    errors = np.abs([each.error for each in found])
    spreads = np.array([each.spread or 0.0 for each in found])
    return [
        f"{value:.1%}"
        for values in (errors, spreads)
        for value in (float(np.median(values)), float(values.max()))
    ]


def calibration_verdict(found: Calibration) -> list[str]:
    """Return in words whether the profile keeps to its stated error, and where not."""
    stated, total = found.stated_error, len(found.results)
    lines = [
        f"profile: {found.status}; stated error {stated:.1%} of mean TPOT and mean latency, "
        "or twice the spread of the real runs"
    ]
    told, untold = (
        sum(all(abs(mean.error) <= stated for mean in means) for means in table)
        for table in (
            [[each.mean_at_speed(name) for name in JUDGED] for each in found.results],
            [[each.statistic(name, "mean") for name in JUDGED] for each in found.results],
        )
    )
    lines.append(f"{told} of {total} cases keep to it by themselves, whatever the spread")
    if any(each.slowness for each in found.results):
        lines.append(
            f"if the simulation is told how fast the machine was ('at speed'); if not, {untold}"
        )
    if found.is_kept and not found.is_validated:
        lines.append("but not where the real runs repeat no better: there this validates nothing")
    lines += [f"beyond it: {each.case.name}" for each in found.failed]
    lines += [f"left out: {name}: {reason}" for name, reason in found.left_out.items()]
    lines += [
        f"order of k wrong at {each.acceptance} {each.load}: really {each.faster} is faster than "
        f"{each.slower}"
        for each in found.swaps
    ]
    if not found.swaps:
        lines.append("order of k: the same, wherever the real runs have one")
    return lines


def validation_tables(found: Validation, title: str) -> list[Table]:
    """Return the tables of a validation: the statistics, and the throughput over time."""
    return [_validated(found, title), _throughput(found)]


def _validated(found: Validation, title: str) -> Table:
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
    width = -(-len(rows) // _THROUGHPUT_ROWS)
    for first in range(0, len(rows), width):
        part = rows[first : first + width]
        real = sum(row["measured"] for row in part) / len(part)
        ours = sum(row["simulated"] for row in part) / len(part)
        error = f"{(ours - real) / real:+.1%}" if real else "-"
        span = f"{part[0]['start']:.0f} - {part[-1]['end']:.0f}"
        table.add_row(span, f"{real:,.0f}", f"{ours:,.0f}", error)
    return table


def observation_table(found: "Observation", title: str) -> Table:
    """Return the table of an observed run."""
    mark = " INTERRUPTED" if found.is_interrupted else ""
    table = new_table(title + mark, ["ms", *SHOWN])
    samples = {TITLES[name]: values for name, values in found.latencies().items()}
    for name, values in {**samples, "client late by": found.lateness}.items():
        known = latency_statistics(values)
        cells = (f"{known[statistic]:,.2f}" if len(values) else "-" for statistic in SHOWN)
        table.add_row(name, *cells)
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
    add_wide_rows(table, rows)
    return table
