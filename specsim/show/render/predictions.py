"""Tables of measured runs, predicted: errors, speed-ups, and the fastest drafts."""

from rich.table import Table

from specsim.reality.validation.prediction_errors import HEADLINES, OF_TOKENS, TableErrors
from specsim.show.render import new_table, percent


def prediction_tables(found: TableErrors) -> list[Table]:
    """Return the tables of predicted runs: errors, speed-ups, and which drafts are fastest."""
    return [_errors_by_metric(found), *_errors_by_group(found), *_speed_ups(found)]


def _errors_by_metric(found: TableErrors) -> Table:
    columns = ["", "runs", "median |error|", "worst", "median error", "worst in"]
    rows = [
        [
            metric_name(each.metric),
            f"{each.count}",
            *(percent(each.median_abs), percent(each.worst_abs), f"{each.median:+.1%}"),
            each.worst_run,
        ]
        for each in found.by_metric
    ]
    return new_table("predicted against measured", columns, rows)


def metric_name(metric: str) -> str:
    """Return a metric as a reader would say it."""
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
        names = [metric.replace(OF_TOKENS, "TPOT or ITL") for metric in HEADLINES]
        tables.append(new_table(f"|error| by {name}, median / worst", ["", "runs", *names], rows))
    return tables


def _speed_ups(found: TableErrors) -> list[Table]:
    ups = [
        [
            *(each.runs, each.choice, f"{each.measured:.3f}", f"{each.predicted:.3f}"),
            f"{each.predicted / each.measured - 1:+.1%}",
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
