"""Command ``sweep``."""

import os
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.options import Overrides, Seed, all_overrides
from specsim.cli.terminal import progress

__all__ = ["sweep"]


def sweep(
    config: Annotated[Path, typer.Argument(help="The sweep, a YAML file.", show_default=False)],
    overrides: Overrides = None,
    seed: Seed = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes; the results do not depend on them.")
    ] = os.cpu_count() or 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the sweep that the folder holds.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; by default results/NAME.", show_default=False),
    ] = None,
) -> None:
    """Run an experiment along several axes.

    The folder gets sweep.yaml, points/00017.json as soon as that point has ended, and at last
    points.parquet, one row per point. Killed at any moment, --resume goes on, to the same bytes. A
    point that fails is recorded with its error, and the others go on; the exit code is then 1.
    """
    from specsim.sweep import LocalProcesses, Sweep, SweepFolder, run_sweep

    plan = Sweep.load(config, all_overrides(overrides, seed))
    folder = SweepFolder.create(out or Path("results") / config.stem, plan, resume=resume)
    with progress("points", plan.num_points) as on_progress:
        records = run_sweep(folder, LocalProcesses(workers), on_progress)
    failed = [record for record in records if record["error"]]
    typer.echo(f"results: {folder.path} ({len(records)} points, points.parquet)")
    if failed:
        where = ", ".join(f"{field} {label}" for field, label in failed[0]["labels"].items())
        typer.echo(
            f"{len(failed)} of {len(records)} points failed; the first, {where}: "
            f"{failed[0]['error']}",
            err=True,
        )
        raise typer.Exit(1)
