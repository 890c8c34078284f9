"""What all tables have in common."""

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from specsim.paired import SpeedUp

__all__ = ["interval", "new_table"]


def new_table(title: str, columns: Iterable[str]) -> Table:
    """Return an empty table: the first column names the rows, the others hold numbers.

    Parameters
    ----------
    title : str
    columns : iterable of str

    Returns
    -------
    rich.table.Table
    """
    table = Table(title=escape(title), title_justify="left", header_style="bold")
    first, *others = columns
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(escape(column), justify="right", overflow="fold")
    return table


def interval(value: SpeedUp) -> str:
    """Return the 95 % interval of a speed-up; ``-`` of a single replication.

    Parameters
    ----------
    value : SpeedUp

    Returns
    -------
    str
    """
    if value.low is None or value.high is None:
        return "-"
    return f"{value.low:.3f} - {value.high:.3f}"
