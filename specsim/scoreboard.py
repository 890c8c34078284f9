"""The scoreboard: many policies, one row each, ranked by their speed-up."""

from collections.abc import Callable
from functools import partial
from math import isnan
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from specsim.compare import Comparison, Standing
from specsim.paired import Regret, SpeedUp

__all__ = ["scoreboard"]


Cell = Callable[[Standing], str]


class _Column(NamedTuple):
    title: str
    field: str
    form: str


_COLUMNS = (
    _Column("E2E\nmean, ms", "mean_e2el_ms", "{:,.1f}"),
    _Column("TTFT\nmean, ms", "mean_ttft_ms", "{:,.1f}"),
    _Column("TPOT\nmean, ms", "mean_tpot_ms", "{:,.2f}"),
    _Column("E2E\np99, ms", "p99_e2el_ms", "{:,.1f}"),
    _Column("tokens/s", "output_throughput", "{:,.0f}"),
    _Column("tokens\nper step", "tokens_per_step", "{:.3f}"),
    _Column("draft\nacceptance", "spec_decode_acceptance_rate", "{:.1f} %"),
)


def scoreboard(comparison: Comparison, title: str) -> Table:
    """Return the table of a comparison of many policies.

    Parameters
    ----------
    comparison : Comparison
    title : str

    Returns
    -------
    rich.table.Table
    """
    standings = comparison.standings
    table = Table(
        title=escape(title),
        caption=_caption(standings),
        title_justify="left",
        caption_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    columns = {**_fixed_columns(standings), **_regret_columns(standings)}
    for name in columns:
        is_text = name in ("policy", "")
        table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    for standing in standings:
        table.add_row(*(cell(standing) for cell in columns.values()))
    return table


def _fixed_columns(standings: list[Standing]) -> dict[str, Cell]:
    columns: dict[str, Cell] = {
        "rank": lambda standing: f"{standing.rank}{' =' if standing.is_tied else '  '}",
        "policy": lambda standing: escape(standing.result.label),
    }
    if any(standing.result.is_unstable for standing in standings):
        columns[""] = lambda standing: "UNSTABLE" if standing.result.is_unstable else ""
    columns["speed-up"] = lambda standing: _speed_up(standing.result.speed_up)
    for column in _COLUMNS:
        columns[column.title] = partial(_mean, column)
    return columns


def _regret_columns(standings: list[Standing]) -> dict[str, Cell]:
    """Return a column per reference that is among the policies, named after it."""
    columns: dict[str, Cell] = {}
    if (oracle := standings[0].regret_oracle) is not None:
        columns[_above(oracle)] = lambda standing: _percent(standing.regret_oracle)
    if (best_static := standings[0].regret_best_static) is not None:
        columns[_above(best_static)] = lambda standing: _percent(standing.regret_best_static)
    return columns


def _above(value: Regret) -> str:
    return f"regret against\n{escape(value.reference)}"


def _caption(standings: list[Standing]) -> str:
    lines = []
    if standings[0].regret_oracle or standings[0].regret_best_static:
        lines.append("regret: mean E2E latency above the oracle's, or the best static k's")
    if standings[0].result.speed_up.low is not None:
        lines.append("±: half of the paired 95 % interval")
    if any(standing.is_tied for standing in standings):
        lines.append("=: that of the difference to the rank above includes 0")
    return "; ".join(lines)


def _mean(column: _Column, standing: Standing) -> str:
    value = standing.result.mean(column.field)
    return "-" if isnan(value) else column.form.format(value)


def _speed_up(value: SpeedUp) -> str:
    return f"{value.mean:.3f}" + _half_width(value.low, value.high, 3)


def _percent(value: Regret | None) -> str:
    return "-" if value is None else f"{value.mean:+.1f} %" + _half_width(value.low, value.high, 1)


def _half_width(low: float | None, high: float | None, digits: int) -> str:
    return "" if low is None or high is None else f" ± {(high - low) / 2:.{digits}f}"
