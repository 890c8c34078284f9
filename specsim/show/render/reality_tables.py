"""Tables of real engines: calibrations, validations, observed and predicted runs, fits."""

from math import floor, log10
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from specsim.core.figures import figures, percent
from specsim.reality.calibration import JUDGED, Calibration, CaseResult, judged
from specsim.reality.validation import METRICS, STATISTICS, Validation
from specsim.reality.validation.prediction_errors import HEADLINES, OF_TOKENS, TableErrors
from specsim.results.metrics import SHOWN, TITLES, latency_statistics
from specsim.show.render import add_wide_rows, milliseconds, new_table, shown

if TYPE_CHECKING:
    from specsim.reality.observe import Observation
    from specsim.reality.profile_fit.run_fit import Estimate, RunFit


_NAMES = {**TITLES, "latency": "latency"}


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
                f"{percent(each.statistics[number].error, sign=True)} / "
                f"{percent(each.at_speed[number].error, sign=True)} "
                f"({percent(each.statistics[number].spread or 0.0)})"
                for each in mine
            ]
            table.add_row(f"{_NAMES[first.metric]} {first.name}", *cells)
        table.add_section()
        sizes = [(each.mean_error, each.mean_error_at_speed, each.mean_spread) for each in mine]
        cells = ["{} / {} ({})".format(*map(percent, each)) for each in sizes]
        table.add_row("mean size", *cells)
        tables.append(table)
    return tables


def _cases(found: Calibration) -> Table:
    columns = ["acceptance, load, policy"]
    for metric in JUDGED:
        columns += [f"mean {_NAMES[metric]}, ms", "simulated", "error", "at speed", "spread"]
    all_kept = not found.failed
    columns += ["mean |error| of 15", "at speed", *([] if all_kept else [""])]
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
            spread = "-" if mean.spread is None else percent(mean.spread)
            row += [
                milliseconds(mean.measured * 1e3),
                milliseconds(mean.simulated * 1e3),
                percent(mean.error, sign=True),
                percent(each.mean_at_speed(metric).error, sign=True),
                spread,
            ]
        row += [percent(each.mean_error), percent(each.mean_error_at_speed)]
        row += [] if all_kept else ["" if judged(each, found.stated_error) else "beyond"]
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
        percent(value)
        for values in (errors, spreads)
        for value in (float(np.median(values)), float(values.max()))
    ]


def calibration_verdict(found: Calibration) -> list[str]:
    """Return text on whether the profile is within its stated error, and where it is not."""
    stated, total = found.stated_error, len(found.results)
    lines = [
        f"profile: {found.status}; stated error {percent(stated)} of mean TPOT and mean latency, "
        "or twice the spread of the real runs"
    ]
    told, untold = (
        sum(all(abs(mean.error) <= stated for mean in means) for means in table)
        for table in (
            [[each.mean_at_speed(name) for name in JUDGED] for each in found.results],
            [[each.statistic(name, "mean") for name in JUDGED] for each in found.results],
        )
    )
    kept = f"{told} of {total} cases keep to the stated error, whatever the spread"
    if any(each.slowness for each in found.results):
        kept += (
            f", if the simulation is told how fast the machine was ('at speed'); {untold} if not"
        )
    lines.append(kept)
    if found.is_kept and not found.is_validated:
        lines.append("of the others the real runs repeat no better: they validate nothing")
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
            milliseconds(each.measured * 1e3),
            milliseconds(each.simulated * 1e3),
            percent(each.error, 2, sign=True),
        ]
        if was_repeated:
            row.append("-" if each.spread is None else percent(each.spread, 2))
        table.add_row(*row)
    table.add_section()
    errors = found.request_errors()
    for metric in METRICS:
        table.add_row(
            f"{_NAMES[metric]}, mean |error| of a request", "", "", percent(errors[metric], 2)
        )
    number = len(found.statistics)
    table.add_row(f"mean |error| of the {number} statistics", "", "", percent(found.mean_error, 2))
    worst = found.worst
    name = f"worst: {_NAMES[worst.metric]} {worst.name}"
    table.add_row(name, "", "", percent(abs(worst.error), 2))
    return table


