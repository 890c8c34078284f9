"""Comparisons of runs."""

from rich.table import Table

from specsim.show.render.intervals import interval
from specsim.show.render.run import LATENCIES, STATISTICS
from specsim.show.render.scoreboard import Scoreboard
from specsim.show.render.tables import new_table
from specsim.study.compare import Comparison, PolicyResult

__all__ = ["comparison_table"]

_MAX_COLUMNS = 4


def comparison_table(comparison: Comparison, title: str) -> Table | Scoreboard:
    """Return the table of a comparison: policies as columns while few, ranked when many."""
    count = comparison.num_replications
    title = f"{title} ({count} replication{'s' if count > 1 else ''})"
    if len(comparison.results) > _MAX_COLUMNS:
        return Scoreboard(comparison, title)
    return _policies_as_columns(comparison.results, title)


def _policies_as_columns(results: list[PolicyResult], title: str) -> Table:
    table = new_table(title, ["", *(result.label for result in results)])
    for name, kind in LATENCIES:
        for statistic in STATISTICS:
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
        table.add_row("95 % interval", *(interval(result.speed_up) for result in results))
    if any(result.is_unstable for result in results):
        marks = ("UNSTABLE" if result.is_unstable else "" for result in results)
        table.add_row("queue still growing", *marks)
    return table


def _acceptance(result: PolicyResult) -> str:
    if "spec_decode_acceptance_rate" not in result.summaries[0]:
        return "-"
    return f"{result.mean('spec_decode_acceptance_rate'):.1f} %"
