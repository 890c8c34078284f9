"""Options that several commands share."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "ALL_CORES",
    "Config",
    "Out",
    "Overrides",
    "Seed",
    "Workers",
    "all_overrides",
    "results_folder",
]

ALL_CORES = os.cpu_count() or 1
Config = Annotated[Path, typer.Argument(help="The experiment, a YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Replace a field: --set policy.k=3."),
]
Workers = Annotated[int, typer.Option(min=1, help="Processes; the results do not depend on them.")]
Seed = Annotated[int | None, typer.Option(help="Replace the seed.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.", show_default=False)]


def all_overrides(overrides: list[str] | None, seed: int | None) -> list[str]:
    """Return what ``--set`` and ``--seed`` replace."""
    return [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]


@contextmanager
def results_folder(out: Path | None, replaced: Iterable[str] = ()) -> Iterator[Path | None]:
    """Open the results folder before the work: what cannot be written fails at once.

    What it holds under the names in `replaced` must be specsim's own, and does not stay in it.
    """
    from specsim.core.atomic import new_folder

    if out is None:
        yield None
    else:
        with new_folder(out, replaced) as unfinished:
            yield unfinished
