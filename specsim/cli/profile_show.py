"""Command ``profile show``; its group is in `specsim.cli.profiles`."""

from pathlib import Path
from typing import Annotated

import typer

from specsim.cli.terminal import show, spinner

__all__ = ["show_profile"]


def show_profile(
    profile: Annotated[str, typer.Argument(help="A name, such as h100/llama-3.1-8b, or a path.")],
    steps: Annotated[
        Path | None,
        typer.Option(
            help="Measured steps to compare with, as `profile fit` reads them.", show_default=False
        ),
    ] = None,
    max_num_seqs: Annotated[
        int, typer.Option(min=1, help="Of a folder, leave larger batches out.")
    ] = 256,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Of a folder, leave larger steps out.")
    ] = 2048,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw it here, .png, .svg or .pdf: step times by batch size, or with --steps "
            "predicted over measured.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print what a profile is, what fits into memory, and how long typical steps take.

    With --steps, a table of measured steps or a folder of kernel tables, also how far the profile
    is from them: the target's forward pass, steps with and without prefill apart. On the steps that
    the profile was fitted to, that is no proof: `profile fit` prints the error of held-out ones.
    """
    from specsim.profile import load_profile
    from specsim.reality.profile_fit import Comparison, measured_steps
    from specsim.show.profile_overview import Overview
    from specsim.show.render.profiles import comparison_table, overview_tables

    if plot is not None:
        from specsim.show.plots.figures import check_suffix

        check_suffix(plot)
    overview, comparison = Overview.of(load_profile(profile)), None
    tables = overview_tables(overview, profile)
    if steps is not None:
        known = overview.profile
        with spinner(f"reading {steps.name}"):
            points, _ = measured_steps(
                [steps],
                known.model,
                known.gpu,
                known.tensor_parallel_size,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
            )
            comparison = Comparison.of(known, points, str(steps))
        tables.append(comparison_table(comparison, steps.name))
    if plot is not None:
        from specsim.show.plots.profiles import plot_comparison, plot_step_times

        with spinner("drawing"):
            if comparison is None:
                plot_step_times(overview, plot, profile)
            else:
                plot_comparison(comparison, plot, profile)
    show(*tables)
