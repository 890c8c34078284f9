"""Hold the answers of `specsim plan` against a dense sweep: every option, loads 2 % apart.

python experiments/plan-check/run.py [QUESTION ...]
"""

import csv
import sys
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from time import perf_counter

from specsim.core.processes import LocalProcesses
from specsim.core.runner import Runner
from specsim.study.capacity import Prices, parse_slo
from specsim.study.capacity.probe import LoadProbe, measure
from specsim.study.capacity.search import Asked
from specsim.study.plan import Question
from specsim.study.plan import plan as make_plan
from specsim.study.plan.answer import Plan
from specsim.study.plan.command import read_command
from specsim.study.plan.question import find_traffic

HERE = Path(__file__).parent
EAGLE = '{"method": "eagle3", "num_speculative_tokens": 3}'
QUESTIONS = {
    "chat-8b": (
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 "
        f"--speculative-config '{EAGLE}'",
        *("chat", 100.0, "ttft:500,tpot:40", "h100,l40s,b200"),
    ),
    "code-8b": (
        f"vllm serve Qwen/Qwen3-8B --max-num-seqs 256 --speculative-config '{EAGLE}'",
        *("code", 60.0, "ttft:300,tpot:20", "h100,a100-80gb,l40s"),
    ),
    "summarise-70b": (
        "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 --speculative-config.method ngram "
        "--speculative-config.num_speculative_tokens 3",
        *("summarise", 20.0, "ttft:2000,tpot:60", "h100,h200"),
    ),
}
LENGTH, SEEDS, STEP, REACH = 50_000, 2, 1.02, 10
REACH_OF_COST = 1.05


def main() -> None:
    names = sys.argv[1:] or list(QUESTIONS)
    path = HERE / "results.csv"
    rows = list(csv.DictReader(path.open())) if path.exists() else []
    rows = [row for row in rows if row["question"] not in names]
    for name in names:
        started_at = perf_counter()
        plan = make_plan(asked(*QUESTIONS[name]), workers=2)
        seconds = perf_counter() - started_at
        with Runner(LocalProcesses(2)) as runner:
            truth = {each: dense(plan, each, runner) for each in looked_at(plan)}
        check(name, plan, truth, seconds)
        rows += [row(name, plan, option, rate, seconds) for option, rate in truth.items()]
        rows.sort(key=lambda row: list(QUESTIONS).index(str(row["question"])))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def looked_at(plan: Plan) -> list[str]:
    """Return what was searched to the end, and what might be cheaper by short runs."""
    most = REACH_OF_COST * (plan.found[plan.taken or ""].cost_per_hour or inf)
    near = [n for n, each in plan.screened.items() if (each.cost_per_hour or inf) <= most]
    return [*plan.found, *near]


def asked(command: str, traffic: str, rate: float, slo: str, gpus: str) -> Question:
    return Question(
        read_command(command, "vllm"), find_traffic(traffic), parse_slo(slo).slo, rate,
        tuple(gpus.split(",")), Prices.load(None),
    )  # fmt: skip


def dense(plan: Plan, name: str, runner: Runner) -> float:
    """Return the largest load of a grid that is sustained, from below."""
    found = plan.found.get(name) or plan.screened[name]
    assert found.rate is not None
    contender = plan.options[name].contender(
        replace(found.goal, replications=SEEDS, is_rough=False)
    )
    place = 0

    def is_sustained(place: int) -> bool:
        tasks = contender.at(Asked(found.rate * STEP**place, LENGTH))
        return LoadProbe(tuple(runner.run(measure, [tasks])[0])).is_sustained

    if is_sustained(place):
        while place < REACH and is_sustained(place + 1):
            place += 1
    else:
        while place > -REACH and not is_sustained(place := place - 1):
            pass
    return found.rate * STEP**place


def cost(plan: Plan, name: str, rate: float) -> float:
    found = plan.found.get(name) or plan.screened[name]
    replicas = ceil(plan.question.rate / rate) if rate else inf
    return replicas * found.hardware.gpus_per_replica * (found.price or inf)


def row(question: str, plan: Plan, name: str, rate: float, seconds: float) -> dict[str, object]:
    found = plan.found.get(name) or plan.screened[name]
    between = found.interval if name in plan.found else None
    return {
        "question": question,
        "option": name,
        "searched_to_the_end": name in plan.found,
        "requests_per_second": f"{found.rate or 0:.2f}",
        "low": "" if between is None else f"{between.low:.2f}",
        "high": "" if between is None else f"{between.high:.2f}",
        "dense": f"{rate:.2f}",
        "usd_per_hour": f"{found.cost_per_hour or 0:.3f}",
        "dense_usd_per_hour": f"{cost(plan, name, rate):.3f}",
        "seconds": f"{seconds:.0f}",
    }


def check(name: str, plan: Plan, truth: dict[str, float], seconds: float) -> None:
    """Print what agrees: the one taken is the cheapest, and intervals cover the dense sweep."""
    costs = {option: cost(plan, option, rate) for option, rate in truth.items()}
    least = min(costs.values())
    taken = plan.taken or ""
    covered = sum(
        each.interval is not None
        and each.interval.low <= truth[option] * STEP
        and truth[option] <= each.interval.high
        for option, each in plan.found.items()
    )
    print(
        f"{name}: {seconds:.0f} s; took {taken} at {plan.found[taken].cost_per_hour:.2f}, dense "
        f"{costs[taken]:.2f}, least of all {least:.2f}; {covered} of {len(plan.found)} intervals "
        f"cover the dense sweep; short runs off by {worst(plan, truth):.1%} at most",
        flush=True,
    )


def worst(plan: Plan, truth: dict[str, float]) -> float:
    short = plan.screened
    ratios = [(short[name].rate or 0) / rate for name, rate in truth.items() if name in short]
    return max((abs(ratio - 1) for ratio in ratios), default=0.0)


if __name__ == "__main__":
    main()
