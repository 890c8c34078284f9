"""Commands that run an experiment many times: ``capacity``, ``tune`` and ``gate``."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    output_file,
    progress,
    results_folder,
    show,
    spinner,
    warn,
    write_json,
)
from specsim.core.errors import ConfigError

if TYPE_CHECKING:
    from specsim.study.gate import GateResults, Suite
    from specsim.study.gate.verdict import GateFailure, GateVerdict

_MAX_REQUESTS = 64_000


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
    replications: Annotated[int, typer.Option(min=1, help="Runs of each load.")] = 5,
    num_requests: Annotated[
        int | None,
        typer.Option(
            min=50,
            max=100_000_000,
            help="Requests per run, fixed, as for CI; by default runs grow until the answer stops "
            "moving, from 2,000 or the experiment's num_requests if that is more.",
        ),
    ] = None,
    max_requests: Annotated[
        int, typer.Option(min=50, max=100_000_000, help="So far runs may grow.")
    ] = _MAX_REQUESTS,
    workers: Workers = ALL_CORES,
    out: Out = None,
) -> None:
    """Find the largest load within limits, how many GPUs a target rate takes, and what it costs.

    A load is sustained if enough requests keep all limits and the backlog does not grow. Each GPU
    and policy is searched by bracketing and bisection, on the same requests and luck, in runs that
    grow until the answer stops moving. Those whose 95 % intervals overlap are not ranked. With
    --out the folder gets capacity.json, and capacity.parquet with every load that was tried.
    """
    from specsim.core.processes import warm_up

    warm_up(workers)
    from specsim.run.experiment import Experiment
    from specsim.show.render.capacity import capacity_tables, capacity_verdict
    from specsim.study.calls import capacity as ask

    experiment = Experiment.load(config, all_overrides(overrides, seed))
    with results_folder(out, ("capacity.json", "capacity.parquet")) as folder:
        with progress("simulations", None) as on_progress:
            found = ask(
                experiment,
                slo=slo,
                attainment=attainment,
                gpus=[] if gpus is None else [name.strip() for name in gpus.split(",")],
                policies=policies,
                is_closed=drive is Drive.CONCURRENCY,
                qps=qps,
                prices=prices,
                tolerance=tolerance,
                replications=replications,
                num_requests=num_requests,
                max_requests=max_requests,
                workers=workers,
                on_progress=on_progress,
            )
        if folder is not None:
            found.save(folder)
    show(*capacity_tables(found, config.name))
    for line in capacity_verdict(found):
        typer.echo(line)
    source = "examples of list prices, replace them by --prices" if prices is None else prices
    typer.echo(f"prices of {found.prices.date}: {source}")
    warn(found.notes)
    if out is not None:
        typer.echo(f"results: {out} (capacity.json, capacity.parquet)")


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
    with results_folder(out, ("tune.json", "plot.png")) as folder:
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
            from specsim.show.plots.runs import plot_tuning

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


def gate(
    baseline: Annotated[Path, typer.Argument(metavar="BASELINE.json", show_default=False)],
    current: Annotated[
        Path,
        typer.Argument(
            metavar="CURRENT",
            help="A suite or an experiment to be run, YAML, or the results of one, JSON.",
            show_default=False,
        ),
    ],
    overrides: Overrides = None,
    update: Annotated[
        bool, typer.Option("--update", help="Run CURRENT and write BASELINE.json.")
    ] = False,
    date: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Kept in the file, with --update.")
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=SHARE", help="In place of the suite's: mean_e2el_ms=2%."),
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the verdicts as JSON.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdicts as JUnit XML.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print annotations for GitHub Actions.")
    ] = False,
    workers: Workers = ALL_CORES,
) -> None:
    """Compare a revision with a baseline, scenario by scenario; exit with 1 if it is worse.

    The exit code is 0 if nothing is worse, 1 if something is, 2 if a file or option is wrong, and 3
    if a run crashed. The files of --json and --junit are written in each of these cases.

    The scenarios of CURRENT are run with the seeds of the baseline, so that both meet the same
    requests and the same luck. A metric is worse if it is so by more than its tolerance and beyond
    doubt. Write the baseline with --update:

    specsim gate --update baseline.json suite.yaml

    specsim gate baseline.json suite.yaml
    """
    is_stored = current.suffix == ".json"
    if not is_stored:
        from specsim.core.processes import warm_up

        warm_up(workers)
    from specsim.show.render.studies import gate_table, gate_verdict
    from specsim.study.gate import Suite, parse_tolerances, tolerances_of
    from specsim.study.gate.verdict import GateFailure, github_annotations, write_junit

    outputs = {"--json": json_out, "--junit": junit, "--github": github or None}
    given = parse_tolerances(tolerance or ())
    if update:
        _refuse(outputs, "with --update, which compares nothing")
        _refuse({"CURRENT": current if is_stored else None}, "with --update; name a suite, YAML")
        suite = Suite.load(current, overrides or ())
        _write_baseline(baseline, suite, {**tolerances_of(suite), **given}, workers, date)
        return
    _refuse({"--date": date}, "without --update")
    inputs = {baseline.resolve(), current.resolve()}
    for option, path in (("--json", json_out), ("--junit", junit)):
        _refuse({option: path if path and path.resolve() in inputs else None}, "on its own input")
    is_shared = json_out and junit and json_out.resolve() == junit.resolve()
    _refuse({"--junit": junit if is_shared else None}, "with the file of --json; name another")
    _refuse({"--set": overrides if is_stored else None}, "with results; name a suite, YAML")

    with output_file(json_out) as json_file, output_file(junit) as junit_file:
        judgement = _judged(baseline, current, overrides or [], given, workers)
        write_json(json_file, judgement.to_dict())
        if junit_file is not None:
            write_junit(judgement, junit_file)
    if isinstance(judgement, GateFailure):
        for line in judgement.error.splitlines():
            typer.echo(f"error: {line}", err=True)
        raise typer.Exit(judgement.exit_code)
    show(gate_table(judgement, f"{current.name} against {baseline.name}"))
    for line in (*gate_verdict(judgement), *(github_annotations(judgement) if github else ())):
        typer.echo(line)
    warn(judgement.notes)
    if not judgement.is_passed:
        raise typer.Exit(1)


def _judged(
    baseline: Path, current: Path, overrides: list[str], given: dict[str, float], workers: int
) -> "GateVerdict | GateFailure":
    """Return a judgement, or why there is none: the files say so, too, and no older ones stay."""
    from specsim.study.gate import GateResults, Suite
    from specsim.study.gate.verdict import GateFailure, check_same_suite, judge

    try:
        before = GateResults.load(baseline)
        if current.suffix == ".json":
            return judge(before, GateResults.load(current), {**before.tolerances, **given})
        suite = Suite.load(current, overrides)
        tolerances = {**(suite.tolerances or before.tolerances), **given}
        check_same_suite(before, suite)
        return judge(before, _run(suite, tolerances, workers, None), tolerances)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        return GateFailure.of(error)


def _refuse(given: dict[str, Any], where: str) -> None:
    for option, value in given.items():
        if value is not None:
            raise ConfigError(f"{option}: cannot be used {where}")


def _run(
    suite: "Suite", tolerances: dict[str, float], workers: int, date: str | None
) -> "GateResults":
    from specsim.study.gate import run_suite

    with progress("runs", len(suite.scenarios) * suite.replications) as on_progress:
        return run_suite(suite, tolerances, workers=workers, date=date, on_progress=on_progress)


def _write_baseline(
    path: Path, suite: "Suite", tolerances: dict[str, float], workers: int, date: str | None
) -> None:
    from specsim.study.gate import baseline_file, checked_date

    date = None if date is None else checked_date(date)
    with baseline_file(path) as temporary:
        results = _run(suite, tolerances, workers, date)
        temporary.write_text(results.to_json(), encoding="utf-8")
    typer.echo(
        f"baseline: {path} (scenarios: {len(suite.scenarios)}, seeds: {suite.replications} each)"
    )
