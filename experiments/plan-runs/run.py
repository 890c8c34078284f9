"""Hold capacities of `specsim plan` against runs of 50,000 requests that took no part in it.

python experiments/plan-runs/run.py [SETTING ...]
"""

import csv
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specsim.core.figures import percent
from specsim.core.processes import LocalProcesses
from specsim.core.runner import Runner
from specsim.run.experiment import Experiment
from specsim.run.summary import summarized
from specsim.study.capacity import Found, refined, searched
from specsim.study.capacity.probe import LoadProbe, measure
from specsim.study.capacity.search import Asked
from specsim.study.plan import Option, Plan, Question, question_of
from specsim.study.plan import plan as make_plan
from specsim.study.plan.candidates import goal_of, offered
from specsim.study.plan.files import save_plan

HERE = Path(__file__).parent
E3 = "--speculative-config.method eagle3 --speculative-config.num_speculative_tokens 2"
NGRAM = "--speculative-config.method ngram --speculative-config.num_speculative_tokens 3"
L8, L70 = "meta-llama/Llama-3.1-8B-Instruct -tp 1", "meta-llama/Llama-3.3-70B-Instruct -tp 4"
SETTINGS: dict[str, dict[str, Any]] = {
    "chat-8b": {"vllm": f"{L8} {E3}", "qps": 100, "slo": "ttft:500,tpot:40"},
    "chat-8b-percentiles": {
        "vllm": f"{L8} {E3}", "qps": 100, "slo": "ttft:p90<300ms,tpot:p95<25ms",
    },
    "code-8b-percentiles": {
        "vllm": f"Qwen/Qwen3-8B -tp 1 {NGRAM}", "traffic": "code", "qps": 90,
        "slo": "ttft:p95<200ms,tpot:p90<15ms",
    },
    "math-8b-l40s": {"vllm": f"{L8} {NGRAM}", "traffic": "math", "qps": 40, "gpus": "l40s"},
    "summarise-70b": {
        "vllm": f"{L70} {NGRAM}", "traffic": "summarise", "qps": 20, "slo": "ttft:2000,tpot:60",
    },
    "summarise-8b-pools": {
        "vllm": f"{L8} {E3}", "traffic": "summarise", "qps": 60, "slo": "ttft:400,tpot:15",
        "pools": True,
    },
    "chat-gpt-oss-20b": {"vllm": f"openai/gpt-oss-20b -tp 1 {E3}", "qps": 80},
    "code-32b-percentiles": {
        "vllm": f"Qwen/Qwen3-32B -tp 2 {E3}", "traffic": "code", "qps": 60, "gpus": "h200",
        "slo": "ttft:p90<500ms,tpot:p90<25ms",
    },
    "math-30b-a3b": {
        "vllm": f"Qwen/Qwen3-30B-A3B -tp 1 {NGRAM}", "traffic": "math", "qps": 50,
        "slo": "ttft:1000,tpot:30",
    },
    "chat-8b-pools": {
        "vllm": f"{L8} {E3}", "qps": 100, "gpus": "h200", "slo": "ttft:300,tpot:12", "pools": True,
    },
    "summarise-8b-day": {
        "vllm": f"{L8} {E3}", "traffic": "summarise", "daily": "0:10,6:8,9:55,13:60,18:40,22:15",
    },
    "math-8b-l40s-day": {
        "vllm": f"{L8} {NGRAM}", "traffic": "math", "gpus": "l40s",
        "daily": "0:8,7:6,10:50,16:70,20:30",
    },
}  # fmt: skip
LENGTH, SEED, STEP, FARTHEST = 50_000, 1000, 0.02, 8
RUNS = 8  # judge a load together: the luck of one moves a capacity by 2 %
SPLIT = (2, 1)  # servers that prefill and that decode, of pools
STEEPEST = {"summarise-8b-day": (28, 30), "math-8b-l40s-day": (36, 40)}  # quarters of an hour


