"""Tables of studies: tunings, gates, capacities, splits of GPUs, and the points of a sweep."""

import json
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from specsim.core.figures import digits_beside, figures, percent
from specsim.results.stability import STABILITY_MARKS, stability_in, together
from specsim.show.render import interval, milliseconds, model_interval, new_table, shown
from specsim.study.capacity.limits import binding_words, floored, metric_name
from specsim.study.paired import mean_and_half_width

if TYPE_CHECKING:
    from specsim.study.capacity import Capacity, Found
    from specsim.study.capacity.findings import Ranking
    from specsim.study.gate.verdict import GateVerdict, MetricChange
    from specsim.study.paired import SpeedUp
    from specsim.study.split import Search, Split, SplitRow
    from specsim.study.tune import Tuning
    from specsim.study.tune.batch import BatchTuning
    from specsim.study.tune.crossover import Check, Crossover, LoadCheck

INTERVALS = ("95 % interval", "4 in 5 servers")
"""Intervals by the luck of the runs, and by step times as far off as on measured servers."""


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
    """Return a load as text; it may be 0.01 requests per second or thousands of clients."""
    return figures(value, 3)


def _state(load: "LoadCheck") -> str:
    if load.is_saturated:
        return "SATURATED"
    marked = {STABILITY_MARKS[name]: load.that_are(name) for name in ("overloaded", "undecided")}
    return "; ".join(f"{mark}: k={', '.join(map(str, ks))}" for mark, ks in marked.items() if ks)


def _check_table(check: "Check", title: str) -> Table:
    ks = range(1, len(check.loads[0].fixed))
    fixed = [f"k={k}" for k in ks]
    has_oracle = check.oracle_over_best_fixed is not None
    oracle = ["oracle*"] if has_oracle else []
    columns = ["load", *fixed, "schedule", "over best k", *INTERVALS, *oracle, ""]
    rows = [
        [
            load.name,
            _load(load.load),
            *(f"{load.speed_up(load.fixed[k]).mean:.3f}" for k in ks),
            f"{load.speed_up(load.schedule).mean:.3f}",
            f"{load.over_best_fixed.mean:.3f} (k={load.best_fixed})",
            interval(load.over_best_fixed),
            model_interval(load.over_best_fixed),
            *(f"{ratio.mean:.3f}" for ratio in [load.oracle_over_schedule] if ratio),
            _state(load),
        ]
        for load in check.loads
    ]
    table = new_table(title, ["", *columns], rows)
    if has_oracle:
        table.caption = "* over the schedule, both without asynchronous scheduling"
        table.caption_justify = "left"
    return table


def tuning_verdict(tuning: "Tuning") -> list[str]:
    """Return a few lines on what the schedule gains and what to use."""
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
            f"The schedule does not beat {_server(check.best_fixed)} by {_percent(check.WORTH)} % "
            "beyond doubt: use that, which is simpler."
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
        ends += f"; as far off as on four in five servers measured: {by_profile}"
    return f"{_percent(value.mean)} % ({ends})"


def _percents(low: float, high: float) -> str:
    return f"{_percent(low)} to {_percent(high)} %"


def _percent(ratio: float) -> str:
    return f"{round((ratio - 1) * 100, 1) + 0.0:.1f}"  # no negative zero


def _share(check: "Check") -> str:
    share = check.share_of_oracle
    if share is None or not check.schedule_pays:
        return ""
    return f", which is {percent(share, 0)} of the oracle's gain"


_MARKS = {"same": "=", "within": "", "better": " better", "uncertain": " ?", "worse": " WORSE"}
_STYLES = {"worse": "bold red", "better": "green", "uncertain": "yellow"}


def gate_table(judgement: "GateVerdict", title: str) -> Table:
    """Return how much worse each metric of each scenario got, in percent."""
    cells = {(each.scenario, each.metric): each for each in judgement.comparisons}
    scenarios, metrics = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    table = new_table(title, ["% worse", *(metric.removesuffix("_ms") for metric in metrics)])
    limits = (cells[scenarios[0], metric].tolerance for metric in metrics)
    tolerances = (percent(limit, digits_beside(limit, limit)) for limit in limits)
    table.add_row("tolerance", *tolerances, end_section=True)
    for scenario in scenarios:
        table.add_row(scenario, *(_worsening(cells[scenario, metric]) for metric in metrics))
    return table


def _worsening(comparison: "MetricChange") -> str:
    mark, style = _MARKS[comparison.verdict], _STYLES.get(comparison.verdict)
    if comparison.verdict == "same":
        return mark
    text = f"{100 * comparison.worsening:+.{comparison.digits}f}{mark}"
    return f"[{style}]{text}[/]" if style else text


