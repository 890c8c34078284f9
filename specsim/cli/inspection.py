"""Commands that look into results folders: ``timeline`` and ``breakdown``."""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.terminal import show, spinner, warn

__all__ = ["breakdown", "check_keeps_results", "timeline"]


def _check_distinct(folders: list[Path]) -> None:
    from specsim.core.errors import ConfigError

    known: set[Path] = set()
    for folder in folders:
        if folder.resolve() in known:
            raise ConfigError(f"{folder}: is given twice; leave it out once")
        known.add(folder.resolve())


def check_keeps_results(path: Path, source: str) -> None:
    """Raise if a file would take the place of a result of a run."""
    from specsim.core.errors import ConfigError
    from specsim.results.export import RESULT_FILES

    if path.name in RESULT_FILES:
        raise ConfigError(f"{source} would replace {path.name}, a result of a run; rename it")


def _labels(folders: list[Path]) -> list[str]:
    """Return the paths of folders below the nearest folder that holds them all."""
    resolved = [folder.resolve() for folder in folders]
    shared = Path(os.path.commonpath([folder.parent for folder in resolved]))
    return [str(folder.relative_to(shared)) for folder in resolved]


def timeline(
    results: Annotated[
        list[Path], typer.Argument(help="Folders that run --out wrote.", show_default=False)
    ],
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw it here, .png, .svg or .pdf; by default timeline.png in the only folder."
        ),
    ] = None,
    bins: Annotated[int, typer.Option(min=1, max=10_000, help="Bins of the time axis.")] = 200,
    window: Annotated[
        int, typer.Option(min=1, help="Bins over which the acceptance is measured.")
    ] = 10,
    replica: Annotated[
        int | None, typer.Option(min=0, help="Only this replica, not all of them together.")
    ] = None,
) -> None:
    """Draw what runs did over time, one row of panels per folder.

    Batch size and waiting requests, the draft length that the policy asked for, its estimate of
    alpha where it has one, the measured acceptance, output tokens per step and per second. Of
    several replicas, requests waiting and tokens/s are summed, all else is averaged. The series
    stand in a Parquet file beside the plot.
    """
    from specsim.core.atomic import new_file
    from specsim.core.errors import ConfigError
    from specsim.results.folder import load_steps
    from specsim.results.timeline import timeline as binned
    from specsim.results.timeline import write_timelines
    from specsim.show.plots.figures import check_suffix
    from specsim.show.plots.runs import plot_timelines

    if plot is None and len(results) > 1:
        raise ConfigError(
            f"timeline of {len(results)} folders: say with --plot where the plot goes"
        )
    plot = plot or results[0] / "timeline.png"
    table = plot.with_suffix(".parquet")
    check_suffix(plot)
    check_keeps_results(table, f"{plot}: its series")
    _check_distinct(results)
    with spinner("reading the steps"):
        timelines = {}
        for label, folder in zip(_labels(results), results, strict=True):
            steps = load_steps(folder)
            steps = steps if replica is None else steps.of_replica(replica)
            timelines[label] = binned(steps, num_bins=bins, window=window)
    with spinner("drawing"), new_file(table) as rows:
        write_timelines(timelines, rows)
        plot_timelines(timelines, plot)
    typer.echo(f"timeline: {plot} and {table.name}")


def breakdown(
    results: Annotated[Path, typer.Argument(help="A folder that run --out wrote.")],
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write the numbers here.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw it here: .png, .svg or .pdf.", show_default=False)
    ] = None,
) -> None:
    """Print where the time and the memory of a run went.

    Time: forward passes of the target, drafting, overhead and idling, by batch size. Memory of one
    GPU: weights and KV blocks of target and drafter, and how much of the KV cache was in use.
    """
    from specsim.core.atomic import new_file
    from specsim.show.breakdown import break_down
    from specsim.show.render.breakdown import breakdown_tables

    for path, option in ((json_out, "--json"), (plot, "--plot")):
        if path is not None:
            check_keeps_results(path, f"{option} {path}:")
    if plot is not None:
        from specsim.show.plots.figures import check_suffix
        from specsim.show.plots.runs import plot_breakdown

        check_suffix(plot)
    with spinner("reading the results"):
        found = break_down(results)
    with spinner("writing"), ExitStack() as files:
        if json_out is not None:
            text = json.dumps(found.to_dict(), indent=1) + "\n"
            files.enter_context(new_file(json_out)).write_text(text)
        if plot is not None:
            plot_breakdown(found, plot, str(results))
    show(*breakdown_tables(found, str(results)))
    warn(found.warnings)
