"""Command ``split``: GPUs that prefill, GPUs that decode, or GPUs that do both."""

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
    progress,
    results_folder,
    show,
)
from specsim.core.errors import ConfigError


def split(
    config: Config,
    gpus: Annotated[int, typer.Option(min=1, max=4096, help="GPUs to share out.")],
    rates: Annotated[
        str | None,
        typer.Option(metavar="R,...", help="Requests/s, 4,8,16; by default the experiment's."),
    ] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    replications: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 1,
    workers: Workers = ALL_CORES,
    out: Out = None,
) -> None:
    """Compare replicas that do both with every split of the GPUs into prefill and decode.

    All of them meet the same requests on the same luck. The best of each load comes first: the one
    with the highest SLO attainment, or of the lowest mean latency where the experiment has no slo.
    Profiles, engines and links of the pools are those of the experiment's pools, if it has them.
    With --out the folder gets split.json.
    """
    from specsim.core.processes import warm_up

    warm_up(workers)
    from specsim.run.experiment import Experiment
    from specsim.show.render.splits import split_table
    from specsim.study.split import compare_splits

    experiment = Experiment.load(config, all_overrides(overrides, seed))
    with results_folder(out, ("split.json",)) as folder:
        with progress("simulations", None) as on_progress:
            found = compare_splits(
                experiment,
                gpus,
                rates=_rates(rates),
                replications=replications,
                workers=workers,
                on_progress=on_progress,
            )
        if folder is not None:
            found.save(folder)
    show(split_table(found, config.name))
    if out is not None:
        typer.echo(f"results: {out} (split.json)")


def _rates(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = [0.0]
    if not all(0 < rate < float("inf") for rate in rates):
        raise ConfigError(f"--rates {text:.80}: should be numbers above 0, such as 4,8,16")
    return rates
