"""Shared parts of commands: options, files, libraries, and output for a terminal."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from shutil import get_terminal_size
from textwrap import TextWrapper
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

from specsim.core.atomic import new_file, new_folder
from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.reading import number_in

if TYPE_CHECKING:
    from specsim.profile import Profile
    from specsim.run.experiment import Experiment


def _is_file(path: Path) -> Path:
    """Return the path; a ConfigError if it is a model or a command in place of a file."""
    if not path.exists() and path.suffix not in (".yaml", ".yml", ".json"):
        raise ConfigError(
            f"{path}: there is no such file; specsim init writes an experiment for a model or a "
            "server's command, which specsim plan --vllm takes as it is"
        )
    return path


Config = Annotated[
    Path, typer.Argument(help="The experiment, a YAML file.", show_default=False, callback=_is_file)
]
SweepFile = Annotated[
    Path, typer.Argument(help="The sweep, a YAML file.", show_default=False, callback=_is_file)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Replace a field: --set policy.k=3."),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Replace the seed.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.", show_default=False)]
Workers = Annotated[int, typer.Option(min=1, help="Processes; the results do not depend on them.")]
PriceTable = Annotated[
    Path | None,
    typer.Option(
        help="Per GPU and hour: h100:2.1,l40s:0.95, or YAML; by default dated examples.",
        show_default=False,
    ),
]
Redundancy = Annotated[
    str, typer.Option(metavar="n+SERVERS", help="Servers beyond those that the load takes: n+1.")
]
Attainment = Annotated[
    float,
    typer.Option(
        max=1,
        help="Share of the requests that must keep the limits of --slo, all at once; one with a "
        "percentile, ttft:p90<800, is kept by that share instead.",
    ),
]
ALL_CORES = os.cpu_count() or 1


def all_overrides(overrides: list[str] | None, seed: int | None) -> list[str]:
    """Return the overrides of ``--set`` and ``--seed``."""
    return [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]


def refuse(given: Mapping[str, object], why: str) -> None:
    """Raise a ConfigError with the reason for the first given option; keys are in Python's form."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: {why}")


def warm_up(workers: int) -> None:
    """Let worker processes import the simulator while this process does."""
    from specsim.core.processes import warm_up as start

    start(workers)


def load_experiment(config: Path, overrides: list[str] | None, seed: int | None) -> "Experiment":
    """Return the experiment of a command, with its overrides."""
    from specsim.run.experiment import Experiment

    return Experiment.load(config, all_overrides(overrides, seed), option="--set")


@contextmanager
def results_folder(out: Path | None, replaced: Iterable[str] = ()) -> Iterator[Path | None]:
    """Open the results folder before the work, so that a folder not writable fails at once.

    Existing files named in `replaced` must be specsim's own, and are removed.
    """
    from specsim.results import check_kind

    if out is None:
        yield None
    else:
        replaced = tuple(replaced)
        check_kind(out, replaced)
        with new_folder(out, replaced) as unfinished:
            yield unfinished


@contextmanager
def output_file(path: Path | None) -> Iterator[Path | None]:
    """Open a file before the work, so that a file not writable fails at once."""
    if path is None:
        yield None
    else:
        with new_file(path) as unfinished:
            yield unfinished


def write_json(file: Path | None, data: Any) -> None:
    """Write data as JSON, if there is a file for it."""
    if file is not None:
        file.write_text(json.dumps(data, indent=1) + "\n")


def write_profile(file: Path | None, profile: "Profile") -> None:
    """Write a profile as YAML, if there is a file for it."""
    if file is not None:
        file.write_text(profile.to_yaml(), encoding="utf-8")


def need(library: str, source: str, extra: str = "plots") -> None:
    """Raise a ConfigError with what to install if a command or option lacks its library."""
    if find_spec(library) is None:
        raise ConfigError(f"{source}: {_how_to_install(library, extra)}")


def check_plot(path: Path | None) -> None:
    """Raise a ConfigError if the picture of ``--plot`` cannot be drawn."""
    if path is not None:
        need("vl_convert", "--plot")
        from specsim.show.charts import check_suffix

        check_suffix(path)


def can_draw(picture: str) -> bool:
    """Return whether a picture beside other results can be drawn; warn if not."""
    if find_spec("vl_convert") is not None:
        return True
    warn([f"{picture} is left out: {_how_to_install('vl_convert', 'plots')}"])
    return False


def _how_to_install(library: str, extra: str) -> str:
    return f"{library} is not installed here; install it: pip install 'llm-specsim[{extra}]'"


_SLOW = 1.0  # seconds after which a progress bar appears
_FILE_WIDTH = 160


class Advance:
    """Receives the progress of some work for a bar on a terminal."""

    def __init__(self, bars: Any = None, task: Any = None) -> None:
        self._bars, self._task = bars, task
        self._started_at = self._last_shown = monotonic()

    def __call__(self, done: int) -> None:
        now = monotonic()
        if self._bars and now - self._started_at > _SLOW and now - self._last_shown > 0.1:
            self._last_shown = now
            self._bars.update(self._task, completed=done, visible=True)

    def stage(self, description: str) -> None:
        """Show the next stage, without a terminal as a line of its own: it may take minutes."""
        if self._bars:
            self._bars.update(self._task, description=description)
        else:
            typer.echo(f"{description} ...", err=True)


