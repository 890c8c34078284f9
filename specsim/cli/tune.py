"""Command ``tune``."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from specsim.cli.options import (
    ALL_CORES,
    Config,
    Out,
    Overrides,
    Seed,
    Workers,
    all_overrides,
    can_draw,
    results_folder,
)
from specsim.cli.terminal import progress, show, spinner, warn

__all__ = ["tune"]


class Emit(StrEnum):
    """What to print in place of the tables."""

    VLLM = "vllm"


def tune(
    config: Config,
    overrides: Overrides = None,
    seed: Seed = None,
    max_k: Annotated[
        int | None,
        typer.Option("--max-k", min=1, help="Largest k to try; by default num_speculative_tokens."),
    ] = None,
    replications: Annotated[
        int, typer.Option(min=2, help="Runs of each kind; more give narrower intervals.")
    ] = 5,
    workers: Workers = ALL_CORES,
    emit: Annotated[
        Emit | None,
        typer.Option(help="Print only what to use, for --speculative-config; tables go to stderr."),
    ] = None,
    out: Out = None,
) -> None:
    """Find the best k per batch size and the load up to which each k pays, with intervals.

    Prints a schedule that vLLM reads (num_speculative_tokens_per_batch_size), simulates it against
    the best fixed k and the oracle, and says what it gains. With --out the folder gets tune.json
    and plot.png. --emit prints the schedule, or the best fixed k where the schedule does not beat
    it; where no speculation at all is best, nothing, and exits with 1.

    vllm serve MODEL --speculative-config "$(specsim tune EXP.yaml --emit vllm)"
    """
    from specsim.core.processes import warm_up

    warm_up(workers)
    from specsim.run.experiment import Experiment
    from specsim.show.render.studies import tuning_tables, tuning_verdict
    from specsim.study.tune import tune as run_tuning

    experiment = Experiment.load(config, all_overrides(overrides, seed))
    draws = out is not None and can_draw("plot.png")
    with results_folder(out) as folder:
        with progress("simulations", None) as on_progress:
            tuning = run_tuning(
                experiment,
                max_k=max_k,
                replications=replications,
                workers=workers,
                on_progress=on_progress,
            )
        if folder is not None:
            tuning.save(folder)
        if folder is not None and draws:
            from specsim.show.plots.tune import plot_tuning

            with spinner("drawing"):
                plot_tuning(tuning, folder / "plot.png", config.stem)
    is_for_vllm = emit is not None
    show(*tuning_tables(tuning, config.name), to_stderr=is_for_vllm)
    for line in tuning_verdict(tuning):
        typer.echo(line, err=is_for_vllm)
    warn(tuning.warnings)
    if not is_for_vllm:
        if out is not None:
            typer.echo(f"results: {out} ({'tune.json and plot.png' if draws else 'tune.json'})")
    elif tuning.recommended is not None:
        typer.echo(json.dumps(tuning.recommended))
    else:
        typer.echo("nothing to emit: the server is faster without speculation", err=True)
        raise typer.Exit(1)
