"""The scoreboard: many policies, one row each, ranked by their speed-up."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import isnan
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from specsim.study.compare import Comparison, Standing
from specsim.study.paired import Regret, SpeedUp

__all__ = ["Scoreboard"]

_MARK = ""  # the column that says UNSTABLE has no title
_MAX_LABEL = 32
_UNLIMITED = 10_000

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


@dataclass(frozen=True)
class Scoreboard:
    """A comparison of many policies, to be printed by rich.

    One table where it fits the width of the terminal, else two: the ranking, and what was measured.
    """

    comparison: Comparison
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """Yield the tables that fit."""
        standings = self.comparison.standings
        names, ranking = _name_columns(standings), _ranking_columns(standings)
        measured = _measured_columns()
        whole = _table(standings, {**names, **ranking, **measured}, self.title)
        whole.caption = _caption(standings)
        unlimited = options.update(width=_UNLIMITED)
        if Measurement.get(console, unlimited, whole).maximum <= options.max_width:
            yield whole
            return
        first = _table(standings, {**names, **ranking}, self.title)
        first.caption = whole.caption
        yield first
        names.pop(_MARK, None)
        yield _table(standings, {**names, **measured}, "")


def _table(standings: list[Standing], columns: dict[str, Cell], title: str) -> Table:
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
            table.add_column(name, overflow="fold", max_width=_MAX_LABEL)
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for standing in standings:
        table.add_row(*(cell(standing) for cell in columns.values()))
    return table


def _name_columns(standings: list[Standing]) -> dict[str, Cell]:
    columns: dict[str, Cell] = {
        "rank": lambda standing: f"{standing.rank}{' =' if standing.is_tied else '  '}",
        "policy": lambda standing: escape(standing.result.label),
    }
    if any(standing.result.is_unstable for standing in standings):
        columns[_MARK] = lambda standing: "UNSTABLE" if standing.result.is_unstable else ""
    return columns


def _ranking_columns(standings: list[Standing]) -> dict[str, Cell]:
    """Return the speed-up, and the regret against each reference that is among the policies."""
    columns: dict[str, Cell] = {"speed-up": lambda standing: _speed_up(standing.result.speed_up)}
    if (oracle := standings[0].regret_oracle) is not None:
        columns[_above(oracle)] = lambda standing: _percent(standing.regret_oracle)
    if (best_static := standings[0].regret_best_static) is not None:
        columns[_above(best_static)] = lambda standing: _percent(standing.regret_best_static)
    return columns


def _measured_columns() -> dict[str, Cell]:
    return {column.title: partial(_mean, column) for column in _COLUMNS}


def _above(value: Regret) -> str:
    return f"regret against\n{escape(value.reference)}"


def _caption(standings: list[Standing]) -> str:
    lines = []
    if standings[0].regret_oracle or standings[0].regret_best_static:
        lines.append("regret: how much longer the mean E2E latency is")
    if standings[0].result.speed_up.low is not None:
        lines.append("±: half of the paired 95 % interval")
    if any(standing.is_tied for standing in standings):
        lines.append("=: tied, the interval of the difference to the rank above includes 0")
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
