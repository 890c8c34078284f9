"""A calibration as tables."""

import numpy as np
from rich.table import Table

from specsim.reality.calibration.results import JUDGED, CaseResult, Judgement, judged
from specsim.reality.validation import METRICS, STATISTICS
from specsim.show.render.tables import new_table

__all__ = ["calibration_tables", "error_tables", "verdict"]

_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}


def calibration_tables(found: Judgement) -> list[Table]:
    """Return the tables of a calibration.

    Returns:
        Case by case, and statistic by statistic over all cases.
    """
    return [_cases(found), _statistics(found)]


def error_tables(found: Judgement) -> list[Table]:
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


def _cases(found: Judgement) -> Table:
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


def _statistics(found: Judgement) -> Table:
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


def verdict(found: Judgement) -> list[str]:
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
