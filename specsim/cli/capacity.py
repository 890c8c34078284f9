"""Command ``capacity``."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specsim.cli.options import (
    ALL_CORES,
    Config,
    Out,
    Overrides,
    Seed,
    Workers,
    all_overrides,
    results_folder,
)
from specsim.cli.terminal import progress, show, warn

if TYPE_CHECKING:
    from specsim.policies import Policy

__all__ = ["capacity"]

_NUM_REQUESTS = 1000


class Drive(StrEnum):
    """What is varied."""

    RATE = "rate"
    CONCURRENCY = "concurrency"


def capacity(
    config: Config,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC:MS,...",
            help="Limits in ms, ttft:500,tpot:50,e2el:10000; by default the experiment's slo.",
        ),
    ] = None,
    attainment: Annotated[
        float, typer.Option(help="Share of the requests that must keep all limits.")
    ] = 0.99,
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="GPU,...",
            help="GPUs or profiles to compare, h100,l40s; by default the experiment's profile.",
        ),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY...", help="In short form, off static:k=3; by default the experiment's."
        ),
    ] = None,
    drive: Annotated[
        Drive, typer.Option(help="Vary the arrival rate, or the number of clients that wait.")
    ] = Drive.RATE,
    qps: Annotated[
        float | None, typer.Option(help="Requests/s of the whole service, to count replicas for.")
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            help="Price per GPU and hour, YAML; by default dated examples of list prices."
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Stop when the capacity is known to this share.")
    ] = 0.02,
    overrides: Overrides = None,
    seed: Seed = None,
    replications: Annotated[int, typer.Option(min=1, help="Runs of each load.")] = 3,
    num_requests: Annotated[
        int | None,
        typer.Option(
            min=50, max=100_000_000, help="Requests per run; by default the experiment's, or 1000."
        ),
    ] = None,
    workers: Workers = ALL_CORES,
    out: Out = None,
) -> None:
    """Find the largest load within limits, how many GPUs a target rate takes, and what it costs.

    A load is sustained if enough requests keep all limits and the backlog does not grow. Each GPU
    and policy is searched by bracketing and bisection, on the same requests and luck. With --out
    the folder gets capacity.json, and capacity.parquet with every load that was tried.
    """
    from specsim.core.processes import warm_up

    warm_up(workers)
    from specsim.core.errors import ConfigError
    from specsim.run.experiment import Experiment
    from specsim.show.render.studies import capacity_tables
    from specsim.study.capacity import (
        Choices,
        Goal,
        Prices,
        find_capacity,
        find_hardware,
        parse_slo,
        save,
    )

    experiment = Experiment.load(config, all_overrides(overrides, seed))
    limits = experiment.slo if slo is None else parse_slo(slo)
    if limits is None:
        raise ConfigError(
            "--slo is missing and the experiment has no slo; give limits, such as ttft:500,tpot:50"
        )
    _check_ranges(attainment, tolerance, qps)
    count = num_requests or experiment.workload.num_requests or _NUM_REQUESTS
    is_closed = drive is Drive.CONCURRENCY
    goal = Goal(limits, attainment, tolerance, is_closed, qps, replications, count)
    table = Prices.load(prices)
    names = [] if gpus is None else [name.strip() for name in gpus.split(",")]
    chosen = _chosen(policies, experiment.effective_policy)
    choices = Choices(find_hardware(experiment, names), chosen, table)
    with results_folder(out) as folder:
        with progress("simulations", None) as on_progress:
            found = find_capacity(
                experiment, goal, choices, workers=workers, on_progress=on_progress
            )
        if folder is not None:
            save(found, folder)
    show(*capacity_tables(found, config.name))
    source = "examples of list prices, replace them by --prices" if prices is None else prices
    typer.echo(f"prices of {table.date}: {source}")
    warn(found.notes)
    if out is not None:
        typer.echo(f"results: {out} (capacity.json, capacity.parquet)")


def _chosen(policies: list[str] | None, own: "Policy") -> dict[str, "Policy"]:
    """Return the policies by label: those asked for, else the experiment's own."""
    from specsim.study.compare import parse_policies
    from specsim.study.sweep.labels import labels

    if policies:
        parsed = parse_policies(policies)
        return {label: parsed[label] for label in policies}
    fields = own.model_dump(mode="json", exclude_defaults=True) | {"kind": own.kind}
    return dict(zip(labels([fields]), [own], strict=True))


def _check_ranges(attainment: float, tolerance: float, qps: float | None) -> None:
    from specsim.core.errors import ConfigError

    for option, value, rule, holds in (
        ("--attainment", attainment, "above 0 and at most 1", 0 < attainment <= 1),
        ("--tolerance", tolerance, "from 0.001 to 0.5", 0.001 <= tolerance <= 0.5),
        ("--qps", qps, "a finite number above 0", qps is None or 0 < qps < float("inf")),
    ):
        if not holds:
            raise ConfigError(f"{option} {value}: must be {rule}")
