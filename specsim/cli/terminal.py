"""What a person at a terminal sees beside the results: tables, warnings, progress."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

_SLOW = 1.0  # seconds after which a progress bar appears
_FILE_WIDTH = 160


@contextmanager
def progress(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, once the work has taken a second; elsewhere nothing."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    started_at = monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        task = bars.add_task(description, total=total, visible=False)
        last_shown = started_at

        def advance(done: int) -> None:
            nonlocal last_shown
            now = monotonic()
            if now - started_at > _SLOW and now - last_shown > 0.1:
                last_shown = now
                bars.update(task, completed=done, visible=True)

        yield advance


@contextmanager
def spinner(description: str) -> Iterator[None]:
    """Show on a terminal that work of unknown length goes on; elsewhere nothing."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(f"{description} ..."):
        yield


def show(*tables: Any, to_stderr: bool = False) -> None:
    """Print tables to standard output, or where that is for another program, to standard error."""
    from rich.console import Console
    from rich.table import Table

    # Into a file or pipe nothing has to fit, and nothing is cut.
    stream = sys.stderr if to_stderr else sys.stdout
    console = Console(width=None if stream.isatty() else _FILE_WIDTH, stderr=to_stderr)
    for table in tables:
        if isinstance(table, Table):
            keep_numbers_whole(table, console)
        console.print(table, crop=False)


def keep_numbers_whole(table: Any, console: Any) -> None:
    """Break no number in two: on a narrow terminal padding goes first, then the edge is passed."""
    from rich.measure import Measurement

    wide = console.options.update(width=_FILE_WIDTH)
    whole = [column for column in table.columns if column.justify == "right" or column.no_wrap]
    for column in whole:
        widths = [Measurement.get(console, wide, cell).minimum for cell in column.cells]
        column.min_width = max(widths, default=0)
    if whole and Measurement.get(console, wide, table).minimum > console.width:
        table.padding = 0
        narrowest = sum(column.min_width or 1 for column in table.columns) + len(table.columns) + 1
        if narrowest > console.width:
            table.width = narrowest


def warn(warnings: list[str]) -> None:
    """Print warnings to standard error."""
    from rich.console import Console

    for warning in warnings:
        Console(stderr=True, soft_wrap=True).print(f"warning: {warning}", markup=False)
