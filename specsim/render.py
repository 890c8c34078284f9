"""Tables on the terminal."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo
from rich.markup import escape
from rich.table import Table

from specsim.breakdown import Breakdown
from specsim.compare import Comparison, PolicyResult
from specsim.families import Family
from specsim.hardware import GIB
from specsim.paired import SpeedUp
from specsim.results.time_use import PARTS
from specsim.scoreboard import Scoreboard
from specsim.settings import Settings
from specsim.summary import Summary
from specsim.workload.describe import TraceDescription

__all__ = [
    "breakdown_tables",
    "comparison_table",
    "description_json",
    "family_table",
    "names_table",
    "run_table",
    "trace_table",
]

_LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E latency", "e2el"))
_STATISTICS = ("mean", "p50", "p90", "p99")
_MAX_COLUMNS = 4


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=escape(title), title_justify="left", header_style="bold")
    first, *others = columns
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(escape(column), justify="right", overflow="fold")
    return table


def _scalar_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    own = data["specsim"]
    rows = [
        ("requests/s", f"{data['request_throughput']:.3f}"),
        ("output tokens/s", f"{data['output_throughput']:,.0f}"),
        ("tokens per step", f"{own['tokens_per_step']:.3f}"),
        ("preemptions", f"{own['num_preemptions']:,}"),
    ]
    if data["request_goodput"] is not None:
        rows.insert(1, ("goodput requests/s", f"{data['request_goodput']:.3f}"))
    if "spec_decode_acceptance_rate" in data:
        rows.append(("draft acceptance", f"{data['spec_decode_acceptance_rate']:.1f} %"))
    if own["prefix_hit_tokens"]:
        rows.append(("prefix hit tokens", f"{own['prefix_hit_tokens']:,}"))
    return rows


def run_table(summary: Summary, title: str) -> Table:
    """Return the table of one run.

    Parameters
    ----------
    summary : Summary
    title : str

    Returns
    -------
    rich.table.Table
    """
    data = summary.data
    unstable = " UNSTABLE (queue still growing)" if summary.is_unstable else ""
    table = _table(title + unstable, ["ms", *_STATISTICS])
    for name, kind in _LATENCIES:
        values = (data[f"{statistic}_{kind}_ms"] for statistic in _STATISTICS)
        table.add_row(name, *(f"{value:,.2f}" for value in values))
    table.add_section()
    for name, value in _scalar_rows(data):
        table.add_row(name, value, "", "", "")
    return table


def comparison_table(comparison: Comparison, title: str) -> Table | Scoreboard:
    """Return the table of a comparison: policies as columns while few, ranked when many.

    Parameters
    ----------
    comparison : Comparison
    title : str

    Returns
    -------
    rich.table.Table or Scoreboard
    """
    count = comparison.num_replications
    title = f"{title} ({count} replication{'s' if count > 1 else ''})"
    if len(comparison.results) > _MAX_COLUMNS:
        return Scoreboard(comparison, title)
    return _policies_as_columns(comparison.results, title)


def _policies_as_columns(results: list[PolicyResult], title: str) -> Table:
    table = _table(title, ["", *(result.label for result in results)])
    for name, kind in _LATENCIES:
        for statistic in _STATISTICS:
            values = (result.mean(f"{statistic}_{kind}_ms") for result in results)
            table.add_row(f"{name} {statistic}, ms", *(f"{value:,.2f}" for value in values))
        table.add_section()
    for name, field, form in (
        ("requests/s", "request_throughput", "{:.3f}"),
        ("output tokens/s", "output_throughput", "{:,.0f}"),
    ):
        table.add_row(name, *(form.format(result.mean(field)) for result in results))
    table.add_row("tokens per step", *(f"{r.mean('tokens_per_step'):.3f}" for r in results))
    table.add_row("preemptions", *(f"{r.mean('num_preemptions'):,.0f}" for r in results))
    table.add_row("draft acceptance", *map(_acceptance, results))
    table.add_section()
    table.add_row("speed-up", *(f"{result.speed_up.mean:.3f}" for result in results))
    if results[0].speed_up.low is not None:
        table.add_row("95 % interval", *(_interval(result.speed_up) for result in results))
    if any(result.is_unstable for result in results):
        marks = ("UNSTABLE" if result.is_unstable else "" for result in results)
        table.add_row("queue still growing", *marks)
    return table


def _acceptance(result: PolicyResult) -> str:
    if "spec_decode_acceptance_rate" not in result.summaries[0]:
        return "-"
    return f"{result.mean('spec_decode_acceptance_rate'):.1f} %"


def _interval(value: SpeedUp) -> str:
    if value.low is None or value.high is None:
        return "-"
    return f"{value.low:.3f} - {value.high:.3f}"


def breakdown_tables(breakdown: Breakdown, title: str) -> list[Table]:
    """Return the tables of ``specsim breakdown``: time, memory, and use of the KV cache.

    Parameters
    ----------
    breakdown : Breakdown
    title : str

    Returns
    -------
    list of rich.table.Table
    """
    time, names = breakdown.time, ["batch size", "steps", "of the time", *PARTS]
    times = _table(f"{title}: time of all replicas", names)
    for label, row in [*((row.label, row) for row in time.rows), ("all", time.overall)]:
        if row is time.overall:
            times.add_section()
        shares = (f"{100 * share:.1f} %" for share in (row.share, *row.parts.values()))
        times.add_row(label, f"{row.num_steps:,}", *shares)
    if time.hidden_overhead_share > 0:
        times.caption = f"and {100 * time.hidden_overhead_share:.1f} % overhead hidden by the GPU"
    return [times, _memory_table(breakdown), _kv_table(breakdown)]


def _memory_table(breakdown: Breakdown) -> Table:
    parts, memory = breakdown.memory_parts, breakdown.memory
    limit = memory.usable_bytes / memory.total_bytes
    table = _table("memory of one GPU", ["", "GiB", "of the GPU"])
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


def _kv_table(breakdown: Breakdown) -> Table:
    kv, memory = breakdown.kv, breakdown.memory
    block_bytes = memory.block_bytes + memory.draft_block_bytes
    table = _table("KV cache of one replica", ["", "blocks", "GiB per GPU", "of the cache"])
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
    return f"{size / GIB:,.2f}", f"{100 * size / whole:.1f} %"


def trace_table(description: TraceDescription, title: str) -> Table:
    """Return the table of ``specsim trace describe``.

    Parameters
    ----------
    description : TraceDescription
    title : str

    Returns
    -------
    rich.table.Table
    """
    table = _table(title, ["", "value"])
    for name, value in (
        ("format", description.format),
        ("requests", f"{description.num_requests:,}"),
        ("failed requests left out", f"{description.num_dropped:,}"),
        ("duration, s", _number(description.duration)),
        ("mean rate, requests/s", _number(description.mean_rate)),
        ("peak rate over 10 s, requests/s", _number(description.peak_rate)),
        ("burstiness (1 = Poisson, less = burstier)", _number(description.burstiness)),
        ("reused prefix, share of prompt tokens", _number(description.reused_prefix_share)),
        ("recorded acceptance", ", ".join(description.recorded_acceptance) or "-"),
        ("note", description.note or "-"),
    ):
        table.add_row(name, escape(value))
    for name, lens in (("prompt", description.prompt), ("output", description.output)):
        table.add_section()
        table.add_row(f"{name} tokens in all", f"{lens.total:,}")
        table.add_row(f"{name} length, mean ± std", f"{lens.mean:,.1f} ± {lens.std:,.1f}")
        quantiles = "  ".join(f"{key} {value:,.0f}" for key, value in lens.quantiles.items())
        table.add_row(f"{name} length, quantiles", quantiles)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def description_json(description: TraceDescription) -> dict[str, Any]:
    """Return a description as plain values."""
    return asdict(description)


def family_table(family: Family[Any]) -> Table:
    """Return the members of a family with their fields.

    Parameters
    ----------
    family : Family

    Returns
    -------
    rich.table.Table
    """
    table = Table(title=family.name, title_justify="left", header_style="bold", show_lines=True)
    for column in (family.tag, "what it is, and an example", "fields"):
        table.add_column(column)
    for name, member in family.all_members().items():
        fields = (
            _field(field, info)
            for field, info in member.model_fields.items()
            if field != family.tag
        )
        summary = (member.__doc__ or "").strip().splitlines()[0]
        examples = (_flow({family.tag: name, **example}) for example in member.examples)
        table.add_row(name, escape("\n".join([summary, *examples])), escape("\n".join(fields)))
    return table


def names_table(title: str, names: dict[str, str]) -> Table:
    """Return a table of names, each with a remark.

    Parameters
    ----------
    title : str
    names : dict of str to str

    Returns
    -------
    rich.table.Table
    """
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("source")
    for name, remark in names.items():
        table.add_row(name, escape(remark))
    return table


def _flow(value: dict[str, Any]) -> str:
    """Return a mapping as one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
    return text.strip()


def _field(name: str, info: FieldInfo) -> str:
    text = f"{name}: {_type(info.annotation)}"
    return text if info.is_required() else f"{text} = {info.default}"


def _type(annotation: Any) -> str:
    """Return an annotation as a reader would say it."""
    if get_origin(annotation) is Annotated:
        return _type(get_args(annotation)[0])
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return f"{{{', '.join(annotation.model_fields)}}}"
    arguments = get_args(annotation)
    if not arguments:
        return getattr(annotation, "__name__", str(annotation)).replace("NoneType", "None")
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, arguments))
    if get_origin(annotation) is tuple:
        return f"[{', '.join('...' if part is ... else _type(part) for part in arguments)}]"
    return " | ".join(map(_type, arguments))
