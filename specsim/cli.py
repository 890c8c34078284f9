"""The command line.

Functions here do nothing but read arguments and show results. They import late, and only they may:
``specsim --version`` starts in a fraction of what a simulation has to load.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from specsim.version import __version__

__all__ = ["app"]

app = typer.Typer(
    help="Simulate LLM serving with speculative decoding: which policy, which k, at which load.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
trace_app = typer.Typer(
    help="Look at workloads, convert them and make new ones.", no_args_is_help=True
)
app.add_typer(trace_app, name="trace")

_SLOW = 1.0  # seconds after which a progress bar appears
_FILE_WIDTH = 160


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specsim {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Read the options that come before the command."""


class _ManyPolicies(TyperCommand):
    """Lets ``--policies a b c`` mean ``--policies a --policies b --policies c``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
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


@contextmanager
def _progress(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, once the work has taken a second; elsewhere nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done: None
        return
    started_at = monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task(description, total=total, visible=False)
        last_shown = started_at

        def show(done: int) -> None:
            nonlocal last_shown
            now = monotonic()
            if now - started_at > _SLOW and now - last_shown > 0.1:
                last_shown = now
                progress.update(task, completed=done, visible=True)

        yield show


Config = Annotated[Path, typer.Argument(help="The experiment, a YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Replace a field: --set policy.k=3."),
]
Seed = Annotated[int | None, typer.Option(help="Replace the seed.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.", show_default=False)]


def _overrides(overrides: list[str] | None, seed: int | None) -> list[str]:
    return [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]


def _show(*tables: Any) -> None:
    from rich.console import Console

    # Into a file or pipe nothing has to fit, and nothing is cut.
    console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    for table in tables:
        console.print(table)


def _warn(warnings: list[str]) -> None:
    from rich.console import Console

    for warning in warnings:
        Console(stderr=True, soft_wrap=True).print(f"warning: {warning}", markup=False)


@app.command()
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
    from specsim.render import run_table
    from specsim.simulate import simulate
    from specsim.summary import Summary

    experiment = Experiment.load(config, _overrides(overrides, seed))
    with _progress("requests", experiment.workload.num_requests) as on_progress:
        summary = Summary(simulate(experiment, check=check, on_progress=on_progress))
    if out is not None:
        summary.save(out)
    _show(run_table(summary, f"{config.name}, policy {experiment.effective_policy.kind}"))
    _warn(summary.warnings)
    if out is not None:
        typer.echo(f"results: {out}")


@app.command(cls=_ManyPolicies)
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

    All of them meet the same requests, and the same draft tokens survive for all of them. With
    --out the folder gets the results of the first replication of each policy, comparison.json
    and plot.png.
    """
    from specsim.atomic import new_folder
    from specsim.compare import compare as run_comparison
    from specsim.compare import folder_name, parse_policies
    from specsim.experiment import Experiment
    from specsim.render import comparison_table

    experiment = Experiment.load(config, _overrides(overrides, seed))
    chosen = parse_policies(policies)

    def work(folder: Path | None) -> Any:
        with _progress("runs", len(chosen) * replications) as on_progress:
            return run_comparison(
                experiment,
                chosen,
                replications=replications,
                workers=workers,
                folder=folder,
                on_progress=on_progress,
            )

    if out is None:
        comparison = work(None)
    else:
        from specsim.plots import plot_runs

        with new_folder(out) as folder:
            comparison = work(folder)
            folders = {label: folder / folder_name(label) for label in chosen}
            plot_runs(folders, folder / "plot.png", config.stem)
            (folder / "comparison.json").write_text(json.dumps(comparison.to_dict(), indent=1))
    _show(comparison_table(comparison, config.name))
    _warn(sorted({text for result in comparison.results for text in result.warnings}))
    if out is not None:
        typer.echo(f"results: {out} (plot.png, and a folder per policy)")


