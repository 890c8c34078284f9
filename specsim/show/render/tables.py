"""What all tables have in common."""

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

__all__ = ["new_table"]


def new_table(title: str, columns: Iterable[str]) -> Table:
    """Return an empty table: the first column names the rows, the others hold numbers."""
    table = Table(title=escape(title), title_justify="left", header_style="bold")
    first, *others = columns
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(escape(column), justify="right", overflow="fold")
    return table
