"""SSSD: throughput and latency of a lookup that fills the hardware's free budget, by batch size.

    SPECSIM_DATA=... python experiments/run.py sssd

Writes results.csv and plot.png beside this file. It needs the recorded token traces, which are
never shipped.
"""

import csv
import gzip
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.ticker import NullFormatter, ScalarFormatter

from specsim.api import Experiment, Profile, Request, Summary, read_trace, simulate
from specsim.profile.from_roofline import RooflineOptions, RooflineProfile

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data")) / "tokens"
DATASETS = ("gsm8k", "sharegpt", "cnn")
ANSWERS = (*DATASETS, "instructcoder")  # what the datastore is made of
NUM_REQUESTS = 100  # section 4.4: 100 prompts, at most 500 tokens each
MAX_TOKENS = 500
BATCHES = (1, 2, 4, 8, 16, 32, 64)
LONGEST = 29  # draft tokens: with the root the 30 that the paper's system allows
# Nodes of all sequences together, roots included, that PIA verifies in a step: decoding_length in
# pia/lookahead/common/pretrained_model_batch.py of alipay/PainlessInferenceAcceleration (0f0bca0),
# which every sequence gets an equal share of.
PIA_NODES = 64
TOKEN_US = 6.0  # of one core per draft token: `drafts.sssd` of profiles/h100/llama-3.1-8b.yaml
STEP_MS = 1.2  # overhead of the engine per step, of the same profile
POLICIES = ("off", "free budget", "PIA's budget", "s_q = 8", "s_q = 30")

Row = dict[str, Any]


class Case(NamedTuple):
    dataset: str
    batch: int
    policy: str


@cache
def trace(dataset: str) -> list[Request]:
    return list(read_trace(DATA / f"llama31_8b_{dataset}.jsonl.gz").requests())


def asked(dataset: str, count: int = NUM_REQUESTS) -> list[Request]:
    """The first requests of a dataset, all at once, their answers cut as in the paper."""
    found = []
    for index, request in enumerate(trace(dataset)[:count]):
        assert request.output_token_ids is not None
        token_ids = request.output_token_ids[:MAX_TOKENS]
        cut = {"output_len": len(token_ids), "output_token_ids": token_ids}
        found.append(replace(request, index=index, arrived_at=0.0, **cut))
    return found


def write_datastore(dataset: str, path: Path) -> None:
    """Write all answers that are not asked for."""
    known: Iterable[Request] = (
        request
        for name in ANSWERS
        for request in trace(name)[NUM_REQUESTS if name == dataset else 0 :]
    )
    with gzip.open(path, "wt", compresslevel=1) as stream:
        for request in known:
            assert request.output_token_ids is not None
            answer = request.output_token_ids.tolist()
            row = {"prompt_token_ids": [], "generated_token_ids": answer}
            stream.write(json.dumps(row) + "\n")


@cache
def roofline() -> RooflineProfile:
    return RooflineProfile.of(RooflineOptions(model="llama-2-7b", gpu="ascend-910b4", drafts={}))


def budget_tokens() -> float:
    """Return the tokens of a step at which computing takes as long as reading the weights."""
    free = roofline().roofline.free_budget()
    assert free is not None
    return free


