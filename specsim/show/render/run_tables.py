"""Tables of runs: one in detail, a few side by side, and many ranked."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from specsim.core.figures import figures, percent
from specsim.hardware import GIB
from specsim.results.metrics import SHOWN, TITLES
from specsim.results.stability import STABILITY_MARKS
from specsim.results.timeline import PARTS, scalings
from specsim.run.summary import Summary
from specsim.show.render import WideTable, add_wide_rows, interval, model_interval, new_table, shown

if TYPE_CHECKING:
    from specsim.show.breakdown import Breakdown, EngineMemory
    from specsim.study.compare import Comparison, PolicyResult, Standing
    from specsim.study.paired import SpeedUp

_SCALARS = (
    ("requests/s", "request_throughput"),
    ("output tokens/s", "output_throughput"),
    ("tokens per step", "tokens_per_step"),
    ("preemptions", "num_preemptions"),
    ("draft acceptance", "spec_decode_acceptance_rate"),
)
_TITLE_MARKS = {
    "stable": "",
    "overloaded": " OVERLOADED (queue still growing)",
    "undecided": " (undecided whether the server keeps up; more requests decide it)",
}


def run_table(summary: Summary, title: str) -> Table:
    """Return the table of one run."""
    data = summary.data
    mark = _TITLE_MARKS[summary.stability]
    rows = (
        [name, *(shown(f"{kind}_ms", data[f"{each}_{kind}_ms"]) for each in SHOWN)]
        for kind, name in TITLES.items()
    )
    table = new_table(title + mark, ["ms", *SHOWN], rows)
    add_wide_rows(table, _scalar_rows(data))
    return table


def _scalar_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    own = data["specsim"]
    known = {**own, **data}
    rows = [(name, shown(key, known[key])) for name, key in _SCALARS if key in known]
    if (goodput := data["request_goodput"]) is not None:
        share = f"{figures(100 * goodput / data['request_throughput'])} %"
        rows[1:1] = (
            ("goodput requests/s", shown("request_goodput", goodput)),
            ("within the limits", share),
        )
    if own["num_requeues"]:
        rows.append(("re-queued by failures", f"{own['num_requeues']:,}"))
    if own["prefix_hit_tokens"]:
        rows.append(("prefix hit tokens", f"{own['prefix_hit_tokens']:,}"))
    return rows + _kv_rows(data) + _cluster_rows(own)


def _kv_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    own, rows = data["specsim"], []
    if "pools" in own:
        found = own["pools"]
        share = found["mean_prefill_ms"] / data["mean_ttft_ms"]
        rows += [
            (f"{found['transfers']:,} transfers, mean", f"{found['mean_transfer_ms']:,.2f} ms"),
            ("transferred tokens", f"{found['transferred_tokens']:,}"),
            (
                "of TTFT until prefilled",
                f"{found['mean_prefill_ms']:,.2f} ms ({percent(share, 0)})",
            ),
        ]
    if "hits" in own:
        tokens = (own["hits"][f"{tier}_tokens"] for tier in ("gpu", "host", "disk"))
        shares = ", ".join(percent(each / data["total_input_tokens"]) for each in tokens)
        rows.append(("prefix hits: GPU, host, disk", shares))
    return rows


def _cluster_rows(own: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if "sessions" in own:
        found, turns = own["sessions"], own["sessions"]["by_turn"]
        median = found["duration_ms"]["median"] / 1e3
        rows.append((f"{found['count']:,} sessions, median", f"{median:,.1f} s"))
        shares = ", ".join(percent(row["hit_share"], 0) for row in turns[:4])
        hits = "GPU hits" if "hits" in own else "prefix hits"
        rows.append((f"{hits}, turns 1 to {min(4, len(turns))}", shares))
    for pool, found in scalings(own).items():
        name = f"{pool} " if pool else ""
        means = f"{found['mean_replicas']:.2f}, at most {found['peak_replicas']}"
        rows.append((f"{name}servers ({found['changes']} changes)", means))
        cost = "" if found["cost"] is None else f" = {found['cost']:,.2f}"
        rows.append((f"{name}GPU hours", f"{found['gpu_hours']:,.3f}{cost}"))
    return rows


def breakdown_tables(breakdown: "Breakdown", title: str) -> list[Table]:
    """Return the tables of ``specsim breakdown``: time, memory, and use of the KV cache."""
    time, names = breakdown.time, ["batch size", "steps", "of the time", *PARTS]
    times = new_table(f"{title}: time of all servers", names)
    for label, row in [*((row.label, row) for row in time.rows), ("all", time.overall)]:
        if row is time.overall:
            times.add_section()
        shares = map(percent, (row.share, *row.parts.values()))
        times.add_row(label, f"{row.num_steps:,}", *shares)
    if time.hidden_overhead_share > 0:
        times.caption = f"and {percent(time.hidden_overhead_share)} overhead hidden by the GPU"
    pools = {f" ({name})" if name else "": each for name, each in breakdown.engines.items()}
    makers = (_memory_table, _kv_table)
    return [times, *(make(each, pool) for pool, each in pools.items() for make in makers)]


def _memory_table(engine: "EngineMemory", pool: str) -> Table:
    parts, memory = engine.memory_parts, engine.memory
    limit = memory.usable_bytes / memory.total_bytes
    table = new_table(f"memory of one GPU{pool}", ["", "GiB", "of the GPU"])
    for name, label in (
        ("target_weights", "weights of the target"),
        ("draft_weights", "weights of the drafter"),
        ("reserved", "activations, CUDA graphs"),
        ("target_kv", "KV blocks of the target"),
        ("draft_kv", "KV blocks of the drafter"),
        ("unused", "left over"),
    ):
        table.add_row(label, *_gib(parts[name], memory.total_bytes))
    table.add_section()
    label = f"gpu_memory_utilization {limit:.2f}"
    table.add_row(label, *_gib(memory.usable_bytes, memory.total_bytes))
    table.add_row("the GPU", *_gib(memory.total_bytes, memory.total_bytes))
    return table


def _kv_table(engine: "EngineMemory", pool: str) -> Table:
    kv, memory = engine.kv, engine.memory
    block_bytes = memory.block_bytes + memory.draft_block_bytes
    table = new_table(
        f"KV cache of one {engine.called}{pool}", ["", "blocks", "GiB per GPU", "of the cache"]
    )
    for label, blocks in (
        ("used, mean over time", kv.mean_used),
        ("used, peak", kv.peak_used),
        ("free, mean over time", kv.num_usable - kv.mean_used),
        ("free at the peak", kv.num_usable - kv.peak_used),
        ("look-ahead slots, mean", kv.mean_lookahead),
        ("look-ahead slots, peak", kv.peak_lookahead),
    ):
        sizes = _gib(blocks * block_bytes, kv.num_usable * block_bytes)
        table.add_row(label, f"{blocks:,.1f}", *sizes)
    return table


def _gib(size: float, whole: float) -> tuple[str, str]:
    return f"{size / GIB:,.2f}", percent(size / whole)


def comparison_table(comparison: "Comparison", title: str) -> Table | WideTable:
    """Return a comparison with few policies as columns, or many policies ranked."""
    count = comparison.num_replications
    title = f"{title} ({count} replication{'s' if count > 1 else ''})"
    if len(comparison.results) > 4:  # policies; more are ranked
        return _scoreboard(comparison, title)
    return _policies_as_columns(comparison.results, title)


def _policies_as_columns(results: list["PolicyResult"], title: str) -> Table:
    table = new_table(title, ["", *(result.label for result in results)])
    for kind, name in TITLES.items():
        for statistic in SHOWN:
            field = f"{statistic}_{kind}_ms"
            table.add_row(f"{name} {statistic}, ms", *(_mean(result, field) for result in results))
        table.add_section()
    for name, field in _SCALARS:
        table.add_row(name, *(_mean(result, field) for result in results))
    if gpus := _gpus(results):
        table.add_row("GPUs", *map(str, gpus))
        rates = [result.mean("output_throughput") for result in results]
        each = (rate / count for rate, count in zip(rates, gpus, strict=True))
        table.add_row(
            "output tokens/s per GPU", *(shown("output_throughput", rate) for rate in each)
        )
    table.add_section()
    table.add_row("speed-up", *(f"{result.speed_up.mean:.3f}" for result in results))
    if results[0].speed_up.low is not None:
        table.add_row("95 % interval", *(interval(result.speed_up) for result in results))
    if any(result.speed_up.model_low for result in results[1:]):
        between = (model_interval(result.speed_up) for result in results[1:])
        table.add_row("4 in 5 servers", "-", *between)
    marks = [STABILITY_MARKS[result.stability] for result in results]
    if any(marks):
        table.add_row("keeps up?", *(mark or "stable" for mark in marks))
    return table


def _gpus(results: list["PolicyResult"]) -> list[int]:
    """Return the GPUs of each policy, if any has a drafter with GPUs of its own."""
    own = [result.summaries[0]["specsim"] for result in results]
    target = next((each["drafter"]["target_gpus"] for each in own if "drafter" in each), None)
    if target is None or "autoscaling" in own[0]:
        return []
    drafters = [each.get("drafter", {"gpus": 0})["gpus"] for each in own]
    return [each["replicas"] * (target + gpus) for each, gpus in zip(own, drafters, strict=True)]


def _mean(result: "PolicyResult", field: str) -> str:
    return shown(field, result.mean(field))


_MARK = ""  # the column of OVERLOADED has no title

_NARROWEST = 10  # width of a column of names, which may break anywhere
Cell = Callable[["Standing"], str]


_COLUMNS = (
    ("E2E\nmean, ms", "mean_e2el_ms"),
    ("TTFT\nmean, ms", "mean_ttft_ms"),
    ("TPOT\nmean, ms", "mean_tpot_ms"),
    ("E2E\np99, ms", "p99_e2el_ms"),
    ("tokens/s", "output_throughput"),
    ("tokens\nper step", "tokens_per_step"),
    ("draft\nacceptance", "spec_decode_acceptance_rate"),
)


def _scoreboard(comparison: "Comparison", title: str) -> WideTable:
    """Return policies ranked by speed-up; its parts are the ranking and the measurements."""
    standings = comparison.standings
    names, ranking = _name_columns(standings), _ranking_columns(standings)
    measured = {head: partial(_measured, name) for head, name in _COLUMNS}
    whole = _ranked(standings, {**names, **ranking, **measured}, title)
    first = _ranked(standings, {**names, **ranking}, title)
    whole.caption = first.caption = _caption(standings)
    names.pop(_MARK, None)
    return WideTable(
        whole, [first, _ranked(standings, {**names, **measured}, "")], is_wrapped=False
    )


def _ranked(standings: list["Standing"], columns: dict[str, Cell], title: str) -> Table:
    table = Table(
        title=escape(title) or None,
        title_justify="left",
        caption_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in columns:
        if name in ("policy", _MARK):
            table.add_column(name, overflow="fold", min_width=_NARROWEST, max_width=32)
        else:
            table.add_column(name, justify="right")
    for standing in standings:
        table.add_row(*(cell(standing) for cell in columns.values()))
    return table


def _name_columns(standings: list["Standing"]) -> dict[str, Cell]:
    columns: dict[str, Cell] = {
        "rank": lambda standing: f"{standing.rank or 'bound'}{' =' if standing.is_tied else '  '}",
        "policy": lambda standing: escape(standing.result.label),
    }
    if any(STABILITY_MARKS[standing.result.stability] for standing in standings):
        columns[_MARK] = lambda standing: STABILITY_MARKS[standing.result.stability]
    if gpus := _gpus([each.result for each in standings]):
        counts = dict(zip((each.result.label for each in standings), gpus, strict=True))
        columns["GPUs"] = lambda standing: str(counts[standing.result.label])
    return columns


def _ranking_columns(standings: list["Standing"]) -> dict[str, Cell]:
    """Return the speed-up, and the regret against each reference among the policies."""
    columns: dict[str, Cell] = {"speed-up": lambda standing: _speed_up(standing.result.speed_up)}
    if any(each.result.speed_up.model_low for each in standings):
        columns["4 in 5\nservers"] = lambda standing: model_interval(standing.result.speed_up)
    for name, found in standings[0].regrets.items():
        columns[f"regret against\n{escape(found.reference)}"] = partial(_regret, name)
    return columns


def _caption(standings: list["Standing"]) -> str:
    lines = []
    if any(standing.rank is None for standing in standings):
        lines.append("bound: knows what no server does")
    if standings[0].regrets:
        lines.append("regret: how much longer the mean E2E latency is")
    if standings[0].result.speed_up.low is not None:
        lines.append("±: half of the paired 95 % interval")
    if any(standing.result.speed_up.model_low for standing in standings):
        lines.append("4 in 5 servers: with step times as far off as on so many measured")
    if any(standing.is_tied for standing in standings):
        lines.append("=: tied, the interval of the difference to the rank above includes 0")
    return "; ".join(lines)


def _measured(field: str, standing: "Standing") -> str:
    return _mean(standing.result, field)


def _speed_up(value: "SpeedUp") -> str:
    return f"{value.mean:.3f}" + _half_width(value.low, value.high, 3)


def _regret(name: str, standing: "Standing") -> str:
    value = standing.regrets[name]
    return percent(value.mean / 100, sign=True) + _half_width(value.low, value.high, 1)


def _half_width(low: float | None, high: float | None, digits: int) -> str:
    return "" if low is None or high is None else f" ± {(high - low) / 2:.{digits}f}"
