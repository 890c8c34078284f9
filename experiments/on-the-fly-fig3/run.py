"""On-the-fly adaptation, fig. 3: which rule for the draft length is the fastest, one by one.

    SPECSIM_DATA=... python experiments/run.py on-the-fly-fig3

Writes results.csv and plot.png beside this file and prints the tables. The token traces are never
shipped.
"""

import csv
import os
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from specsim.acceptance.base import run_lengths
from specsim.api import Experiment, Request, Summary, parse_policies, read_trace, simulate

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data"))
DATASETS = ("gsm8k", "cnn", "instructcoder", "sharegpt")
ADAPTIVE = ("window_opt", "cached_step_controller", "step_controller", "q_learning")
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)
"""k of static, k_max of the others."""
NUM_WARM_UP = 25
"""Requests that are not counted (appendix C.1), for every policy alike."""
NUM_REQUESTS = 60
SOJOURNS = (1, 5, 20, 80, 320)
"""Mean tokens of an easy or a hard passage of the made-up answers."""
EASY, HARD = 0.9, 0.4
"""Acceptance rates in them."""


def load_dataset(dataset: str, count: int, max_model_len: int = 2048) -> list[Request]:
    """The first requests that fit into the model's positions."""
    path = DATA / "tokens" / f"llama31_8b_{dataset}.jsonl.gz"
    fitting = [
        request
        for request in read_trace(path).requests()
        if request.prompt_len + request.output_len <= max_model_len
    ]
    return [replace(request, index=index) for index, request in enumerate(fitting[:count])]


def in_passages(requests: list[Request], sojourn: float, seed: int = 0) -> list[Request]:
    """The same requests with made-up acceptance: easy passages take turns with hard ones.

    Half of the tokens are easy at any sojourn, which so changes the correlation and nothing else;
    at 1 it is all but gone.
    """
    rng, result = np.random.default_rng(seed), []
    for request in requests:
        size = request.output_len + 32
        turns = rng.random(size) < 1 / (sojourn + 1)
        turns[0] = rng.random() < 0.5
        is_easy = np.cumsum(turns) % 2 == 0
        accepted = rng.random(size) < np.where(is_easy, EASY, HARD)
        lens = run_lengths(accepted, 32)[: request.output_len]
        result.append(replace(request, recorded_lens={"eagle": lens.tobytes()}))
    return result


def measure(experiment: Experiment, requests: list[Request], warm_up: int) -> dict:
    """Tokens per second and share of drafts accepted, without the first requests."""
    table = Summary(simulate(experiment, requests=requests)).tables.requests[warm_up:]
    time = float((table["ended_at"] - table["arrived_at"]).sum())
    drafted, accepted = int(table["draft_tokens"].sum()), int(table["accepted_tokens"].sum())
    steps = int(table["deliveries"].sum()) - len(table)  # the prefill delivers the first token
    return {
        "tokens_per_s": round(int(table["output_len"].sum()) / time, 2),
        "acceptance": round(accepted / drafted, 3) if drafted else "",
        "mean_k": round(drafted / steps, 2),
    }


def sweep(base: Experiment, requests: list[Request], warm_up: int, lens: tuple[int, ...]) -> list:
    """Every policy at every limit; `off` once."""
    jobs = [("off", 0, "off")]
    jobs += [("static", k, f"static:k={k}") for k in lens]
    jobs += [(name, k, name) for name in (*ADAPTIVE, "oracle") for k in lens]
    rows = []
    for label, limit, text in jobs:
        spec = base.engine.speculative_config
        assert spec is not None
        spec = spec.model_copy(update={"num_speculative_tokens": limit or 1})
        engine = base.engine.model_copy(update={"speculative_config": spec})
        experiment = base.replace(engine=engine, policy=parse_policies([text])[text])
        rows.append({"policy": label, "limit": limit, **measure(experiment, requests, warm_up)})
    off = rows[0]["tokens_per_s"]
    return [{**row, "speed_up": round(row["tokens_per_s"] / off, 4)} for row in rows]


def best(rows: list[dict], policy: str) -> dict:
    return max((r for r in rows if r["policy"] == policy), key=lambda r: r["speed_up"])


def main(
    out: Path = HERE,
    datasets: tuple[str, ...] = DATASETS,
    num_requests: int = NUM_REQUESTS,
    warm_up: int = NUM_WARM_UP,
    lens: tuple[int, ...] = LENGTHS,
    sojourns: tuple[float, ...] = SOJOURNS,
) -> None:
    base = Experiment.load(HERE / "experiment.yaml")
    rows = []
    answers = {dataset: load_dataset(dataset, warm_up + num_requests) for dataset in datasets}
    for sojourn in sojourns:
        answers[f"passages of {sojourn}"] = in_passages(answers[datasets[0]], sojourn)
    for dataset, requests in answers.items():
        mine = [{"dataset": dataset, **row} for row in sweep(base, requests, warm_up, lens)]
        rows += mine
        print(f"{dataset}: best limit, speed-up / acceptance / mean k; and at limit {lens[-1]}")
        for policy in ("static", *ADAPTIVE, "oracle"):
            for row in (best(mine, policy), [r for r in mine if r["policy"] == policy][-1]):
                print(
                    f"  {policy:24} {row['limit']}  {row['speed_up']:.3f} / {row['acceptance']} / "
                    f"{row['mean_k']}",
                    end="",
                )
            print(flush=True)
    with (out / "results.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, out)


def draw(rows: list[dict], out: Path) -> None:
    mpl.use("Agg")
    names = dict.fromkeys(row["dataset"] for row in rows)
    datasets = [name for name in names if name in DATASETS]
    figure, axes = plt.subplots(
        2, len(datasets), figsize=(4 * len(datasets), 7), squeeze=False, constrained_layout=True
    )
    for number, dataset in enumerate(datasets):
        for axis, field in zip(axes[:, number], ("speed_up", "acceptance"), strict=True):
            for policy in ("static", *ADAPTIVE, "oracle"):
                mine = [r for r in rows if (r["dataset"], r["policy"]) == (dataset, policy)]
                values = [r[field] for r in mine]
                axis.plot([r["limit"] for r in mine], values, "o-", markersize=3, label=policy)
            axis.set_title(f"{dataset}: {field.replace('_', ' ')}")
            axis.set_xlabel("k, or the largest k")
    axes[0][0].legend(fontsize=7)
    figure.savefig(out / "plot.png", dpi=90, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