def console(**settings: Any) -> Any:
    """Return a `rich.console.Console` that prints names such as ``mine:Running:k=3`` unchanged."""
    from rich.console import Console

    return Console(emoji=False, **settings)


@contextmanager
def progress(description: str, total: int | None) -> Iterator[Advance]:
    """Show a bar on a terminal once the work has taken a second; nothing elsewhere."""
    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield Advance()
        return
    from rich import progress as rich_progress

    left = (
        rich_progress.TimeElapsedColumn() if total is None else rich_progress.TimeRemainingColumn()
    )
    what, how_far = (
        rich_progress.TextColumn(text, markup=False)
        for text in ("{task.description}", "{task.completed:,}")
    )
    columns = (what, rich_progress.BarColumn(), how_far, left)
    with rich_progress.Progress(*columns, console=terminal, transient=True) as bars:
        yield Advance(bars, bars.add_task(description, total=total, visible=False))


@contextmanager
def spinner(description: str) -> Iterator[None]:
    """Show a spinner on a terminal for work of unknown length; nothing elsewhere."""
    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield
        return
    with terminal.status(f"{description} ..."):
        yield


def show(*tables: Any, to_stderr: bool = False) -> None:
    """Print tables to standard output, or to standard error if other output goes there."""
    from rich.table import Table

    # A file or pipe has no width, so nothing is cut.
    stream = sys.stderr if to_stderr else sys.stdout
    shown_on = console(width=None if stream.isatty() else _FILE_WIDTH, stderr=to_stderr)
    for shown in tables:
        is_one = isinstance(shown, Table)
        for table in [shown] if is_one else shown.__rich_console__(shown_on, shown_on.options):
            keep_numbers_whole(table, shown_on)
            shown_on.print(table, crop=False)


def keep_numbers_whole(table: Any, console: Any) -> None:
    """Never break a number in a table, nor a word of its head if there is room.

    On a narrow terminal padding is removed first, then lines exceed the width.
    """
    from rich.measure import Measurement

    wide = console.options.update(width=_FILE_WIDTH)
    whole = [column for column in table.columns if column.justify == "right" or column.no_wrap]
    is_wide = Measurement.get(console, wide, table).maximum > console.width

    def least(column: Any, *, has_room: bool) -> int:
        parts = [*column.cells, *([column.header] if has_room else [])]
        kept = [p.replace(" %", "\N{NO-BREAK SPACE}%") if isinstance(p, str) else p for p in parts]
        widths = [Measurement.get(console, wide, each) for each in kept]
        is_one_line = has_room and column.no_wrap
        return max((w.maximum if is_one_line else w.minimum for w in widths), default=0)

    for has_room in (True, False):
        for column in whole:
            column.min_width = least(column, has_room=has_room)
            column.max_width = column.min_width if has_room and is_wide else None
        if Measurement.get(console, wide, table).minimum <= console.width:
            return
    if whole:
        table.padding = 0
        narrowest = sum(column.min_width or 1 for column in table.columns) + len(table.columns) + 1
        if narrowest > console.width:
            table.width = narrowest


def say(sentences: Iterable[str]) -> None:
    """Print sentences, one per line; a terminal breaks them between words."""
    if not sys.stdout.isatty():
        typer.echo("\n".join(sentences))
        return
    lines = TextWrapper(get_terminal_size().columns, subsequent_indent="  ")
    lines.break_long_words = lines.break_on_hyphens = False
    for each in sentences:
        typer.echo(lines.fill(each))


def warn(warnings: list[str]) -> None:
    """Print warnings to standard error."""
    for warning in warnings:
        console(stderr=True, soft_wrap=True).print(f"warning: {warning}", markup=False)


_NAMES = {float: "NUMBER", int: "COUNT"}


def with_numbers(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose number options also take specsim's own output: 1,000 and 90 %.

    Percentages are for shares only: options with a maximum of 1.
    """
    for name, parameter in signature(command).parameters.items():
        kind, option = parameter.annotation, parameter.default
        if get_origin(kind) is Annotated:
            kind, option = get_args(kind)
        kind = next((each for each in _NAMES if kind == each or each in get_args(kind)), None)
        if kind is not None:
            names = option.param_decls or (f"--{name.replace('_', '-')}",)
            option.parser = _reader(names[0], kind, option.min, option.max)
            option.metavar = option.metavar or _NAMES[kind]
    return command


def _reader(
    option: str, kind: type[float], low: float | None, high: float | None
) -> Callable[[Any], Any]:
    is_share = kind is float and high is not None and high <= 1
    examples = "0.9 or 90%" if is_share else "1000 or 1,000"
    rule = f"should be a {'whole ' if kind is int else ''}number, such as {examples}"

    def read(text: Any) -> Any:
        if not isinstance(text, str):  # a default value
            return text
        value = number_in(text, kind, is_share=is_share)
        # No ConfigError: Typer would replace the text of a ValueError.
        if value is None:
            raise SpecsimError(f"{option} {text:.80}: {rule}")
        if (low is not None and value < low) or (high is not None and value > high):
            between = " and ".join(
                f"at {which} {bound:,}"
                for which, bound in (("least", low), ("most", high))
                if bound is not None
            )
            raise SpecsimError(f"{option} {text:.80}: {rule}, {between}")
        return value

    return read
