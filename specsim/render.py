"""Tables on the terminal."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo
from rich.markup import escape
from rich.table import Table

from specsim.compare import Comparison, PolicyResult, SpeedUp
from specsim.families import Family
from specsim.settings import Settings
from specsim.summary import Summary
from specsim.workload.describe import TraceDescription

__all__ = [
    "comparison_table",
    "description_json",
    "distances_table",
    "family_table",
    "names_table",
    "run_table",
    "trace_table",
]

_LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E latency", "e2el"))
_STATISTICS = ("mean", "p50", "p90", "p99")
_MAX_COLUMNS = 5


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


def comparison_table(comparison: Comparison, title: str) -> Table:
    """Return the table of a comparison: policies as columns while few, as rows when many.

    Parameters
    ----------
    comparison : Comparison
    title : str

    Returns
    -------
    rich.table.Table
    """
    count = comparison.num_replications
    title = f"{title} ({count} replication{'s' if count > 1 else ''})"
    if len(comparison.results) > _MAX_COLUMNS:
        return _policies_as_rows(comparison.results, title)
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
    table.add_row("tokens per step", *(f"{_own(r, 'tokens_per_step'):.3f}" for r in results))
    table.add_row("preemptions", *(f"{_own(r, 'num_preemptions'):,.0f}" for r in results))
    table.add_row("draft acceptance", *map(_acceptance, results))
    table.add_section()
    table.add_row("speed-up", *(f"{result.speed_up.mean:.3f}" for result in results))
    if results[0].speed_up.low is not None:
        table.add_row("95 % interval", *(_interval(result.speed_up) for result in results))
    if any(result.is_unstable for result in results):
        marks = ("UNSTABLE" if result.is_unstable else "" for result in results)
        table.add_row("queue still growing", *marks)
    return table


def _policies_as_rows(results: list[PolicyResult], title: str) -> Table:
    table = _table(
        title,
        [
            "policy",
            "speed-up",
            "95 % interval",
            "E2E mean, ms",
            "TTFT p99, ms",
            "TPOT mean, ms",
            "tokens/s",
            "acceptance",
            "",
        ],
    )
    for result in sorted(results, key=lambda result: -result.speed_up.mean):
        table.add_row(
            escape(result.label),
            f"{result.speed_up.mean:.3f}",
            _interval(result.speed_up),
            f"{result.mean('mean_e2el_ms'):,.1f}",
            f"{result.mean('p99_ttft_ms'):,.1f}",
            f"{result.mean('mean_tpot_ms'):,.2f}",
            f"{result.mean('output_throughput'):,.0f}",
            _acceptance(result),
            "UNSTABLE" if result.is_unstable else "",
        )
    return table


def _own(result: PolicyResult, field: str) -> float:
    values = [summary["specsim"][field] for summary in result.summaries]
    return float(sum(values) / len(values))


def _acceptance(result: PolicyResult) -> str:
    if "spec_decode_acceptance_rate" not in result.summaries[0]:
        return "-"
    return f"{result.mean('spec_decode_acceptance_rate'):.1f} %"


def _interval(value: SpeedUp) -> str:
    if value.low is None or value.high is None:
        return "-"
    return f"{value.low:.3f} - {value.high:.3f}"


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


def distances_table(rows: dict[str, dict[str, float]], title: str) -> Table:
    """Return the goodness of fit of acceptance models.

    Parameters
    ----------
    rows : dict of str to dict of str to float
        Per model the fields of `specsim.acceptance_fit.Distances`.
    title : str

    Returns
    -------
    rich.table.Table
    """
    table = _table(
        title,
        ["distance to the held-out half", "per step", "per request", "per 8 steps", "total steps"],
    )
    for name, row in rows.items():
        table.add_row(
            escape(name),
            *(f"{row[field]:.3f}" for field in ("per_step", "per_request", "per_window")),
            f"{100 * row['steps_error']:+.1f} %",
        )
    return table


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
