"""Command ``split``: GPUs that prefill, GPUs that decode, or GPUs that do both."""

from typing import Annotated, Any

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
    tp: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Tensor parallelism of a replica, 1,2,4; looked for."),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(metavar="POLICY...", help="In short form, off static:k=3; looked for."),
    ] = None,
    whole: Annotated[
        int, typer.Option(min=1, help="With --tp or --policies: splits simulated whole.")
    ] = 8,
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
    With --tp or --policies every pair of pools in these sizes is looked at, each pool simulated by
    itself, and the most promising ones are simulated whole. With --out the folder gets split.json.
    """
    from specsim.core.processes import warm_up

    warm_up(workers)
    from specsim.run.experiment import Experiment
    from specsim.show.render.splits import search_lines, split_table
    from specsim.study.compare import chosen_policies
    from specsim.study.split import compare_splits
    from specsim.study.split_search import search_splits

    experiment, search = Experiment.load(config, all_overrides(overrides, seed)), None
    how: dict[str, Any] = {
        "rates": _rates(rates), "replications": replications, "workers": workers,
    }  # fmt: skip
    with results_folder(out, ("split.json",)) as folder:
        with progress("simulations", None) as on_progress:
            how["on_progress"] = on_progress
            if tp is None and policies is None:
                found = compare_splits(experiment, gpus, **how)
            else:
                chosen = chosen_policies(policies, experiment.effective_policy)
                found, search = search_splits(
                    experiment, gpus, sizes=_sizes(tp), policies=chosen, most=whole, **how
                )
        if folder is not None:
            found.save(folder, **({} if search is None else {"search": search.to_dict()}))
    show(split_table(found, config.name))
    for line in search_lines(search) if search is not None else ():
        typer.echo(line)
    if out is not None:
        typer.echo(f"results: {out} (split.json)")


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    sizes = [int(part) if part.isdigit() and len(part) < 4 else 0 for part in parts]
    if not all(sizes):
        raise ConfigError(f"--tp {text:.80}: should be whole numbers from 1 to 999, such as 1,2,4")
    return sorted(set(sizes))


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
