"""Commands that answer a question by many runs, and commands for beginners.

They are ``capacity``, ``tune``, ``gate``, ``split`` and ``plan``; ``init`` and ``demo``.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal

import typer
from typer import Argument, Option

from specsim.cli.options import (
    ALL_CORES,
    Attainment,
    Config,
    Out,
    Overrides,
    PriceTable,
    Redundancy,
    Seed,
    Workers,
    can_draw,
    load_experiment,
    output_file,
    progress,
    refuse,
    results_folder,
    say,
    show,
    spinner,
    warm_up,
    warn,
    write_json,
)
from specsim.core.errors import ConfigError, SpecsimError

if TYPE_CHECKING:
    from specsim.study.gate import Suite
    from specsim.study.gate.verdict import GateFailure, GateVerdict

_MAX_REQUESTS = 64_000
_NOT_ASKED = ("config", "drive", "overrides", "seed", "out")
"""Options of `capacity` that its Python function lacks, or names otherwise."""


def capacity(
    config: Config,
    slo: str | None = Option(
        None,
        metavar="METRIC:MS,...",
        help="Limits in ms, ttft:500,tpot:50,e2el:10000, or each at a percentile, "
        "ttft:p90<800,tpot:p95<50; by default the experiment's slo.",
    ),
    attainment: Attainment = 0.99,
    gpus: str | None = Option(
        None,
        metavar="GPU,...",
        help="GPUs or profiles to compare, h100,l40s; by default the experiment's profile.",
    ),
    policies: list[str] | None = Option(
        None,
        metavar="POLICY...",
        help="In short form, off static:k=3; by default the experiment's.",
    ),
    drive: Literal["rate", "concurrency"] = Option(
        "rate", help="Vary the arrival rate, or how many clients wait for answers."
    ),
    qps: float | None = Option(None, help="Requests/s of the whole service, to count servers for."),
    prices: PriceTable = None,
    redundancy: Redundancy = "n",
    tolerance: float = Option(0.02, max=0.5, help="Stop when the capacity is known to this share."),
    overrides: Overrides = None,
    seed: Seed = None,
    replications: int = Option(5, min=1, help="Runs of each load."),
    num_requests: int | None = Option(
        None,
        min=50,
        max=100_000_000,
        help="Requests per run, fixed, as for CI; by default runs grow until the answer stops "
        "moving, from 2,000 or the experiment's num_requests if that is more.",
    ),
    max_requests: int = Option(
        _MAX_REQUESTS, min=50, max=100_000_000, help="Most requests that a run may grow to."
    ),
    workers: Workers = ALL_CORES,
    out: Out = None,
) -> None:
    """Find the largest load within limits, how many GPUs a target rate takes, and what it costs.

    A load is sustained if enough requests keep all limits and the backlog does not grow. Each GPU
    and policy is searched by bracketing and bisection, on the same requests and luck, in runs that
    grow until the answer stops moving. Those whose 95 % intervals overlap are not ranked. With
    --out the folder gets capacity.json, and capacity.parquet with every load that was tried.
    """
    asked = {name: value for name, value in locals().items() if name not in _NOT_ASKED}
    warm_up(workers)
    from specsim.show.render.study_tables import capacity_tables, capacity_verdict
    from specsim.study.capacity import capacity as ask

    experiment = load_experiment(config, overrides, seed)
    with results_folder(out, ("capacity.json", "capacity.parquet")) as folder:
        with progress("simulations", None) as on_progress:
            is_closed = drive == "concurrency"
            found = ask(experiment, **asked, is_closed=is_closed, on_progress=on_progress)
        if folder is not None:
            found.save(folder)
    show(*capacity_tables(found, config.name))
    for line in capacity_verdict(found):
        typer.echo(line)
    source = "examples of list prices, replace them by --prices" if prices is None else prices
    date = found.goal.prices.date
    typer.echo(f"prices{f' of {date}' if date else ''}: {source}")
    warn(found.notes)
    if out is not None:
        typer.echo(f"results: {out} (capacity.json, capacity.parquet)")


def tune(
    config: Config,
    overrides: Overrides = None,
    seed: Seed = None,
    max_k: int | None = Option(
        None, "--max-k", min=1, help="Largest k to try; by default num_speculative_tokens."
    ),
    replications: int = Option(5, min=2, help="Runs of each kind; more give narrower intervals."),
    workers: Workers = ALL_CORES,
    emit: Literal["vllm"] | None = Option(
        None, help="Print only what to use, for --speculative-config; tables go to stderr."
    ),
    out: Out = None,
) -> None:
    """Find the best k per batch size and the load up to which each k pays, with intervals.

    Prints a schedule that vLLM reads (num_speculative_tokens_per_batch_size), simulates it against
    the best fixed k and the oracle, and says what it gains. With --out the folder gets tune.json
    and plot.png. --emit prints the schedule, or the best fixed k where the schedule does not beat
    it. Where no speculation at all is best, it prints nothing, and the exit code is 1.

    vllm serve MODEL --speculative-config "$(specsim tune EXP.yaml --emit vllm)"
    """
    warm_up(workers)
    from specsim.show.render.study_tables import tuning_tables, tuning_verdict
    from specsim.study.tune import tune as run_tuning

    experiment = load_experiment(config, overrides, seed)
    draws = out is not None and can_draw("plot.png")
    with results_folder(out, ("tune.json", "plot.png")) as folder:
        with progress("simulations", None) as on_progress:
            tuning = run_tuning(
                experiment,
                max_k=max_k,
                replications=replications,
                workers=workers,
                on_progress=on_progress,
                on_stage=on_progress.stage,
            )
        if folder is not None:
            tuning.save(folder)
        if folder is not None and draws:
            from specsim.show.charts.run_plots import plot_tuning

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
    baseline: Path = Argument(..., metavar="BASELINE.json"),
    current: Path = Argument(
        ...,
        metavar="CURRENT",
        help="A suite or an experiment to be run, YAML, or the results of one, JSON.",
    ),
    overrides: Overrides = None,
    update: bool = Option(False, "--update", help="Run CURRENT and write BASELINE.json."),
    date: str | None = Option(
        None, metavar="YYYY-MM-DD", help="With --update: date to note in the file."
    ),
    tolerance: list[str] | None = Option(
        None, metavar="METRIC=SHARE", help="In place of the suite's: mean_e2el_ms=2%."
    ),
    json_out: Path | None = Option(
        None, "--json", metavar="FILE", help="Write the verdicts as JSON."
    ),
    junit: Path | None = Option(None, metavar="FILE", help="Write the verdicts as JUnit XML."),
    github: bool = Option(False, "--github", help="Print annotations for GitHub Actions."),
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
        warm_up(workers)
    from specsim.show.render.study_tables import gate_table, gate_verdict
    from specsim.study.gate import Suite, parse_tolerances, tolerances_of
    from specsim.study.gate.verdict import GateFailure, github_annotations, write_junit

    outputs = {"json": json_out, "junit": junit, "github": github or None}
    if update:
        refuse(outputs, "cannot be used with --update, which compares nothing")
        if is_stored:
            raise ConfigError("CURRENT: cannot be used with --update; name a suite, YAML")
        suite = Suite.load(current, overrides or ())
        tolerances = {**tolerances_of(suite), **parse_tolerances(tolerance or ())}
        _write_baseline(baseline, suite, tolerances, workers, date)
        return
    inputs = {baseline.resolve(), current.resolve()}
    files = {"--json": json_out and json_out.resolve(), "--junit": junit and junit.resolve()}
    for option, is_wrong, where in (
        ("--date", date is not None, "without --update"),
        *((option, path in inputs, "on its own input") for option, path in files.items()),
        ("--junit", junit and len({*files.values()}) < 2, "with the file of --json; name another"),
        ("--set", overrides is not None and is_stored, "with results; name a suite, YAML"),
    ):
        if is_wrong:
            raise ConfigError(f"{option}: cannot be used {where}")

    title = f"{current.name} against {baseline.name}"
    with output_file(json_out) as json_file, output_file(junit) as junit_file:
        judgement = _judged(baseline, current, overrides or [], tolerance or [], workers)
        write_json(json_file, judgement.to_dict())
        if junit_file is not None:
            write_junit(judgement, junit_file, title)
    annotations = github_annotations(judgement, title) if github else []
    if isinstance(judgement, GateFailure):
        typer.echo(indent(judgement.error, "error: "), err=True)
        _say(annotations)
        raise typer.Exit(3 if judgement.is_crash else 2)
    show(gate_table(judgement, title))
    _say([*gate_verdict(judgement), *annotations])
    warn(judgement.notes)
    if not judgement.is_passed:
        raise typer.Exit(1)


def _say(lines: list[str]) -> None:
    for line in lines:
        typer.echo(line)


def _judged(
    baseline: Path, current: Path, overrides: list[str], tolerance: list[str], workers: int
) -> "GateVerdict | GateFailure":
    """Return a verdict or a failure; files of an older one are replaced in both cases."""
    from specsim.study.gate import GateResults, parse_tolerances
    from specsim.study.gate.verdict import GateFailure
    from specsim.study.gate.verdict import gate as run_gate

    try:
        given = parse_tolerances(tolerance)
        before = GateResults.load(baseline)
        asked: dict[str, Any] = {"overrides": overrides, "tolerances": given, "workers": workers}
        with progress("runs", sum(len(old.seeds) for old in before.scenarios.values())) as told:
            return run_gate(before, current, **asked, on_progress=told)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        return GateFailure.of(error)


def _write_baseline(
    path: Path, suite: "Suite", tolerances: dict[str, float], workers: int, date: str | None
) -> None:
    from specsim.study.gate import baseline_file, checked_date, run_suite
    from specsim.study.gate.verdict import error_of_each, told_of_two_seeds

    date = None if date is None else checked_date(date)
    runs = len(suite.scenarios) * suite.replications
    with baseline_file(path) as temporary:
        with progress("runs", runs) as told:
            results = run_suite(suite, tolerances, workers=workers, date=date, on_progress=told)
        text = json.dumps(results.model_dump(mode="json"), indent=1, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    typer.echo(
        f"baseline: {path} (scenarios: {len(suite.scenarios)}, seeds: {suite.replications} each)"
    )
    error = error_of_each(len(suite.scenarios), tolerances)
    warn(told_of_two_seeds([suite.replications], error))


def split(
    config: Config,
    gpus: int = Option(..., min=1, max=4096, help="GPUs to share out."),
    rates: str | None = Option(
        None, metavar="R,...", help="Requests/s, 4,8,16; by default the experiment's."
    ),
    tp: str | None = Option(
        None, metavar="N,...", help="Tensor parallelism of a replica to choose from, 1,2,4."
    ),
    policies: list[str] | None = Option(
        None, metavar="POLICY...", help="Policies to choose from, in short form: off static:k=3."
    ),
    whole: int = Option(
        8, min=1, help="With --tp or --policies: how many splits are simulated whole."
    ),
    overrides: Overrides = None,
    seed: Seed = None,
    replications: int = Option(1, min=1, help="Runs of each split."),
    workers: Workers = ALL_CORES,
    out: Out = None,
) -> None:
    """Compare replicas that prefill and decode with every split of the GPUs into two pools.

    All of them meet the same requests on the same luck. The best of each load comes first: the one
    with the highest SLO attainment, or of the lowest mean latency where the experiment has no slo.
    Profiles, engines and links of the pools are those of the experiment's pools, if it has them.
    With --tp or --policies every pair of pools in these sizes is looked at, each pool simulated by
    itself, and the most promising ones are simulated whole. With --out the folder gets split.json.
    """
    warm_up(workers)
    from specsim.show.render.study_tables import search_lines, split_table
    from specsim.study.compare import chosen_policies
    from specsim.study.split import compare_splits, search_splits

    experiment, search = load_experiment(config, overrides, seed), None
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
    warn(experiment.workload.notes)
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


_PAGE = "report.html"


def plan(
    vllm: str | None = Option(
        None,
        metavar="COMMAND",
        help="The server, as started: 'vllm serve MODEL ...', or a container's YAML, or its file.",
    ),
    sglang: str | None = Option(
        None, metavar="COMMAND", help="Or 'python -m sglang.launch_server ...'."
    ),
    traffic: str = Option(
        "chat", help="chat, code, summarise, math, a data set, a trace, or an experiment."
    ),
    qps: float | None = Option(None, help="Requests/s of the whole service; by default 10."),
    daily: str | None = Option(
        None,
        metavar="HOUR:RATE,...",
        help="Or requests/s in the course of a day: 0:20,8:100,18:60, or a CSV of hour and rate.",
    ),
    slo: str = Option(
        "ttft:500,tpot:50",
        metavar="METRIC:MS,...",
        help="Limits in ms: ttft:500,tpot:40; or each at a percentile: ttft:p90<800,tpot:p95<50.",
    ),
    gpus: str = Option("h100", metavar="GPU,...", help="GPUs to choose from: h100,l40s,b200."),
    attainment: Attainment = 0.99,
    acceptance: str | None = Option(
        None,
        help="bernoulli:alpha=0.7, or a file of `acceptance fit`, in place of the nearest preset.",
    ),
    prices: PriceTable = None,
    redundancy: Redundancy = "n",
    pools: bool = Option(
        False, "--pools", help="Look at prefill and decode on GPUs of their own, too."
    ),
    api_price: str | None = Option(
        None,
        metavar="PROMPT,OUTPUT",
        help="Price of an API per million tokens, to compare with: 0.6,1.2.",
    ),
    seed: int = Option(0, min=0, help="Seed of all runs."),
    workers: Workers = ALL_CORES,
    out: Out = None,
) -> None:
    """Answer how many GPUs of which kind serve some traffic within limits, at the least cost.

    Reads the command line of a server. With --out the folder gets the page report.html, serve.sh,
    docker-compose.yaml and kubernetes.yaml to deploy the answer, and experiment.yaml to look
    deeper. After Ctrl-C the answer is what is known by then.
    """
    asked = {name: value for name, value in locals().items() if name != "out"}
    warm_up(workers)
    from specsim.show.render.plan_tables import plan_lines, plan_tables
    from specsim.study.plan import plan as ask
    from specsim.study.plan.files import FILES, save_plan
    from specsim.study.plan.words import notes

    with results_folder(out, (*FILES, _PAGE)) as folder:
        with progress("simulations", None) as on_progress:
            found = ask(**asked, on_progress=on_progress, on_stage=on_progress.stage)
        if folder is not None:
            save_plan(found, folder)
    say(plan_lines(found))
    show(*plan_tables(found))
    say(notes(found.advice))
    warn(found.warnings)
    if out is not None:
        from specsim.show.report import load_study, write_page

        with spinner("writing the page"):
            write_page(load_study(out), out / _PAGE)
        names = (_PAGE, "serve.sh", "docker-compose.yaml", "experiment.yaml")
        typer.echo(f"results: {out} ({', '.join(n for n in names if (out / n).exists())})")


def init(
    out: Path = Argument(Path("experiment.yaml"), metavar="EXPERIMENT.yaml", help="What to write."),
) -> None:
    """Ask for server, traffic, load and limits, and write an experiment with comments.

    Answers may also come from a pipe, one per line; an empty line takes what is proposed.
    """
    from specsim.core.resources import within
    from specsim.core.settings import as_yaml
    from specsim.study.plan import question_of
    from specsim.study.plan.candidates import first_option, with_replicas
    from specsim.study.plan.files import commented
    from specsim.study.plan.hardware import PROFILE_FILE

    answers: dict[str, Any] = {}
    with output_file(out) as file:
        ask = _asker()
        for name, (text, proposed) in _QUESTIONS.items():
            while True:
                answers[name] = ask(text, proposed)
                try:
                    question = question_of(**answers)
                    break
                except SpecsimError as error:
                    if not sys.stdin.isatty():
                        raise
                    typer.echo(f"error: {error}", err=True)
        option = first_option(question)
        experiment = with_replicas(option, question, 1)
        about = f"one {option.hardware.label}; for how many: specsim plan, with the same answers"
        if experiment.profile == PROFILE_FILE:  # of which none is shipped
            beside = out.with_name(f"{out.stem}-{PROFILE_FILE}")
            with output_file(beside) as profile_file:
                assert profile_file is not None
                fields = within(option.hardware.profile.to_dict(), out.parent)
                profile_file.write_text(as_yaml(fields), encoding="utf-8")
            experiment = experiment.replace(profile=beside.name)
            typer.echo(f"profile: {beside}")
        assert file is not None
        file.write_text(commented(experiment, about, out.parent), encoding="utf-8")
    typer.echo(
        f"experiment: {out} (specsim run {out}, specsim capacity {out} --qps {question.rate:g}"
        f"{question.shares_as_options})"
    )


_QUESTIONS = {
    "vllm": ("How is the server started", "vllm serve meta-llama/Llama-3.1-8B-Instruct"),
    "traffic": ("Traffic (chat, code, summarise, math, a data set, a trace)", "chat"),
    "qps": ("Requests per second", "10"),
    "slo": ("Limits in ms", "ttft:500,tpot:50"),
    "gpus": ("GPU", "h100"),
}


def _asker() -> Callable[[str, str], str]:
    """Return a function that asks one question: at the terminal, or from piped lines."""
    if sys.stdin.isatty():
        return lambda text, proposed: str(typer.prompt(text, default=proposed))
    lines = iter(sys.stdin.read(100_000).splitlines())
    first = next(lines, None)
    if first is None:
        raise ConfigError(
            "init: there is no terminal to ask at, and no answers in the pipe; give one per line: "
            + ", ".join(_QUESTIONS)
        )
    given = iter([first, *lines])
    return lambda text, proposed: next(given, "").strip() or proposed


def demo(
    out: Path = Option(Path("results/demo"), help="Folder for the results."),
    workers: Workers = ALL_CORES,
) -> None:
    """Simulate an hour of chat on one H100, without speculation and with k = 3."""
    from specsim.cli.simulation import compare
    from specsim.core.resources import find_resource

    experiment = find_resource("experiments", "demo/demo.yaml")
    if experiment is None:
        raise ConfigError("demo: experiments/demo/demo.yaml is missing; install llm-specsim again")
    compare(experiment, ["off", "static:k=3"], replications=1, workers=workers, out=out)