def gate_verdict(judgement: "GateVerdict") -> list[str]:
    """Return the verdict as text: what got worse, and what may have."""
    worse, doubtful = judgement.of_verdict("worse"), judgement.of_verdict("uncertain")
    lines = [f"worse: {each.scenario}: {each.text}" for each in worse]
    lines += [f"uncertain: {each.scenario}: {each.text}" for each in doubtful if each.worsening > 0]
    count, same = len(judgement.comparisons), len(judgement.of_verdict("same"))
    if unseen := [each for each in judgement.comparisons if each.may_be_worse]:
        worst = max(unseen, key=lambda each: each.at_worst / max(each.tolerance, 1e-9))
        lines.append(
            f"not shown: {len(unseen)} of {count} may be worse than tolerated all the same; "
            f"{worst.scenario}: {worst.text}: more requests or replications narrow the interval"
        )
    if worse:
        lines.append(f"FAILED: {len(worse)} of {count} comparisons are worse than tolerated")
    elif same == count:
        lines.append(f"passed: all {count} comparisons are the same, seed by seed")
    else:
        lines.append(f"passed: none of {count} comparisons is worse than tolerated ({same} same)")
    return lines


def capacity_tables(capacity: "Capacity", name: str) -> list[Table]:
    """Return the capacity of each hardware by policy, and the front of latency and cost."""
    fronts = [_front(capacity)] if capacity.front else []
    return [_sustained(capacity, name), *fronts]


def _sustained(capacity: "Capacity", name: str) -> Table:
    goal, currency = capacity.goal, capacity.goal.prices.currency
    columns = [
        "hardware", "policy", *(["clients"] if goal.is_closed else []), "requests/s",
        "95 % interval", "what binds", "within limits", "TTFT p99, ms", "TPOT p99, ms",
        "output tokens/s", "GPU-hours / 1 M", f"{currency} / 1 M",
    ]  # fmt: skip
    if goal.target_rate is not None:
        spare = f" ({goal.spare_replicas:,} in reserve)" if goal.spare_replicas else ""
        columns += [f"{capacity.unit}s{spare}", "GPUs", f"{currency} / h", f"{currency} / 1 M then"]
    what = f"the most that one {capacity.unit} sustains with {goal.limits.words}"
    return new_table(f"{name}: {what}", columns, map(_sustained_row, capacity.found))


def _sustained_row(found: "Found") -> list[str]:
    goal, probe, rate = found.goal, found.at_capacity, found.rate
    head = [escape(found.hardware.label), escape(found.policy)]
    if probe is None or rate is None:
        lowest = found.probes[0]
        at = f"{percent(floored(lowest.attainment), 2)} at {figures(lowest.load, 3)}"
        return [*head, *(["none"] if goal.is_closed else []), "none", "", "", at]
    tried, latencies, between = found.tried(probe), probe.latencies_ms, found.interval
    row = [
        *head,
        *([f"{probe.load:,.0f}"] if goal.is_closed else []),
        figures(rate),
        "-" if between is None else f"{figures(between.low)} - {figures(between.high)}",
        binding_words(found.binds, found.resource),
        percent(probe.attainment, 2),
        milliseconds(latencies["p99_ttft_ms"]),
        milliseconds(latencies["p99_tpot_ms"]),
        shown("output_throughput", rate * probe.mean_output_len),
        f"{tried.gpu_hours_per_million_tokens:.4f}",
        _money(tried.cost_per_million_tokens),
    ]
    if goal.target_rate is not None and found.replicas is not None:
        gpus = found.replicas * found.hardware.gpus_per_replica
        row += [f"{found.replicas:,}", f"{gpus:,}"]
        row += [_money(found.cost_per_hour), _money(found.cost_at_target)]
    return row


def capacity_verdict(capacity: "Capacity") -> list[str]:
    """Return text on the highest capacity, the lowest cost and the margins, where shown."""
    target, currency = capacity.goal.target_rate, capacity.goal.prices.currency
    at = "at full load" if target is None else f"for {figures(target, 6)} requests/s"
    unit = f"{currency} per million output tokens" if target is None else f"{currency} per hour"
    lines = [_leaders(f"most per {capacity.unit}", capacity.most, "requests/s")]
    lines.append(_leaders(f"cheapest {at}", capacity.cheapest, unit))
    lines += [
        f"margins of {found.name}: "
        + ", ".join(
            f"{metric_name(name)} {percent(share, 0)}" for name, share in found.margins.items()
        )
        for found in capacity.found
        if found.margins
    ]
    return [line for line in lines if line]


def _leaders(what: str, ranking: "Ranking", unit: str) -> str:
    names = [f"{each.hardware} {each.policy}" for each in ranking.leaders]
    if len(ranking.leaders) + len(ranking.others) < 2:
        return ""
    if len(names) == 1:
        return f"{what}: {names[0]}, {figures(ranking.leaders[0].value)} {unit}"
    return f"{what}: no difference shown between {', '.join(names[:-1])} and {names[-1]}"


