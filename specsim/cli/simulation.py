"""Commands that simulate: ``run``, ``compare``, ``sweep`` and ``policy check``."""

import json
import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from specsim.cli.options import (
    ALL_CORES,
    Config,
    Out,
    Overrides,
    Seed,
    SweepFile,
    Workers,
    all_overrides,
    can_draw,
    load_experiment,
    progress,
    results_folder,
    show,
    spinner,
    warm_up,
    warn,
)
from specsim.core.errors import ConfigError

if TYPE_CHECKING:
    from specsim.study.sweep import Backend, Sweep


class ManyPolicies(TyperCommand):
    """Allows ``--policies a b c`` for ``--policies a --policies b --policies c``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each value that follows it."""
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


Where = Literal["local", "ray"]


WorkersOf = Annotated[
    int | None,
    typer.Option(
        min=1, help="Runs at a time; the results do not depend on it. By default one per core."
    ),
]
WhereToRun = Annotated[Where, typer.Option(help="Processes of this machine, or a Ray cluster.")]
RayAddress = Annotated[
    str | None, typer.Option(help="Address of a running Ray cluster; by default one is started.")
]


def run(
    config: Config,
    policy: str | None = Option(
        None,
        metavar="POLICY",
        help="Replace the policy, in short form: off, static:k=3, my_file:MyPolicy.",
    ),
    overrides: Overrides = None,
    seed: Seed = None,
    out: Out = None,
    check: bool = Option(False, "--check", help="Check every invariant after every step (slow)."),
    no_steps: bool = Option(
        False, "--no-steps", help="Write no steps.parquet, which long runs make large."
    ),
    no_details: bool = Option(
        False, "--no-details", help="Leave vLLM's lists per request out of summary.json."
    ),
    workers: WorkersOf = None,
    backend: WhereToRun = "local",
    ray_address: RayAddress = None,
) -> None:
    """Simulate one experiment and print its table.

    A large run of several replicas, whose router does not look at them, is shared out among the
    cores of this machine, or of a Ray cluster.

    With --out the folder gets summary.json (readable by scripts for vllm bench serve),
    requests.parquet, steps.parquet and the resolved config.yaml. Without the steps there is no
    timeline, breakdown or plot of the run; without the details, summary.json is as vllm bench
    serve writes it without --save-detailed.
    """
    from specsim.core.settings import check_used
    from specsim.results.folder import RESULT_FILES
    from specsim.run.cells import FEWEST, why_whole
    from specsim.run.experiment import Experiment
    from specsim.run.simulate import simulate
    from specsim.run.summary import Summary
    from specsim.show.render.run_tables import run_table

    _check_address(ray_address, backend)
    for option, is_given in (("--no-steps", no_steps), ("--no-details", no_details)):
        if is_given and out is None:
            raise ConfigError(f"{option}: is about what --out writes; add that or leave it out")
    changes = all_overrides(overrides, seed)
    if policy is not None:
        check_used(changes, ["policy"], "--policy sets")
        changes.append(f"policy={policy}")
    experiment = Experiment.load(config, changes, option="--set")
    is_chosen = workers is not None or backend == "ray"
    if not is_chosen and experiment.workload.expected_requests <= FEWEST:
        workers = 1
    is_alone = backend == "local" and (workers or os.cpu_count()) == 1
    place = None if is_alone else _backend(workers, backend, ray_address)
    with results_folder(out, RESULT_FILES) as folder:
        with progress("requests", experiment.workload.num_requests) as on_progress:
            run = simulate(
                experiment,
                check=check,
                keeps_steps=folder is not None and not no_steps,
                keeps_deliveries=folder is not None and not no_details,
                on_progress=on_progress,
                backend=place,
            )
        summary = Summary(run)
        if folder is not None:
            with spinner("writing the results"):
                summary.save(folder)
    show(run_table(summary, f"{config.name}, policy {experiment.effective_policy.kind}"))
    warn(summary.warnings)
    reason = why_whole(experiment, run.deployment, run.requests)
    if reason and is_chosen:
        warn([f"simulated in one process: {reason}"])
    if out is not None:
        typer.echo(f"results: {out}")


def compare(
    config: Config,
    policies: list[str] = Option(
        ...,
        metavar="POLICY...",
        help="Policies in short form, off static:k=1 static:k=3; off is always included.",
    ),
    overrides: Overrides = None,
    seed: Seed = None,
    replications: int = Option(
        3, min=1, help="Runs per policy; two or more give confidence intervals."
    ),
    workers: Workers = ALL_CORES,
    out: Out = None,
) -> None:
    """Run several policies on identical luck and print their speed-up over no speculation.

    All of them meet the same requests, and the same draft tokens survive for all of them. More
    than four policies are ranked, with their regret against the oracle, against bayes and against
    the best static k, as far as these take part. With --out the folder gets the results of the
    first replication of each policy, comparison.json and plot.png.
    """
    warm_up(workers)
    from specsim.show.render.run_tables import comparison_table
    from specsim.study.compare import compare as run_comparison
    from specsim.study.compare import folder_name, parse_policies

    experiment = load_experiment(config, overrides, seed)
    chosen = parse_policies(policies)
    draws = out is not None and can_draw("plot.png")
    written = ("comparison.json", "plot.png", *map(folder_name, chosen))
    with results_folder(out, written) as folder:
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
            (folder / "comparison.json").write_text(json.dumps(comparison.to_dict(), indent=1))
        if folder is not None and draws:
            from specsim.show.charts.run_plots import plot_runs

            with spinner("drawing"):
                folders = {label: folder / folder_name(label) for label in chosen}
                plot_runs(folders, folder / "plot.png", config.stem)
    show(comparison_table(comparison, config.name))
    warn(comparison.warnings)
    if out is not None:
        files = f"comparison.json, {'plot.png, ' if draws else ''}a folder per policy"
        typer.echo(f"results: {out} ({files})")