def main() -> None:
    names = sys.argv[1:] or list(SETTINGS)
    path = HERE / "results.csv"
    rows = list(csv.DictReader(path.open())) if path.exists() else []
    for name in names:
        rows = [row for row in rows if row["setting"] != name] + [row_of(name)]
        rows.sort(key=lambda row: list(SETTINGS).index(row["setting"]))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        print(name, flush=True)


def row_of(name: str) -> dict[str, Any]:
    """Return what is said of the option that is taken, and what the runs do."""
    question = question_of(**SETTINGS[name])
    option, found, plan = pooled(question) if question.pools else planned(question)
    between, rate = found.interval, narrowed(question, option, found)
    kept, broken = bounds(question, option, rate)
    day = ("", "") if plan is None or plan.advice.day is None else day_of(name, plan)
    return {
        "setting": name,
        "option": option.name,
        "plan": f"{found.rate or 0.0:.4g}",
        "interval": f"{between.low:.4g} - {between.high:.4g}" if plan and between else "",
        "capacity": f"{rate:.4g}",
        "sustained": percent(kept / rate - 1, 0, sign=True),
        "not_sustained": percent(broken / rate - 1, 0, sign=True),
        **dict(zip(("day_within_limits", "day_gpu_hours"), day, strict=True)),
    }


def planned(question: Question) -> tuple[Option, Found, Plan | None]:
    plan = make_plan(question, workers=1)
    taken = plan.taken or ""
    return plan.options[taken], plan.found[taken], plan


def pooled(question: Question) -> tuple[Option, Found, Plan | None]:
    """Return one split by short runs: a whole plan with pools takes minutes."""
    option = offered(question, ("off",)).options[0].in_pools(*SPLIT)
    with Runner(LocalProcesses(1)) as runner:
        [found] = searched([option.contender(goal_of(question))], runner)
    return option, found, None


def narrowed(question: Question, option: Option, found: Found) -> float:
    """Return the capacity, searched as `specsim capacity` does: until it is known to 2 %.

    A plan stops as soon as its interval asks for one number of servers.
    """
    goal = replace(
        goal_of(question),
        tolerance=STEP,
        replications=5,
        max_requests=200_000,
        is_rough=False,
        shares=(),
    )
    with Runner(LocalProcesses(1)) as runner:
        [again] = refined([option.contender(goal)], [found], runner, lambda *_: False)
    return again.rate or 0.0


def bounds(question: Question, option: Option, rate: float) -> tuple[float, float]:
    """Return a load that runs sustain and a higher one that they do not, in steps from 2 %."""
    up = 1 if is_sustained(question, option, rate * (1 - STEP)) else -1
    for step in range(1 if up > 0 else 2, FARTHEST):
        load = rate * (1 + up * STEP * step)
        if is_sustained(question, option, load) != (up > 0):
            before = load - 2 * STEP * rate if up * step == 1 else load - up * STEP * rate
            return min(before, load), max(before, load)
    return (load, 2 * rate) if up > 0 else (0.0, load)


def is_sustained(question: Question, option: Option, load: float) -> bool:
    goal = replace(goal_of(question), num_requests=LENGTH, replications=RUNS, is_rough=False)
    other = replace(option, experiment=option.experiment.replace(seed=SEED))
    tasks = other.contender(goal).at(Asked(load, LENGTH))
    return LoadProbe(tuple(map(measure, tasks))).is_sustained


def day_of(name: str, plan: Plan) -> tuple[str, str]:
    """Return the share within the limits, and GPU hours, of the steepest part of the day."""
    with TemporaryDirectory() as folder:
        save_plan(plan, Path(folder))
        config = Experiment.load(Path(folder) / "day.yaml").to_dict()
    segments = config["workload"]["arrivals"]["segments"]
    config["workload"]["arrivals"]["segments"] = segments[slice(*STEEPEST[name])]
    data = summarized(Experiment.parse(config, name)).data
    share = data["request_goodput"] / data["request_throughput"]
    hours = data["specsim"]["autoscaling"]["gpu_hours"]
    return f"{share:.4f}", f"{hours:.1f}"


if __name__ == "__main__":
    main()