def _front(capacity: "Capacity") -> Table:
    currency = capacity.goal.prices.currency
    target = capacity.goal.target_rate
    unit = f"{currency} / 1 M" if target is None else f"{currency} / 1 M at {figures(target, 6)}/s"
    columns = [unit, "mean latency, ms", "hardware", "policy", "requests/s"]
    rows = (
        [
            _money(offer.compared_cost),
            milliseconds(offer.mean_e2el_ms),
            escape(offer.hardware),
            escape(offer.policy),
            figures(offer.requests_per_second),
        ]
        for offer in capacity.front
    )
    title = f"no load on one {capacity.unit} is both cheaper and faster than these"
    return new_table(title, columns, rows)


def _money(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:,.3f}"


def split_table(found: "Split", title: str) -> Table:
    """Return the ways to use the GPUs, the best of each load first."""
    columns = [
        "", "rate/s", "GPUs", "req/s", "SLO", "mean TTFT ms", "p99", "mean TPOT ms", "p99",
        "transfer ms", "",
    ]  # fmt: skip
    has_policies = any(row.policy is not None for row in found.rows)
    rows = [_cells(row) for row in found.rows]
    if has_policies:
        columns.insert(1, "policy")
        for row, cells in zip(found.rows, rows, strict=True):
            cells.insert(1, row.policy or "-")
    return new_table(f"{title}: {found.gpus} GPUs, p prefill and d decode", columns, rows)


_SPLIT_TIMES = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_transfer_ms")


def _cells(row: "SplitRow") -> list[str]:
    values = row.values
    attainment = values["slo_attainment"]
    judgement = "bound: knows what no server does" if row.is_bound else ""
    notes = (STABILITY_MARKS[row.stability], "efficient" if row.is_efficient else judgement)
    return [
        row.label,
        "-" if row.rate is None else figures(row.rate, 6),
        str(row.gpus),
        shown("request_throughput", values["request_throughput"]),
        "-" if attainment is None else percent(attainment),
        *(shown(name, values[name]) for name in _SPLIT_TIMES),
        ", ".join(filter(None, notes)),
    ]


def search_lines(search: "Search") -> list[str]:
    """Return text on the extent of the search and the errors of its predictions."""
    worst = search.worst_error
    error = "" if worst is None else f"; their mean latency was predicted within {percent(worst)}"
    return [
        f"{len(search.predictions) + search.too_small} splits in {search.seconds:.0f} s: "
        f"{search.pieces} pools simulated by themselves, {search.too_small} splits left out "
        f"because a queue kept growing, the most promising simulated whole (the table){error}",
        *(f"left out: {each}" for each in search.left_out),
    ]


_SWEPT = {
    "mean_ttft_ms": "TTFT mean, ms",
    "mean_tpot_ms": "TPOT mean, ms",
    "mean_e2el_ms": "E2E latency mean, ms",
    "output_throughput": "output tokens/s",
}


def sweep_tables(records: list[dict[str, Any]], name: str) -> list[Table]:
    """Return one row per combination, averaged over replications; nothing for a large sweep."""
    groups = [(labels, list(each)) for labels, each in groupby(records, lambda r: r["labels"])]
    if len(groups) > 40:  # of a sweep
        return []
    columns = [*_shortest(list(records[0]["labels"])), *_SWEPT.values(), ""]
    table = new_table(name, columns, (_combination(labels, own) for labels, own in groups))
    if any(len(own) > 1 for _, own in groups):
        table.caption = "±: 95 % interval of the mean over replications"
    return [table]


def _shortest(fields: list[str]) -> list[str]:
    """Return the shortest unique end of each dotted name, from a dot on; else the whole name."""
    parts = [field.split(".") for field in fields]
    ends = [[".".join(each[-n:]) for n in range(1, len(each) + 1)] for each in parts]
    count = Counter(end for own in ends for end in own)
    return [next((end for end in own if count[end] == 1), own[-1]) for own in ends]


def _combination(labels: dict[str, str], records: list[dict[str, Any]]) -> list[str]:
    found = [record["metrics"] for record in records if record["error"] is None]
    values = [_mean_of(key, [each[key] for each in found]) for key in _SWEPT]
    problem = "FAILED" if len(found) < len(records) else ""
    mark = STABILITY_MARKS[together(map(stability_in, found))] if found else ""
    return [*map(escape, labels.values()), *values, problem or mark]


def _mean_of(metric: str, values: list[float]) -> str:
    """Return the mean over runs, with half its interval if there are several."""
    if not values:
        return "-"
    mean, half = mean_and_half_width(values)
    text = shown(metric, mean)
    return text if half is None or text == "-" else f"{text} ± {figures(half, 2)}"
