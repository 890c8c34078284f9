"""Studies: a tuning, and the verdicts of a gate."""

import json
from typing import TYPE_CHECKING

from rich.table import Table

from specsim.results.stability import STABILITY_MARKS
from specsim.show.render import interval, model_interval, new_table

if TYPE_CHECKING:
    from specsim.study.gate.verdict import GateVerdict, MetricChange
    from specsim.study.paired import SpeedUp
    from specsim.study.tune import Tuning
    from specsim.study.tune.batch import BatchTuning
    from specsim.study.tune.crossover import Check, Crossover, LoadCheck


INTERVALS = ("95 % interval", "80 % by the profile")
"""By the luck of the runs, and by how far step times of profiles like this one have been off."""


def tuning_tables(tuning: "Tuning", title: str) -> list[Table]:
    """Return the tables of a tuning: batch sizes, crossover loads, and the schedule's check."""
    unit = tuning.load_unit
    crossovers = ([str(each.k), *_crossover(each)] for each in tuning.crossovers)
    return [
        _batch_table(tuning.batches, f"{title}: output throughput over k = 0, by batch size"),
        new_table("load below which a fixed k pays", ["k", unit, *INTERVALS], crossovers),
        _check_table(tuning.check, f"speed-up of mean latency over no speculation, load in {unit}"),
    ]


def _batch_table(batches: "BatchTuning", title: str) -> Table:
    ks = range(1, len(batches.points[0].measurements))
    columns = ["batch", *(f"k={k}" for k in ks), "best k", "over next best", *INTERVALS]
    rows = []
    for point in batches.points:
        gain = point.gain_over(point.best_k, point.next_best_k)
        is_tie = point.best_k != point.fastest_k
        row = [
            f"{point.batch_size:,}",
            *(f"{point.gains[k].mean:.3f}" for k in ks),
            str(point.best_k),
            f"{gain.mean:.3f} (k={point.next_best_k})",
            interval(gain),
            model_interval(gain),
            f"tied with k={point.fastest_k}" if is_tie else "",
        ]
        rows.append(row)
    return new_table(title, [*columns, ""], rows)


def _crossover(crossover: "Crossover") -> tuple[str, ...]:
    last = _load(crossover.highest_load)
    if crossover.pays == "never":
        return "never pays", "", ""
    if crossover.load is None:
        return f"always, up to {last}", "", ""
    low = "-" if crossover.low is None else _load(crossover.low)
    high = f"over {last}" if crossover.high is None else _load(crossover.high)
    by_profile = "-"
    if crossover.model_low is not None or crossover.model_high is not None:
        ends = crossover.model_low, crossover.model_high
        by_profile = " - ".join("open" if each is None else _load(each) for each in ends)
    return _load(crossover.load), f"{low} - {high}", by_profile


