"""A tuning on the terminal: three tables, a verdict, and the JSON."""

import json

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from specsim.compare import SpeedUp
from specsim.tune.batch import BatchTuning
from specsim.tune.check import Check
from specsim.tune.crossover import Crossover
from specsim.tune.tuning import Tuning

__all__ = ["report", "verdict"]


def report(tuning: Tuning, title: str) -> list[Table | Text]:
    """Return what a person wants to read of a tuning.

    Parameters
    ----------
    tuning : Tuning
    title : str

    Returns
    -------
    list of rich renderables
    """
    parts: list[Table | Text] = [
        _batch_table(tuning.batches, f"{title}: output throughput over k = 0, by batch size"),
        _crossover_table(tuning, "load up to which a fixed k is better than no speculation"),
        _check_table(tuning.check, f"speed-up over no speculation, load in {tuning.load_unit}"),
    ]
    lines = [*verdict(tuning), "", "schedule:     " + json.dumps(tuning.speculative_config)]
    if tuning.recommended != tuning.speculative_config:
        recommended = json.dumps(tuning.recommended) if tuning.recommended else "no speculation"
        lines.append(f"recommended:  {recommended}")
    return [*parts, Text("\n".join(lines))]


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=escape(title), title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _interval(value: SpeedUp) -> str:
    if value.low is None or value.high is None:
        return "-"
    return f"{value.low:.3f} - {value.high:.3f}"


def _batch_table(batches: BatchTuning, title: str) -> Table:
    ks = range(1, len(batches.points[0].measurements))
    columns = ["batch", *(f"k={k}" for k in ks), "best k", "over next best", "95 % interval"]
    table = _table(title, [*columns, ""])
    for point in batches.points:
        gain = point.gain_over(point.best_k, point.next_best_k)
        is_tie = point.best_k != point.fastest_k
        table.add_row(
            f"{point.batch_size:,}",
            *(f"{point.gains[k].mean:.3f}" for k in ks),
            str(point.best_k),
            f"{gain.mean:.3f} (k={point.next_best_k})",
            _interval(gain),
            f"tied with k={point.fastest_k}" if is_tie else "",
        )
    return table


def _crossover_table(tuning: Tuning, title: str) -> Table:
    table = _table(title, ["k", f"pays below, {tuning.load_unit}", "95 % interval"])
    for crossover in tuning.crossovers:
        table.add_row(str(crossover.k), *_crossover_texts(crossover))
    return table


def _crossover_texts(crossover: Crossover) -> tuple[str, str]:
    last = f"{crossover.highest_load:.3g}"
    if crossover.pays == "never":
        return "never pays", ""
    if crossover.load is None:
        return f"always, up to {last}", ""
    low = "-" if crossover.low is None else f"{crossover.low:.1f}"
    high = f"over {last}" if crossover.high is None else f"{crossover.high:.1f}"
    return f"{crossover.load:.1f}", f"{low} - {high}"


def _check_table(check: Check, title: str) -> Table:
    ks = range(1, len(check.loads[0].fixed))
    fixed = [f"k={k}" for k in ks]
    columns = ["load", *fixed, "schedule", "over best k", "95 % interval", "oracle*", ""]
    table = _table(title, ["", *columns])
    for load in check.loads:
        table.add_row(
            load.name,
            f"{load.load:.1f}",
            *(f"{load.speed_up(load.fixed[k]).mean:.3f}" for k in ks),
            f"{load.speed_up(load.schedule).mean:.3f}",
            f"{load.over_best_fixed.mean:.3f} (k={load.best_fixed})",
            _interval(load.over_best_fixed),
            f"{load.oracle_over_schedule.mean:.3f}",
            "UNSTABLE" if load.is_saturated else "",
        )
    table.caption = "* over the schedule, both without asynchronous scheduling"
    table.caption_justify = "left"
    return table


def verdict(tuning: Tuning) -> list[str]:
    """Return in a few sentences what the schedule gains, and what to use.

    Parameters
    ----------
    tuning : Tuning

    Returns
    -------
    list of str
    """
    check = tuning.check
    if not tuning.longest:
        return ["Speculation pays at no batch size: start the server without it."]
    best = f"the best fixed k ({check.best_fixed})" if check.best_fixed else "no speculation"
    gain = _percent(check.over_best_fixed)
    lines = []
    if check.schedule_pays:
        lines.append(f"Over these loads the schedule is {gain} faster than {best}{_share(check)}.")
        lines.append("Use the schedule.")
    else:
        lines.append(
            f"Over these loads the schedule is not faster than {best} beyond doubt: {gain}."
        )
        use = f"Use num_speculative_tokens = {check.best_fixed} without a schedule."
        lines.append(use if check.best_fixed else "Start the server without speculation.")
    own = next(load for load in check.loads if load.name == "own")
    lines.append(
        f"At the experiment's own load ({own.load:.3g} {tuning.load_unit}) alone, the best fixed k "
        f"is {own.best_fixed}, and the schedule is {_percent(own.over_best_fixed)} faster than it."
    )
    return lines


def _percent(value: SpeedUp) -> str:
    assert value.low is not None
    assert value.high is not None
    low, mean, high = ((ratio - 1) * 100 for ratio in (value.low, value.mean, value.high))
    return f"{mean:.1f} % ({low:.1f} to {high:.1f})"


def _share(check: Check) -> str:
    share = check.share_of_oracle
    return "" if share is None else f", {share:.0%} of what an oracle would gain"
