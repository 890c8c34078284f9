"""Speed-up over batch size: B copies of one request, as SpecDecode-Bench simulates it.

    SPECSIM_DATA=... python experiments/run.py specdecode-bench-batch

Writes results.csv and plot.png beside this file. The token traces are half of the benchmark's
requests; they are never shipped.
"""

import csv
import os
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from specsim.api import Experiment, Profile, Request, Summary, load_profile, read_trace, simulate
from specsim.core.step import StepLoad
from specsim.profile.step_time import overhead_time

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data"))
BATCH_SIZES = (1, 8, 32, 64, 128, 256)
POLICIES = {"1": "static:k=1", "3": "static:k=3", "5": "static:k=5", "oracle": "oracle"}


def copies(request: Request, count: int) -> list[Request]:
    """The request, `count` times; as there, its answer is as long as its record."""
    record = request.recorded_lens["eagle"]
    return [
        Request(
            index=number,
            prompt_len=request.prompt_len,
            output_len=len(record),
            recorded_lens={"eagle": record},
        )
        for number in range(count)
    ]


def throughput(experiment: Experiment, requests: list[Request]) -> float:
    """Tokens per second of one batch, by the mean latency of its requests."""
    table = Summary(simulate(experiment, requests=requests)).tables.requests
    return float(table["output_len"].sum() / (table["ended_at"] - table["arrived_at"]).mean())


def closed_form(profile: Profile, request: Request, count: int, k: int) -> float:
    """Tokens per second by the rules of the published simulator, for comparison.

    Its rules: the record is read one position late (entry n - 1 when n tokens are known); every
    copy pays for its own draft tokens only; drafting comes before each verification, so neither
    the prefill nor the last step drafts for a step that never comes.
    """
    record, overhead = request.recorded_lens["eagle"], overhead_time(profile.overhead.numbers, 1)
    eagle = profile.drafts["eagle3"].latency
    assert eagle is not None
    time = profile.target.forward_time(StepLoad(0, count * request.prompt_len)) + overhead
    known = 1
    while known < len(record):
        context = count * (request.prompt_len + known)
        time += profile.target.forward_time(StepLoad(context, count * (k + 1))) + overhead
        if k:
            time += eagle.forward_time(StepLoad(context, k + 1))
        known += min(record[known - 1], k) + 1
    return count * len(record) / time


def speed_ups(with_k: Callable[[Request, str], float], requests: list[Request], k: str) -> float:
    """Mean throughput with speculation over mean throughput without, as published."""
    drafting = sum(with_k(request, k) for request in requests)
    return drafting / sum(with_k(request, "0") for request in requests)


def main() -> None:
    path = DATA / "tokens" / "llama31_8b_gsm8k.jsonl.gz"
    requests = list(read_trace(path).requests())
    base = Experiment.load(HERE / "experiment.yaml")
    profile = load_profile(base.profile)
    policies = {"0": base.replace(policy="off")}
    policies |= {k: base.replace(policy=policy) for k, policy in POLICIES.items()}
    published = {
        (row["k"], int(row["batch_size"])): float(row["speed_up"])
        for row in csv.DictReader((HERE / "expected.csv").read_text().splitlines())
    }
    rows = []
    for size in BATCH_SIZES:
        # Without speculation once per request, not once per k.
        off = {r.index: throughput(policies["0"], copies(r, size)) for r in requests}

        def simulated(request: Request, k: str, size: int = size, off: dict = off) -> float:
            if k == "0":
                return off[request.index]
            return throughput(policies[k], copies(request, size))

        def formula(request: Request, k: str, size: int = size) -> float:
            return closed_form(profile, request, size, int(k))

        for k in POLICIES:
            rows.append(
                {
                    "k": k,
                    "batch_size": size,
                    "specsim": round(speed_ups(simulated, requests, k), 3),
                    "closed_form_same_requests": ""
                    if k == "oracle"
                    else round(speed_ups(formula, requests, k), 3),
                    "published_all_requests": published.get((k, size), ""),
                }
            )
            print(rows[-1], flush=True)
    with (HERE / "results.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows)


def draw(rows: list[dict]) -> None:
    mpl.use("Agg")
    figure, axis = plt.subplots(figsize=(7, 4.5), constrained_layout=True)
    for number, k in enumerate(POLICIES):
        mine = [row for row in rows if row["k"] == k]
        sizes = [row["batch_size"] for row in mine]
        label = k if k == "oracle" else f"k = {k}"
        axis.plot(sizes, [row["specsim"] for row in mine], f"C{number}-o", label=label)
        if k != "oracle":
            published = [row["published_all_requests"] for row in mine]
            axis.plot(sizes, published, f"C{number}x", linestyle="none")
    axis.plot([], [], "kx", linestyle="none", label="published")
    axis.axhline(1.0, color="gray", linewidth=0.8)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("batch size")
    axis.set_ylabel("speed-up over no speculation")
    axis.legend()
    figure.savefig(HERE / "plot.png", dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    main()
