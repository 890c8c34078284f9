"""Commands that begin: ``plan``, ``init`` and ``demo``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specsim.cli.options import (
    ALL_CORES,
    Out,
    Workers,
    progress,
    results_folder,
    spinner,
    warn,
)
from specsim.core.errors import ConfigError

if TYPE_CHECKING:
    from specsim.study.plan import Question

_PAGE = "report.html"


def plan(
    vllm: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="The server, as started: 'vllm serve MODEL ...'."),
    ] = None,
    sglang: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Or 'python -m sglang.launch_server ...'."),
    ] = None,
    traffic: Annotated[
        str,
        typer.Option(help="chat, code, summarise, math, a data set, a trace, or an experiment."),
    ] = "chat",
    qps: Annotated[float, typer.Option(help="Requests/s of the whole service.")] = 10.0,
    slo: Annotated[
        str, typer.Option(metavar="METRIC:MS,...", help="Limits in ms: ttft:500,tpot:40.")
    ] = "ttft:500,tpot:50",
    gpus: Annotated[
        str, typer.Option(metavar="GPU,...", help="To choose from: h100,l40s,b200.")
    ] = "h100",
    attainment: Annotated[
        float, typer.Option(help="Share of the requests that must keep all limits.")
    ] = 0.99,
    acceptance: Annotated[
        str | None,
        typer.Option(help="bernoulli:alpha=0.7, in place of the nearest preset."),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(help="Price per GPU and hour, YAML; by default dated examples."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all runs.")] = 0,
    workers: Workers = ALL_CORES,
    out: Out = None,
) -> None:
    """Answer how many GPUs of which kind serve some traffic within limits, at the least cost.

    Reads the command line of a server. With --out the folder gets the page report.html, serve.sh,
    docker-compose.yaml, kubernetes.yaml and experiment.yaml to look deeper.

    specsim plan --vllm 'vllm serve Qwen/Qwen3-8B' --traffic chat --qps 20 --gpus h100,l40s
    """
    from specsim.study.runner import warm_up

    warm_up(workers)
    from specsim.show.render.plan import plan_lines
    from specsim.study.plan import make_plan
    from specsim.study.plan.files import FILES, save_plan

    question = _question(
        vllm, sglang, traffic, qps, slo, gpus, attainment, acceptance, prices, seed
    )
    with results_folder(out, FILES) as folder:
        with progress("simulations", None) as on_progress:
            found = make_plan(question, workers=workers, on_progress=on_progress)
        if folder is not None:
            save_plan(found, folder)
    for line in plan_lines(found):
        typer.echo(line)
    left_out = [f"not searched to the end: {'; '.join(found.left_out)}"] if found.left_out else []
    warn([*found.assumptions, *left_out, *found.capacity.notes])
    if out is not None:
        from specsim.show.report import load_study, write_page

        with spinner("writing the page"):
            write_page(load_study(out), out / _PAGE)
        typer.echo(f"results: {out} ({_PAGE}, serve.sh, docker-compose.yaml, experiment.yaml)")


def _question(
    vllm: str | None, sglang: str | None, traffic: str, qps: float, slo: str, gpus: str,
    attainment: float, acceptance: str | None, prices: Path | None, seed: int,
) -> "Question":  # fmt: skip
    from specsim.study.capacity import Prices, parse_slo
    from specsim.study.plan import Question
    from specsim.study.plan.command import read_command
    from specsim.study.plan.traffic import find_traffic

    if (vllm is None) == (sglang is None):
        raise ConfigError("give either --vllm 'vllm serve MODEL ...' or --sglang '...'")
    if not 0 < qps < float("inf"):
        raise ConfigError(f"--qps {qps}: must be a finite number above 0")
    if not 0 < attainment <= 1:
        raise ConfigError(f"--attainment {attainment}: must be above 0 and at most 1")
    program = "sglang" if vllm is None else "vllm"
    command = read_command(vllm or sglang or "", program)
    names = tuple(name.strip() for name in gpus.split(",") if name.strip())
    return Question(
        command, find_traffic(traffic, acceptance), parse_slo(slo), qps, names,
        Prices.load(prices), attainment, seed,
    )  # fmt: skip
