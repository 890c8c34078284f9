"""The console's output of a plan: the answer, and the alternatives."""

from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table

from specsim.show.render import WideTable
from specsim.study.plan.words import asked, day_table, headline, table

if TYPE_CHECKING:
    from specsim.study.plan import Plan


def plan_lines(plan: "Plan") -> list[str]:
    """Return the question, and the answer in plain sentences."""
    return [asked(plan.advice), headline(plan.advice)]


def plan_tables(plan: "Plan") -> list[WideTable | Table]:
    """Return the table of all GPUs in the question, and the costs of a day if one was given."""
    day = day_table(plan.advice)
    return [_choices(*table(plan.advice)), *([_worded(*day)] if day[1] else [])]


_NAMES, _COSTS, _SURE = slice(2), slice(2, 5), slice(-1, None)
"""Columns of `table` for name, cost and certainty; the others are about speed."""
_SPEEDS = slice(_COSTS.stop, _SURE.start)


def _choices(heads: list[str], rows: list[list[str]]) -> WideTable:
    """Return the choices as a table whose parts are cost and speed."""
    whole = _worded(heads, rows)
    for place, column in enumerate(whole.columns):
        column.min_width = max(len(row[place]) for row in rows)
    parts = []
    for slices in ((_NAMES, _COSTS, _SURE), (_NAMES, _SPEEDS)):
        first, *others = ([c for own in slices for c in row[own]] for row in (heads, *rows))
        parts.append(_worded(first, others))
    return WideTable(whole, parts, is_wrapped=True)


def _worded(heads: list[str], rows: list[list[str]]) -> Table:
    """Return a table of text, which may be wrapped, and of numbers, below heads of text."""
    found = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for place, head in enumerate(heads):
        cells = [row[place] for row in rows]
        if place < 2 or head == "how sure":
            words = [word for cell in cells for word in cell.split()]
            found.add_column(head, min_width=max(map(len, words), default=0))
        else:
            width = max(map(len, [*head.split(), *cells]))
            found.add_column(head, justify="right", min_width=width, max_width=width)
    for row in rows:
        found.add_row(*map(escape, row))
    return found