def _throughput(found: Validation) -> Table:
    table = new_table("output tokens/s over time", ["seconds", "measured", "simulated", "error"])
    rows = found.throughput()
    width = -(-len(rows) // 10)
    digits = max(0, 1 - floor(log10(width * rows[0]["end"])))
    for first in range(0, len(rows), width):
        part = rows[first : first + width]
        real = sum(row["measured"] for row in part) / len(part)
        ours = sum(row["simulated"] for row in part) / len(part)
        error = percent((ours - real) / real, sign=True) if real else "-"
        span = f"{part[0]['start']:.{digits}f} - {part[-1]['end']:.{digits}f}"
        table.add_row(span, f"{real:,.0f}", f"{ours:,.0f}", error)
    return table


def observation_table(found: "Observation", title: str) -> Table:
    """Return the table of an observed run."""
    mark = " INTERRUPTED" if found.is_interrupted else ""
    table = new_table(title + mark, ["ms", *SHOWN])
    samples = {TITLES[name]: values for name, values in found.latencies().items()}
    for name, values in {**samples, "client late by": found.lateness}.items():
        known = latency_statistics(values)
        is_known = bool(np.isfinite(values).any())  # no TPOT if all answers have one token
        cells = (milliseconds(known[statistic]) if is_known else "-" for statistic in SHOWN)
        table.add_row(name, *cells)
    rows = [
        ("requests sent", f"{len(found.sent):,} of {found.num_planned:,}"),
        ("answered", f"{len(found.answered):,}"),
        ("failed", f"{found.errors.total():,}"),
        ("output tokens/s", shown("output_throughput", found.output_rate)),
    ]
    speculation = found.speculation()
    if speculation:
        rows.append(("draft acceptance", percent(speculation["acceptance_rate"])))
        rows.append(("tokens per draft", f"{speculation['acceptance_length']:.3f}"))
    add_wide_rows(table, rows)
    return table


def prediction_tables(found: TableErrors) -> list[Table]:
    """Return the tables of predicted runs: errors, speed-ups, and the fastest drafts."""
    return [_errors_by_metric(found), *_errors_by_group(found), *_speed_ups(found)]


def _errors_by_metric(found: TableErrors) -> Table:
    columns = ["", "runs", "median |error|", "worst", "median error", "worst in"]
    rows = [
        [
            metric_name(each.metric),
            f"{each.count}",
            *(percent(each.median_abs), percent(each.worst_abs), percent(each.median, sign=True)),
            each.worst_run,
        ]
        for each in found.by_metric
    ]
    return new_table("predicted against measured", columns, rows)


def metric_name(metric: str) -> str:
    """Return the title of a metric."""
    if metric.startswith(OF_TOKENS):
        return f"TPOT (ITL where TPOT is missing) {metric.removeprefix(OF_TOKENS)[1:]}"
    return metric


def _errors_by_group(found: TableErrors) -> list[Table]:
    tables = []
    for name, groups in found.by_group.items():
        if len(groups) < 2:
            continue
        rows = []
        for group, errors in groups.items():
            cells = {e.metric: f"{percent(e.median_abs)} / {percent(e.worst_abs)}" for e in errors}
            count = max((each.count for each in errors), default=0)
            rows.append([group, f"{count}", *(cells.get(metric, "-") for metric in HEADLINES)])
        names = [metric.replace(f"{OF_TOKENS}_", "TPOT or ITL ") for metric in HEADLINES]
        tables.append(new_table(f"|error| by {name}, median / worst", ["", "runs", *names], rows))
    return tables


def _speed_ups(found: TableErrors) -> list[Table]:
    ups = [
        [
            *(each.runs, each.choice, f"{each.measured:.3f}", f"{each.predicted:.3f}"),
            percent(each.predicted / each.measured - 1, sign=True),
            "" if each.agrees else "WRONG SIGN",
        ]
        for each in found.speed_ups
    ]
    best = [
        [each.runs, each.metric, each.measured, each.predicted, percent(each.loss)]
        for each in found.best
    ]
    columns = ["runs", "drafts", "measured", "predicted", "error", ""]
    agreeing = sum(each.agrees for each in found.speed_ups)
    title = f"speed-up over no speculation ({agreeing} of {len(ups)} with the right sign)"
    right = sum(each.measured == each.predicted for each in found.best)
    of_best = ["runs", "fastest by", "really", "predicted", "really slower by"]
    return [
        *([new_table(title, columns, ups)] if ups else []),
        *([new_table(f"fastest ({right} of {len(best)} right)", of_best, best)] if best else []),
    ]


def run_fit_tables(found: "RunFit", title: str) -> list[Table]:
    """Return the tables of a fit: parameters, and errors of fitted and of held-out rows."""
    rows = [
        [
            *(each.name, figures(each.start), figures(each.value)),
            *(f"{figures(each.low, 3)} - {figures(each.high, 3)}", _remark(each)),
        ]
        for each in found.estimates
    ]
    columns = ["parameter", "start", "fitted", "95 % interval", ""]
    kept = "" if found.is_kept else "not "
    tables = [new_table(f"{kept}fitted to {len(found.fitted[0])} rows of {title}", columns, rows)]
    errors = found.to_dict()["errors"]
    for name, (before, after) in {each: tuple(errors[each].values()) for each in errors}.items():
        if before:
            cells = [
                [
                    *(metric_name(old["metric"]), f"{old['count']}"),
                    *(_pair(old), _pair(new), percent(new["median"], sign=True), new["worst_run"]),
                ]
                for old, new in zip(before, after, strict=True)
            ]
            shown = f"|error| of {name.replace('_', '-')} rows, median / worst"
            columns = ["", "rows", "before", "after", "median error", "worst in"]
            tables.append(new_table(shown, columns, cells))
    return tables


def _pair(error: dict[str, float]) -> str:
    return f"{percent(error['median_abs'])} / {percent(error['worst_abs'])}"


def _remark(each: "Estimate") -> str:
    if not each.is_told:
        return "the runs cannot tell: it stays, its interval is that of the prior"
    return "at its bound" if each.at_bound else ""
