"""A profile fitted to runs: its parameters with their intervals, and errors before and after."""

from typing import TYPE_CHECKING

from rich.table import Table

from specsim.show.render import new_table, percent
from specsim.show.render.predictions import metric_name

if TYPE_CHECKING:
    from specsim.reality.profile_fit.run_fit import Estimate, RunFit


def run_fit_tables(found: "RunFit", title: str) -> list[Table]:
    """Return the tables of a fit: parameters, and errors of fitted and of held-out rows."""
    rows = [
        [each.name, f"{each.start:.4g}", f"{each.value:.4g}", _interval(each), _remark(each)]
        for each in found.estimates
    ]
    columns = ["parameter", "start", "fitted", "95 % interval", ""]
    tables = [new_table(f"fitted to {len(found.fitted[0])} rows of {title}", columns, rows)]
    errors = found.to_dict()["errors"]
    for name, (before, after) in {each: tuple(errors[each].values()) for each in errors}.items():
        if before:
            cells = [
                [
                    *(metric_name(old["metric"]), f"{old['count']}"),
                    *(_pair(old), _pair(new), f"{new['median']:+.1%}", new["worst_run"]),
                ]
                for old, new in zip(before, after, strict=True)
            ]
            shown = f"|error| of {name.replace('_', '-')} rows, median / worst"
            columns = ["", "rows", "before", "after", "median error", "worst in"]
            tables.append(new_table(shown, columns, cells))
    return tables


def _pair(error: dict[str, float]) -> str:
    return f"{percent(error['median_abs'])} / {percent(error['worst_abs'])}"


def _interval(each: "Estimate") -> str:
    return f"{each.low:.3g} - {each.high:.3g}"


def _remark(each: "Estimate") -> str:
    if not each.is_told:
        return "the runs cannot tell: its interval is that of the prior"
    return "at its bound" if each.at_bound else ""
