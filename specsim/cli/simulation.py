"""Commands that simulate: ``run`` and ``compare``."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from specsim.cli.terminal import progress, show, spinner, warn

__all__ = ["ManyPolicies", "compare", "run"]

Config = Annotated[Path, typer.Argument(help="The experiment, a YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Replace a field: --set policy.k=3."),
]
Seed = Annotated[int | None, typer.Option(help="Replace the seed.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.", show_default=False)]


def _overrides(overrides: list[str] | None, seed: int | None) -> list[str]:
    return [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]


@contextmanager
def _results(out: Path | None) -> Iterator[Path | None]:
    """Open the results folder before the work: what cannot be written fails at once."""
    from specsim.atomic import new_folder

    if out is None:
        yield None
    else:
        with new_folder(out) as unfinished:
            yield unfinished


class ManyPolicies(TyperCommand):
    """Lets ``--policies a b c`` mean ``--policies a --policies b --policies c``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before every value that follows it."""
        expanded: list[str] = []
        takes_more = False
        for arg in args:
            if arg.startswith("-") or arg.endswith((".yaml", ".yml")):
                takes_more = False
            elif takes_more and expanded[-1] != "--policies":
                expanded.append("--policies")
            expanded.append(arg)
            takes_more = takes_more or arg == "--policies"
        return super().parse_args(ctx, expanded)


def run(
    config: Config,
    overrides: Overrides = None,
    seed: Seed = None,
    out: Out = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check every invariant after every step (slow).")
    ] = False,
) -> None:
    """Simulate one experiment and print its table.

    With --out the folder gets summary.json (readable by scripts for vllm bench serve),
    requests.parquet, steps.parquet and the resolved config.yaml.
    """
    from specsim.experiment import Experiment
    from specsim.render.runs import run_table
    from specsim.simulate import simulate
    from specsim.summary import Summary

    experiment = Experiment.load(config, _overrides(overrides, seed))
    with _results(out) as folder:
        with progress("requests", experiment.workload.num_requests) as on_progress:
            summary = Summary(simulate(experiment, check=check, on_progress=on_progress))
        if folder is not None:
            with spinner("writing the results"):
                summary.save(folder)
    show(run_table(summary, f"{config.name}, policy {experiment.effective_policy.kind}"))
    warn(summary.warnings)
    if out is not None:
        typer.echo(f"results: {out}")


def compare(
    config: Config,
    policies: Annotated[
        list[str],
        typer.Option(
            metavar="POLICY...",
            help="Policies in short form, off static:k=1 static:k=3; off is always included.",
        ),
    ],
    overrides: Overrides = None,
    seed: Seed = None,
    replications: Annotated[
        int, typer.Option(min=1, help="Runs per policy; two or more give confidence intervals.")
    ] = 3,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes; the results do not depend on them.")
    ] = os.cpu_count() or 1,
    out: Out = None,
) -> None:
    """Run several policies on identical luck and print their speed-up over no speculation.

    All of them meet the same requests, and the same draft tokens survive for all of them. More
    than four are ranked, with their regret against the oracle and against the best static k. With
    --out the folder gets the results of the first replication of each policy, comparison.json
    and plot.png.
    """
    from specsim.compare import compare as run_comparison
    from specsim.compare import folder_name, parse_policies
    from specsim.experiment import Experiment
    from specsim.render.runs import comparison_table

    experiment = Experiment.load(config, _overrides(overrides, seed))
    chosen = parse_policies(policies)

    with _results(out) as folder:
        with progress("runs", len(chosen) * replications) as on_progress:
            comparison = run_comparison(
                experiment,
                chosen,
                replications=replications,
                workers=workers,
                folder=folder,
                on_progress=on_progress,
            )
        if folder is not None:
            from specsim.plots import plot_runs

            with spinner("drawing"):
                folders = {label: folder / folder_name(label) for label in chosen}
                plot_runs(folders, folder / "plot.png", config.stem)
            (folder / "comparison.json").write_text(json.dumps(comparison.to_dict(), indent=1))
    show(comparison_table(comparison, config.name))
    warn(sorted({text for result in comparison.results for text in result.warnings}))
    if out is not None:
        typer.echo(f"results: {out} (plot.png, and a folder per policy)")