@app.command()
def parity(
    scenario: Annotated[Path, typer.Argument(help="A recorded scenario, JSON.")],
    log: Annotated[
        Path | None,
        typer.Option(help="Its log; by default NAME.log.json beside NAME.scenario.json."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write our own log here.")] = None,
) -> None:
    """Replay a schedule of the real vLLM scheduler and compare every field of every step.

    Exits with 1 at the first difference, and prints it in full.
    """
    from specsim.atomic import new_file
    from specsim.parity import compare_logs, load_log, load_scenario, run_scenario

    parsed = load_scenario(scenario)
    beside = scenario.with_name(scenario.name.replace(".scenario.", ".log."))
    if log is None and beside != scenario and beside.exists():
        log = beside
    theirs = load_log(log) if log is not None else None
    ours = run_scenario(parsed)
    if out is not None:
        with new_file(out) as temporary:
            temporary.write_text(json.dumps(ours) + "\n")
    steps = len(ours["steps"])
    if theirs is None:
        typer.echo(f"{parsed.name}: {steps} steps, not compared (no log given)")
        return
    difference = compare_logs(ours, theirs)
    if difference is not None:
        typer.echo(f"{parsed.name}: DIFFERS at {difference}")
        raise typer.Exit(1)
    typer.echo(f"{parsed.name}: all {steps} steps and {len(ours['requests'])} requests agree")


@app.command("list")
def list_members(
    family: Annotated[str | None, typer.Argument(help="Show only this family.")] = None,
) -> None:
    """Show every member of every family with its fields, and the shipped profiles."""
    from specsim.catalogue import FAMILIES
    from specsim.errors import ConfigError
    from specsim.render import family_table, names_table
    from specsim.resources import resource_names
    from specsim.settings import nearest
    from specsim.workload.lengths.dataset import DATASETS

    if family is not None and family not in FAMILIES:
        raise ConfigError(f"no family '{family}'; {nearest(family, list(FAMILIES))}")
    for name, members in FAMILIES.items():
        if family in (None, name):
            _show(family_table(members))
    if family is None:
        _show(
            names_table("datasets", {name: stats.source for name, stats in DATASETS.items()}),
            names_table("profiles", dict.fromkeys(resource_names("profiles", "*/*.yaml"), "")),
        )


@app.command()
def schema() -> None:
    """Print the JSON schema of an experiment, for editors that complete YAML."""
    from specsim.experiment import Experiment

    typer.echo(json.dumps(Experiment.model_json_schema(), indent=2))


TraceFile = Annotated[Path, typer.Argument(help="A workload of any known format.")]


@trace_app.command()
def describe(
    file: TraceFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Print counts, rates, burstiness, length quantiles and the share of reused prefix."""
    from specsim.render import description_json, trace_table
    from specsim.workload.describe import describe as describe_trace
    from specsim.workload.readers import read_trace

    description = describe_trace(read_trace(file))
    if as_json:
        typer.echo(json.dumps(description_json(description), indent=1))
    else:
        _show(trace_table(description, str(file)))


@trace_app.command()
def convert(
    file: TraceFile,
    out: Annotated[Path, typer.Argument(help="Ends in .parquet, .jsonl or .jsonl.gz.")],
) -> None:
    """Write a workload of any known format in specsim's own."""
    from specsim.workload.readers import read_trace
    from specsim.workload.writer import write_trace

    trace = read_trace(file)
    write_trace(trace, out)
    dropped = f", {trace.num_dropped:,} failed requests left out" if trace.num_dropped else ""
    typer.echo(f"{out}: {len(trace):,} requests read as {trace.format}{dropped}")


@trace_app.command()
def synth(
    out: Annotated[Path, typer.Argument(help="Ends in .parquet, .jsonl or .jsonl.gz.")],
    arrivals: Annotated[str, typer.Option(help="Such as gamma:rate=4,burstiness=0.5.")],
    lengths: Annotated[str, typer.Option(help="Such as dataset:name=sharegpt.")],
    num_requests: Annotated[int | None, typer.Option(min=1, help="How many.")] = None,
    duration: Annotated[float | None, typer.Option(help="For how many seconds.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals and lengths.")] = 0,
) -> None:
    """Make a workload from an arrival process and a length distribution."""
    from specsim.errors import ConfigError
    from specsim.settings import validated
    from specsim.workload import WorkloadConfig
    from specsim.workload.writer import write_trace

    with validated("trace synth", ConfigError):
        config = WorkloadConfig.model_validate(
            {
                "arrivals": arrivals,
                "lengths": lengths,
                "num_requests": num_requests,
                "duration": duration,
            }
        )
    trace = config.build(seed)
    write_trace(trace, out)
    typer.echo(f"{out}: {len(trace):,} requests")
