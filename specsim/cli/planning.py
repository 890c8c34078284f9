"""Commands that begin: ``plan``, ``init`` and ``demo``."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from specsim.cli.options import (
    ALL_CORES,
    Attainment,
    Out,
    PriceTable,
    Redundancy,
    Workers,
    output_file,
    progress,
    results_folder,
    say,
    show,
    spinner,
    warm_up,
    warn,
)
from specsim.core.errors import ConfigError, SpecsimError

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
        if experiment.profile == PROFILE_FILE:  # which none is shipped of
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
    """Return what asks one question: at the terminal, or of the lines that are piped in."""
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
