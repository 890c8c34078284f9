"""Calls: each study in one call, with the defaults of its command; what the public API offers."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.processes import LocalProcesses
from specsim.core.settings import check_used
from specsim.results.metrics import Slo
from specsim.run.experiment import Experiment
from specsim.study.capacity import (
    Capacity,
    Choices,
    Goal,
    Prices,
    SloLimits,
    find_capacity,
    find_hardware,
    parse_slo,
)
from specsim.study.compare import chosen_policies
from specsim.study.gate import GateResults, Suite, parse_tolerances, run_suite
from specsim.study.gate.verdict import GateVerdict, check_same_suite, judge
from specsim.study.plan import Plan, Question, make_plan
from specsim.study.plan.command import read_command
from specsim.study.plan.day import Day, read_day
from specsim.study.plan.traffic import find_traffic
from specsim.study.sweep import Sweep, SweepFolder, run_sweep

Progress = Callable[[int], None]
_REQUESTS, _MOST_REQUESTS = 2000, 64_000


def plan(
    *,
    workers: int = 1,
    on_progress: Progress | None = None,
    on_stage: Callable[[str], None] | None = None,
    **asked: Any,
) -> Plan:
    """Return which GPUs, and how many, serve what is asked (see `question_of`) at least cost."""
    question = question_of(**asked)
    return make_plan(question, workers=workers, on_progress=on_progress, on_stage=on_stage)


def question_of(  # noqa: PLR0913 - the options of a command
    *,
    vllm: str | None = None,
    sglang: str | None = None,
    traffic: str = "chat",
    qps: float | str | None = None,
    daily: str | None = None,
    slo: str | Slo = "ttft:500,tpot:50",
    gpus: str | Sequence[str] = "h100",
    attainment: float = 0.99,
    acceptance: str | None = None,
    prices: Path | str | None = None,
    redundancy: str = "n",
    pools: bool = False,
    api_price: str | None = None,
    seed: int = 0,
) -> Question:
    """Return what a plan is asked; a ConfigError if something of it is wrong, or is not simulated.

    Args:
        vllm, sglang: The command line of the server, one of the two.
        traffic: A kind such as ``chat``, a data set, a trace, or an experiment.
        qps: Requests per second of the whole service; by default 10.
        daily: Or those of each hour of a day, such as ``0:20,8:100,18:60``, or a table of them.
        acceptance: In short form, in place of the nearest preset.
        redundancy: ``n+1`` for one server beyond those that the rate takes.
        pools: Whether to look at prefill and decode on GPUs of their own, too.
        api_price: Of an API to compare with, per million prompt and output tokens: ``0.6,1.2``.
    """
    if pools and sglang is not None:
        raise ConfigError("--pools: is of vLLM's transfers; leave it out with --sglang")
    if (vllm is None) == (sglang is None):
        raise ConfigError("give either --vllm 'vllm serve MODEL ...' or --sglang '...'")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"--seed {seed}: must be at least 0 and below 2^63")
    day = None if daily is None else read_day(daily)
    rate = _rate_of(qps, day)
    _check_ranges(attainment, 0.02, rate)
    limits = parse_slo(slo) if isinstance(slo, str) else SloLimits(slo, {})
    command = read_command(vllm or sglang or "", "sglang" if vllm is None else "vllm")
    names = gpus.split(",") if isinstance(gpus, str) else gpus
    return Question(
        command=command,
        traffic=find_traffic(traffic, acceptance),
        slo=limits.slo,
        limit_shares=limits.shares,
        rate=rate,
        gpus=tuple(name.strip() for name in names),
        prices=Prices.load(prices),
        attainment=attainment,
        seed=seed,
        spare_servers=_spare_of(redundancy),
        day=day,
        pools=pools,
        api_price=None if api_price is None else _api_price_of(api_price),
    )


def _rate_of(qps: float | str | None, day: Day | None) -> float:
    """Return the requests per second to be served, of a day the most."""
    if day is not None:
        if qps is not None:
            raise ConfigError("give either --qps or --daily, whose highest load is served")
        return day.peak
    try:
        return 10.0 if qps is None else float(qps)
    except ValueError as error:
        raise ConfigError(f"--qps {qps:.80}: should be a number") from error


def _api_price_of(text: str) -> tuple[float, float]:
    try:
        prompt, output = (float(part) for part in text.split(","))
    except ValueError:
        prompt = output = inf
    if not (0 <= prompt < inf and 0 < output < inf):
        raise ConfigError(
            f"--api-price {text:.80}: should be the prices of a million prompt and output tokens, "
            "such as 0.6,1.2"
        )
    return prompt, output


def _spare_of(redundancy: str) -> int:
    found = re.fullmatch(r"n(?:\+(\d{1,3}))?", redundancy.strip().lower())
    if found is None:
        raise ConfigError(f"--redundancy {redundancy:.80}: should be n, n+1, n+2, ...")
    return int(found[1] or 0)


def capacity(  # noqa: PLR0913 - the options of a command
    experiment: Experiment,
    *,
    slo: str | Slo | None = None,
    attainment: float = 0.99,
    gpus: Sequence[str] = (),
    policies: Sequence[str] | None = None,
    is_closed: bool = False,
    qps: float | None = None,
    prices: Path | str | None = None,
    tolerance: float = 0.02,
    replications: int = 5,
    num_requests: int | None = None,
    max_requests: int = _MOST_REQUESTS,
    workers: int = 1,
    on_progress: Progress | None = None,
) -> Capacity:
    """Return the largest load within limits that each hardware sustains under each policy.

    SloLimits, GPUs or profiles, and policies (in short form) are the experiment's where none are
    given. A SpecsimError if the load cannot be varied, or a simulation cannot be run.

    Args:
        is_closed: Whether to vary the number of clients, not the rate.
        qps: Requests per second to count replicas for.
        num_requests: Of each run; by default runs grow until the answer stops moving.
    """
    limits = experiment.slo if slo is None else slo
    if limits is None:
        raise ConfigError(
            "--slo is missing and the experiment has no slo; give limits, such as ttft:500,tpot:50"
        )
    own = parse_slo(limits) if isinstance(limits, str) else SloLimits(limits, {})
    _check_ranges(attainment, tolerance, qps)
    count = num_requests or max(experiment.workload.num_requests or 0, _REQUESTS)
    longest = None if num_requests else max_requests
    goal = Goal(
        own.slo,
        attainment,
        tolerance,
        is_closed,
        qps,
        replications,
        count,
        longest,
        limit_shares=own.shares,
    )
    chosen = chosen_policies(policies, experiment.effective_policy)
    choices = Choices(find_hardware(experiment, list(gpus)), chosen, Prices.load(prices))
    return find_capacity(experiment, goal, choices, workers=workers, on_progress=on_progress)


def _check_ranges(attainment: float, tolerance: float, qps: float | None) -> None:
    for option, value, rule, holds in (
        ("--attainment", attainment, "above 0 and at most 1", 0 < attainment <= 1),
        ("--tolerance", tolerance, "from 0.001 to 0.5", 0.001 <= tolerance <= 0.5),
        ("--qps", qps, "above 0 and at most 1,000,000", qps is None or 0 < qps <= 1e6),
    ):
        if not holds:
            raise ConfigError(f"{option} {value}: must be {rule}")


def sweep(
    path: Path | str,
    out: Path | str,
    *,
    overrides: Iterable[str] = (),
    resume: bool = False,
    workers: int = 1,
    on_progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Run a sweep, a YAML file, and return a record per point; the folder keeps them."""
    folder = SweepFolder.create(Path(out), Sweep.load(Path(path), overrides), resume=resume)
    return run_sweep(folder, LocalProcesses(workers), on_progress)