def budget_lens(policy: str) -> list[int]:
    """Return the draft tokens per sequence by batch size, from 1 on."""
    nodes = {
        "free budget": [int(budget_tokens() / size) for size in range(1, BATCHES[-1] + 1)],
        "PIA's budget": [PIA_NODES // size for size in range(1, BATCHES[-1] + 1)],
        "s_q = 8": [8] * BATCHES[-1],
        "s_q = 30": [30] * BATCHES[-1],
    }[policy]
    return [min(LONGEST, max(each - 1, 0)) for each in nodes]


def profile(case: Case) -> Profile:
    """The paper's model and accelerator, with the host's time.

    SSSD drafts for all sequences at once, one core for each (section 3.1.2); PIA one by one
    (figure 4).
    """
    if case.policy in {"PIA's budget", "off"}:
        cost: Row = {"token_us": TOKEN_US}
    else:
        longest = budget_lens(case.policy)[case.batch - 1]
        cost = {"step_ms": longest * TOKEN_US * 1e-3}
    fields = {**roofline().fields, "drafts": {"sssd": cost}, "overhead": {"step_ms": STEP_MS}}
    return Profile.model_validate(fields)


def run(case: Case, datastore: Path, requests: Sequence[Request]) -> Row:
    base = Experiment.load(HERE / "experiment.yaml")
    engine = base.engine.model_dump(mode="json", exclude_none=True)
    engine["max_num_seqs"] = case.batch
    engine["speculative_config"] |= {"corpus": str(datastore)}
    policy: Any = "off"
    if case.policy != "off":
        lens = budget_lens(case.policy)
        policy = {"kind": "schedule", "ranges": [(n, n, k) for n, k in enumerate(lens, 1)]}
    workload = base.workload.model_dump(mode="json")
    workload["arrivals"]["concurrency"] = case.batch
    experiment = base.replace(engine=engine, policy=policy, workload=workload)
    result = simulate(experiment, requests=list(requests), profile=profile(case))
    summary = Summary(result).data
    throughput = summary["output_throughput"]
    return {
        "throughput": round(throughput, 1),
        "latency_ms": round(1e3 * case.batch / throughput, 2),
        "tokens_per_step": round(summary["specsim"]["tokens_per_step"], 3),
        "mean_tpot_ms": round(summary["mean_tpot_ms"], 2),
        "preemptions": summary["specsim"]["num_preemptions"],
    }


def rows_of(dataset: str, batches: Sequence[int], count: int = NUM_REQUESTS) -> list[Row]:
    requests = asked(dataset, count)
    context = round(fmean(request.prompt_len for request in requests))
    rows = []
    with TemporaryDirectory() as temporary:
        datastore = Path(temporary) / "answers.jsonl.gz"
        write_datastore(dataset, datastore)
        for batch, policy in product(batches, POLICIES):
            found = run(Case(dataset, batch, policy), datastore, requests)
            base = rows[-1]["off"] if policy != "off" else found["throughput"]
            k = 0 if policy == "off" else budget_lens(policy)[batch - 1]
            head = {"dataset": dataset, "mean_prompt": context, "batch": batch, "policy": policy}
            speed_up = round(found["throughput"] / base, 3)
            rows.append({**head, "s_q": k + 1, **found, "speed_up": speed_up, "off": base})
        print(f"{dataset}: {len(rows)} rows", flush=True)
    return [{name: value for name, value in row.items() if name != "off"} for row in rows]


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(
    folder: Path = HERE,
    datasets: Sequence[str] = DATASETS,
    batches: Sequence[int] = BATCHES,
    count: int = NUM_REQUESTS,
) -> None:
    budget = {"model": "llama-2-7b", "gpu": "ascend-910b4", "tokens": round(budget_tokens())}
    write(folder / "budget.csv", [budget])
    rows = [row for dataset in datasets for row in rows_of(dataset, batches, count)]
    write(folder / "results.csv", rows)
    draw(rows, folder)


def draw(rows: list[Row], folder: Path) -> None:
    """Latency over throughput as in figure 6, one curve per policy, a point per batch size."""
    mpl.use("Agg")
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    figure, axes = plt.subplots(
        1, len(datasets), figsize=(4.5 * len(datasets), 4.2), squeeze=False,
        constrained_layout=True,
    )  # fmt: skip
    for axis, dataset in zip(axes[0], datasets, strict=True):
        for policy in POLICIES:
            mine = [r for r in rows if (r["dataset"], r["policy"]) == (dataset, policy)]
            axis.plot([r["throughput"] for r in mine], [r["latency_ms"] for r in mine], "o-",
                      markersize=3, label=policy)  # fmt: skip
        axis.set_title(f"{dataset}, prompts of {mine[0]['mean_prompt']} tokens", fontsize=10)
        axis.set_xlabel("output tokens/s")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.yaxis.set_minor_formatter(ScalarFormatter())
    axes[0, 0].set_ylabel("batch size / throughput, ms per token")
    axes[0, 0].legend(fontsize=8)
    figure.savefig(folder / "plot.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