def _load(value: float) -> str:
    """Return a load, which may be a hundredth of a request per second or thousands of clients."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def _state(load: "LoadCheck") -> str:
    if load.is_saturated:
        return "SATURATED"
    marked = {STABILITY_MARKS[name]: load.that_are(name) for name in ("overloaded", "undecided")}
    return "; ".join(f"{mark}: k={', '.join(map(str, ks))}" for mark, ks in marked.items() if ks)


def _check_table(check: "Check", title: str) -> Table:
    ks = range(1, len(check.loads[0].fixed))
    fixed = [f"k={k}" for k in ks]
    columns = ["load", *fixed, "schedule", "over best k", *INTERVALS, "oracle*", ""]
    rows = [
        [
            load.name,
            _load(load.load),
            *(f"{load.speed_up(load.fixed[k]).mean:.3f}" for k in ks),
            f"{load.speed_up(load.schedule).mean:.3f}",
            f"{load.over_best_fixed.mean:.3f} (k={load.best_fixed})",
            interval(load.over_best_fixed),
            model_interval(load.over_best_fixed),
            f"{load.oracle_over_schedule.mean:.3f}",
            _state(load),
        ]
        for load in check.loads
    ]
    table = new_table(title, ["", *columns], rows)
    table.caption = "* over the schedule, both without asynchronous scheduling"
    table.caption_justify = "left"
    return table


def tuning_verdict(tuning: "Tuning") -> list[str]:
    """Return in a few lines what the schedule gains and what to use."""
    schedule = f"schedule:  {json.dumps(tuning.speculative_config)}"
    if not tuning.longest:
        return ["Speculation pays at no batch size: start the server without it.", schedule]
    check = tuning.check
    own = next(load for load in check.loads if load.name == "own")
    lines = [
        f"Over these loads the schedule gains {_gain(check.over_best_fixed)} over "
        f"{_server(check.best_fixed)}, the best fixed k{_share(check)}.",
        f"At the experiment's own load of {_load(own.load)} {tuning.load_unit} it gains "
        f"{_gain(own.over_best_fixed)} over {_server(own.best_fixed)}, the best there.",
    ]
    if tuning.recommended != tuning.speculative_config:
        lines.append(
            f"The schedule does not beat {_server(check.best_fixed)} beyond doubt: use that."
        )
    if tuning.recommended is None:
        return [*lines, schedule]
    return [*lines, schedule, f"use:       {json.dumps(tuning.recommended)}"]


def _server(k: int) -> str:
    return f"k = {k}" if k else "no speculation"


def _gain(value: "SpeedUp") -> str:
    assert value.low is not None
    assert value.high is not None
    ends = f"95 %: {_percents(value.low, value.high)}"
    if value.model_low is not None and value.model_high is not None:
        by_profile = _percents(value.model_low, value.model_high)
        ends += f"; as far as such profiles have been off, 80 %: {by_profile}"
    return f"{_percent(value.mean)} % ({ends})"


def _percents(low: float, high: float) -> str:
    return f"{_percent(low)} to {_percent(high)} %"


def _percent(ratio: float) -> str:
    return f"{round((ratio - 1) * 100, 1) + 0.0:.1f}"  # no negative zero


def _share(check: "Check") -> str:
    share = check.share_of_oracle
    if share is None or not check.schedule_pays:
        return ""
    return f", which is {share:.0%} of the oracle's gain"


_MARKS = {"same": "=", "within": "", "better": " better", "uncertain": " ?", "worse": " WORSE"}
_STYLES = {"worse": "bold red", "better": "green", "uncertain": "yellow"}


def gate_table(judgement: "GateVerdict", title: str) -> Table:
    """Return a table of how much worse each metric of each scenario got, in percent."""
    cells = {(each.scenario, each.metric): each for each in judgement.comparisons}
    scenarios, metrics = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    table = new_table(title, ["% worse", *(metric.removesuffix("_ms") for metric in metrics)])
    limits = (cells[scenarios[0], metric].tolerance for metric in metrics)
    table.add_row("tolerance", *(f"{limit:.1%}" for limit in limits), end_section=True)
    for scenario in scenarios:
        table.add_row(scenario, *(_worsening(cells[scenario, metric]) for metric in metrics))
    return table


def _worsening(comparison: "MetricChange") -> str:
    mark, style = _MARKS[comparison.verdict], _STYLES.get(comparison.verdict)
    if comparison.verdict == "same":
        return mark
    text = f"{100 * comparison.worsening:+.1f}{mark}"
    return f"[{style}]{text}[/]" if style else text


def gate_verdict(judgement: "GateVerdict") -> list[str]:
    """Return the verdict in words: what got worse, and what may have."""
    worse, doubtful = judgement.of_verdict("worse"), judgement.of_verdict("uncertain")
    lines = [f"worse: {each.scenario}: {each.text}" for each in worse]
    lines += [f"uncertain: {each.scenario}: {each.text}" for each in doubtful if each.worsening > 0]
    count, same = len(judgement.comparisons), len(judgement.of_verdict("same"))
    if worse:
        lines.append(f"FAILED: {len(worse)} of {count} comparisons are worse than tolerated")
    elif same == count:
        lines.append(f"passed: all {count} comparisons are the same, seed by seed")
    else:
        lines.append(f"passed: none of {count} comparisons is worse than tolerated ({same} same)")
    return lines