def sweep(
    config: SweepFile,
    overrides: Overrides = None,
    seed: Seed = None,
    workers: WorkersOf = None,
    backend: WhereToRun = "local",
    ray_address: RayAddress = None,
    resume: bool = Option(False, "--resume", help="Go on with the sweep that the folder holds."),
    out: Path | None = Option(None, help="Folder for the results; by default results/NAME."),
    dry_run: bool = Option(
        False, "--dry-run", help="Show the points, how long they take and what is wrong; run none."
    ),
    keep_going: bool = Option(
        False, "--keep-going", help="Run the others if some points cannot be run."
    ),
) -> None:
    """Run an experiment along several axes.

    All points are checked before the first is run: profiles, traces, and whether their fields go
    together.

    The folder gets sweep.yaml, points/00017.json as soon as that point has ended, and at last
    points.parquet, one row per point. A sweep that was killed goes on with --resume, and
    its results are the same to the byte. A point that fails is recorded with its error, and the
    others go on; the exit code is then 1.
    """
    _check_address(ray_address, backend)
    if backend == "local":
        warm_up(workers or os.cpu_count() or 1)
    from specsim.show.render.study_tables import sweep_tables
    from specsim.study.sweep import Sweep, SweepFolder, run_sweep
    from specsim.study.sweep.plan import problems_of

    plan = Sweep.load(config, all_overrides(overrides, seed))
    with spinner("checking the points"):
        problems = problems_of(plan)
    if dry_run:
        _show_plan(plan, workers or os.cpu_count() or 1)
    if problems and not keep_going:
        raise ConfigError("\n".join(f"{config}: {problem}" for problem in problems))
    if dry_run:
        return
    place = _backend(workers, backend, ray_address)
    folder = SweepFolder.create(out or Path("results") / config.stem, plan, resume=resume)
    try:
        with progress("points", plan.num_points) as on_progress:
            records = run_sweep(folder, place, on_progress)
    except KeyboardInterrupt:
        warn([f"stopped; --resume --out {quote(str(folder.path))} goes on with what is left"])
        raise
    show(*sweep_tables(records, config.name))
    warn(folder.warnings(records))
    failed = [record for record in records if record["error"]]
    typer.echo(f"results: {folder.path} ({len(records):,} points, points.parquet)")
    if failed:
        first = ", ".join(f"{field} {label}" for field, label in failed[0]["labels"].items())
        typer.echo(
            f"{len(failed):,} of {len(records):,} points failed; the first, {first}: "
            f"{failed[0]['error']}",
            err=True,
        )
        raise typer.Exit(1)


_MOST_SHOWN = 50


def _show_plan(plan: "Sweep", workers: int) -> None:
    from itertools import islice

    from specsim.run.experiment import as_time
    from specsim.study.sweep.plan import point_name, seconds_of

    for point in islice(plan.points(), _MOST_SHOWN):
        typer.echo(f"{point.number:05}: {point_name(point)}, seed {point.seed}")
    if plan.num_points > _MOST_SHOWN:
        typer.echo(f"... and {plan.num_points - _MOST_SHOWN:,} more")
    about = as_time(seconds_of(plan) / workers)
    typer.echo(f"{plan.num_points:,} points, about {about} with {workers} at a time")


def _check_address(ray_address: str | None, where: Where) -> None:
    if ray_address is not None and where != "ray":
        raise ConfigError("--ray-address is used by --backend ray only; add that or leave it out")


def _backend(workers: int | None, where: Where, ray_address: str | None) -> "Backend":
    from specsim.core.processes import LocalProcesses

    if where == "local":
        return LocalProcesses(workers or os.cpu_count() or 1)
    try:
        from specsim.core.ray_cluster import RayCluster
    except ImportError as error:
        raise ConfigError("--backend ray needs Ray; pip install 'llm-specsim[cluster]'") from error
    return RayCluster(workers, ray_address)


policy_app = typer.Typer(help="Try out policies of one's own.", no_args_is_help=True)


@policy_app.command()
def check(
    policy: str = Argument(
        ...,
        metavar="POLICY",
        help="my.py:MyPolicy, a name from `specsim list policies`, or either with fields: "
        "my.py:MyPolicy:k=3.",
    ),
) -> None:
    """Run a policy through a hundred small worlds and tell what it breaks.

    Steps of prefills alone, no memory, long prompts, asynchronous and synchronous scheduling,
    prefill first, sessions, pools, failures: every answer of the policy is checked, every invariant
    of the engine, and that two runs with one seed agree. The exit code is 0 if all holds, else 1.
    """
    from specsim.core.blame import blamed
    from specsim.policies import POLICIES
    from specsim.study.policy_check import check_policy

    with blamed():
        parsed = POLICIES.given(policy, policy)
    with progress("worlds", None) as on_progress:
        found = check_policy(parsed, policy, on_progress)
    for problem, worlds in found.broken.items():
        more = f" and {len(worlds) - 1} more worlds" if len(worlds) > 1 else ""
        typer.echo(f"{problem} [in: {worlds[0]}{more}]")
    if found.broken:
        broken = f"{found.num_broken} of {found.num_worlds} worlds"
        typer.echo(f"{found.policy}: broken in {broken}, see above", err=True)
        raise typer.Exit(1)
    typer.echo(
        f"{found.policy} holds: {found.num_worlds} worlds, {found.seconds:.0f} s; "
        f"it runs as {found.runs_as}"
    )
