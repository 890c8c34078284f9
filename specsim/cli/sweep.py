"""Command ``sweep``."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specsim.cli.options import Overrides, Seed, all_overrides
from specsim.cli.terminal import progress, show, warn

if TYPE_CHECKING:
    from specsim.study.sweep import Backend

__all__ = ["sweep"]


class Where(StrEnum):
    """On what to run."""

    LOCAL = "local"
    RAY = "ray"


def sweep(
    config: Annotated[Path, typer.Argument(help="The sweep, a YAML file.", show_default=False)],
    overrides: Overrides = None,
    seed: Seed = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs at a time; the results do not depend on it. By default one per core.",
        ),
    ] = None,
    backend: Annotated[
        Where, typer.Option(help="Processes of this machine, or a Ray cluster.")
    ] = Where.LOCAL,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Of a Ray cluster that runs; by default one is started here."),
    ] = None,
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
    from specsim.core.errors import ConfigError
    from specsim.core.processes import warm_up

    if ray_address is not None and backend is not Where.RAY:
        raise ConfigError("--ray-address is used by --backend ray only; add that or leave it out")
    if backend is Where.LOCAL:
        workers = workers or os.cpu_count() or 1
        warm_up(workers)
    from specsim.show.render.runs import sweep_tables
    from specsim.study.sweep import Sweep, SweepFolder, run_sweep

    plan = Sweep.load(config, all_overrides(overrides, seed))
    place = _backend(workers, backend, ray_address)
    folder = SweepFolder.create(out or Path("results") / config.stem, plan, resume=resume)
    with progress("points", plan.num_points) as on_progress:
        records = run_sweep(folder, place, on_progress)
    show(*sweep_tables(records, config.name))
    warn(plan.notes)
    failed = [record for record in records if record["error"]]
    typer.echo(f"results: {folder.path} ({len(records)} points, points.parquet)")
    if failed:
        first = ", ".join(f"{field} {label}" for field, label in failed[0]["labels"].items())
        typer.echo(
            f"{len(failed)} of {len(records)} points failed; the first, {first}: "
            f"{failed[0]['error']}",
            err=True,
        )
        raise typer.Exit(1)


def _backend(workers: int | None, where: Where, ray_address: str | None) -> "Backend":
    from specsim.core.errors import ConfigError
    from specsim.study.sweep import LocalProcesses

    if where is Where.LOCAL:
        assert workers is not None
        return LocalProcesses(workers)
    try:
        from specsim.study.sweep.on_ray import RayCluster
    except ImportError as error:
        raise ConfigError("--backend ray needs Ray; pip install 'specsim[cluster]'") from error
    return RayCluster(workers, ray_address)
