"""Tables on the terminal, one module per subject, and their common parts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from specsim.core.figures import figures

if TYPE_CHECKING:
    from specsim.study.paired import SpeedUp


def new_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]] = ()) -> Table:
    """Return a table: the first column names the rows, the others hold numbers.

    A last column without a name is for remarks, and is left out if there are none.
    """
    table = Table(title=escape(title), title_justify="left", header_style="bold")
    first, *others = columns
    cells = [list(row) for row in rows]
    if cells and others and not others[-1] and not any(row[-1] for row in cells):
        others.pop()
        cells = [row[:-1] for row in cells]
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(escape(column), justify="right", overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


@dataclass(frozen=True)
class WideTable:
    """A table that is printed whole if it fits the width of the terminal, else in parts."""

    whole: Table
    parts: list[Table]
    is_wrapped: bool  # whether cells may be broken between words

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        width = Measurement.get(console, options.update(width=10_000), self.whole)
        least = width.minimum if self.is_wrapped else width.maximum
        yield from [self.whole] if least <= options.max_width else self.parts


def add_wide_rows(table: Table, rows: Iterable[tuple[str, str]]) -> None:
    """Add a section of rows that have one number, which stands in the second column."""
    table.add_section()
    for name, value in rows:
        table.add_row(name, value)


def interval(value: "SpeedUp") -> str:
    """Return the 95 % interval of a speed-up; ``-`` for a single replication."""
    return _between(value.low, value.high)


def model_interval(value: "SpeedUp") -> str:
    """Return the interval of a speed-up over four in five measured servers; ``-`` if not known."""
    return _between(value.model_low, value.model_high)


def _between(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.3f} - {high:.3f}"


_FORMS = {
    "request_throughput": "{:,.3f}",
    "request_goodput": "{:,.3f}",
    "tokens_per_step": "{:.3f}",
    "spec_decode_acceptance_rate": "{:.1f} %",
}
"""Format of a metric in tables, by its name in ``summary.json``."""


_FIGURES = ("output_throughput", "num_preemptions")
"""These may be in the thousands, or fractions as a mean over runs."""


def shown(metric: str, value: float | None) -> str:
    """Return a metric in the format of all tables; ``-`` without a value.

    Answers of one token have no time between tokens, where ``summary.json`` has 0, as vLLM.
    """
    has_none = value == 0 and metric.endswith(("tpot_ms", "itl_ms"))
    if value is None or isnan(value) or has_none:
        return "-"
    if metric in _FIGURES:
        return figures(value, 3)
    return milliseconds(value) if metric.endswith("_ms") else _FORMS[metric].format(value)


def milliseconds(value: float) -> str:
    """Return a time in milliseconds as every table shows it."""
    return f"{value:,.2f}"
