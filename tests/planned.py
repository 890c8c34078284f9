"""Plans made of searches that nobody ran, for tests of what is said of them."""

from dataclasses import replace
from math import ceil

from specsim.results.stability import KEEPS_UP
from specsim.run.validity import Beyond
from specsim.study.capacity import Found, Prices
from specsim.study.capacity.probe import ALL, Interval, LoadProbe, LoadRun, Promise
from specsim.study.capacity.search import Answer, Bracket
from specsim.study.plan import Option, Plan, Question, question_of
from specsim.study.plan.candidates import goal_of, offered

EAGLE = """--speculative-config '{"method": "eagle3", "num_speculative_tokens": 3}'"""


def asked(command: str = f"Qwen/Qwen3-8B {EAGLE}", **changes: object) -> Question:
    return question_of(**{"vllm": f"vllm serve {command}", "gpus": "h100", **changes})


def run_at(load: float, latency: float, shift: float, missed: float, held: int = 8) -> LoadRun:
    names_ = [f"{s}_{m}_ms" for s in ("mean", "p50", "p99") for m in ("ttft", "tpot", "e2el")]
    return LoadRun(
        load=load, num_requests=4000, num_steady=3000, missed=missed, missed_by={"ttft_ms": missed},
        promises={ALL: Promise(missed, 0.99)},
        reached_ms={"ttft_ms": 1.0, "tpot_ms": 2.0}, balance=KEEPS_UP, is_too_short=False,
        requests_per_second=load, mean_output_len=100.0,
        latencies_ms=dict.fromkeys(names_, latency * (1 + shift)), most_running=held,
        resource="step_time", beyond=Beyond(1, 0, 0, 1, 1, 1.0),
    )  # fmt: skip


def found_of(
    option: Option, question: Question, rate: float, interval: tuple[float, float], latency: float
) -> Found:
    prices = Prices(per_gpu_hour=dict.fromkeys(option.hardware.gpus, 2.0))
    goal = replace(goal_of(question), shares=(1.0,), prices=prices)
    at = question.rate / ceil(question.rate / rate)
    loads = sorted({at, rate, rate * 1.02})
    probes = [
        LoadProbe(tuple(run_at(load, latency, s / 100, 0.5 * (load > rate)) for s in range(5)))
        for load in loads
    ]
    for run in (run for probe in probes if goal.limit_shares for run in probe.runs):
        own = {name: Promise(run.missed / 5, share) for name, share in goal.limit_shares.items()}
        run.promises.update(own)
    probes = [LoadProbe(probe.runs) for probe in probes]
    between = Interval(rate, *interval)
    answer = Answer(Bracket(rate, rate * 1.02), between, True, 4000, probes)
    return Found(option.hardware, option.label, answer, goal)


def plan_of(
    off: tuple[float, float, float, float], on: tuple[float, float, float, float], **changes: object
) -> Plan:
    """Make a plan of rate, interval and latency without speculation and with it."""
    question = asked(qps=100.0, **changes)
    options = {o.label: o for o in offered(question, ("off", "static:k=3")).options}
    given = {"off": off, "static:k=3": on}
    found = [
        found_of(options[label], question, rate, (low, high), latency)
        for label, (rate, low, high, latency) in given.items()
    ]
    searched = {each.name: each for each in found}
    return Plan(question, [], {o.name: o for o in options.values()}, searched=searched)


def of_two_gpus() -> Plan:
    """Make a plan in which an H100 was searched, with speculation only, and an L40S was not."""
    question = asked(gpus="h100,l40s,rtx4090", qps=100.0)
    tried = offered(question, ("off", "static:k=3"))
    options = {o.name: o for o in tried.options}
    rates = {"h100 static:k=3": (34.0, 600.0), "h100 off": (26.0, 900.0),
             "l40s static:k=3": (12.0, 300.0), "l40s off": (9.0, 700.0)}  # fmt: skip
    found = {
        name: found_of(options[name], question, rate, (rate * 0.98, rate * 1.02), latency)
        for name, (rate, latency) in rates.items()
    }
    searched = {"h100 static:k=3": found.pop("h100 static:k=3")}
    left_out = ["rtx4090: no profile of qwen3-8b"]
    options = {name: o for name, o in options.items() if name in rates}
    return Plan(question, left_out, options, found, searched)
