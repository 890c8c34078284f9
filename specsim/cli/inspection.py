"""Commands that look into results folders: ``timeline`` and ``breakdown``."""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.terminal import show, spinner, warn

__all__ = ["breakdown", "timeline"]


def _labels(folders: list[Path]) -> list[str]:
    """Return the paths of folders below the nearest folder that holds them all."""
    resolved = [folder.resolve() for folder in folders]
    shared = Path(os.path.commonpath([folder.parent for folder in resolved]))
    return [str(folder.relative_to(shared)) for folder in resolved]


def timeline(
    results: Annotated[
        list[Path], typer.Argument(help="Folders that run --out wrote.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The plot; by default timeline.png in the folder, if it is one."),
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
    from specsim.atomic import new_file
    from specsim.errors import ConfigError
    from specsim.plots import plot_format, plot_timelines
    from specsim.results.steps import load_steps
    from specsim.results.timeline import timeline as binned
    from specsim.results.timeline import write_timelines

    if out is None and len(results) > 1:
        raise ConfigError(f"timeline of {len(results)} folders: say with --out where the plot goes")
    plot = out or results[0] / "timeline.png"
    suffix = plot_format(plot)
    table = plot.with_suffix(".parquet")
    if table.name in ("requests.parquet", "steps.parquet"):
        raise ConfigError(f"{plot}: its series would replace {table.name}; rename the plot")
    with spinner("reading the steps"):
        timelines = {}
        for label, folder in zip(_labels(results), results, strict=True):
            steps = load_steps(folder)
            steps = steps if replica is None else steps.of_replica(replica)
            timelines[label] = binned(steps, num_bins=bins, window=window)
    with spinner("drawing"), new_file(table) as rows, new_file(plot) as picture:
        write_timelines(timelines, rows)
        plot_timelines(timelines, picture, suffix)
    typer.echo(f"timeline: {plot} and {table.name}")


def breakdown(
    results: Annotated[Path, typer.Argument(help="A folder that run --out wrote.")],
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write the numbers here.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Draw a plot: .png, .svg or .pdf.", show_default=False)
    ] = None,
) -> None:
    """Print where the time and the memory of a run went.

    Time: forward passes of the target, drafting, overhead and idling, by batch size. Memory of one
    GPU: weights and KV blocks of target and drafter, and how much of the KV cache was in use.
    """
    from specsim.atomic import new_file
    from specsim.breakdown import break_down
    from specsim.render.breakdown import breakdown_tables

    if out is not None:
        from specsim.plots import plot_breakdown, plot_format

        suffix = plot_format(out)
    with spinner("reading the results"):
        found = break_down(results)
    with spinner("writing"), ExitStack() as files:
        if as_json is not None:
            text = json.dumps(found.to_dict(), indent=1) + "\n"
            files.enter_context(new_file(as_json)).write_text(text)
        if out is not None:
            picture = files.enter_context(new_file(out))
            plot_breakdown(found, picture, suffix, str(results))
    show(*breakdown_tables(found, str(results)))
    warn(found.warnings)