def gate(
    baseline: Path | str | GateResults,
    suite: Path | str,
    *,
    overrides: Iterable[str] = (),
    tolerances: Mapping[str, float] | None = None,
    workers: int = 1,
    on_progress: Progress | None = None,
) -> GateVerdict:
    """Say whether a suite, run with the seeds of a baseline, is worse.

    Args:
        suite: A YAML file, or the results of one, JSON, which are compared as they are, without
            overrides.
        tolerances: By metric, in place of the suite's own.
    """
    before = baseline if isinstance(baseline, GateResults) else GateResults.load(Path(baseline))
    path, set_fields = Path(suite), list(overrides)
    given = parse_tolerances(f"{name}={share}" for name, share in (tolerances or {}).items())
    if path.suffix == ".json":
        if set_fields:
            raise ConfigError("--set: cannot be used with results; name a suite, YAML")
        return judge(before, GateResults.load(path), before.tolerances | given)
    current = Suite.load(path, set_fields)
    notes = check_same_suite(before, current)
    if any(old.seeds[0] != current.seeds(name)[0] for name, old in before.scenarios.items()):
        check_used(set_fields, ["seed"], "the baseline sets")
    allowed = (current.tolerances or before.tolerances) | given
    found = run_suite(current, allowed, baseline=before, workers=workers, on_progress=on_progress)
    return judge(before, found, allowed, notes)
