"""When does it pay to prefill on some GPUs and decode on others, with and without speculation?

    python experiments/run.py disaggregation

Writes results.csv and plot.png beside this file, in three minutes of one core.
"""

import csv
import sys
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from specsim.run.experiment import Experiment
from specsim.study.split import compare_splits

HERE = Path(__file__).parent
REPLICAS = 4
MODELS = {  # profile, GPUs of a replica, requests/s of all four replicas, limit of TPOT
    "Llama-3.1-8B": ("llama-3.1-8b", 1, (8, 16, 24, 32, 40, 48, 56), 15.0),
    "Llama-3.1-70B, TP 4": ("llama-3.1-70b-tp4", 4, (2, 4, 6, 8, 10, 12, 14), 30.0),
}
GPUS = ("h100", "h200")
POLICIES = ("off", "static")
COLUMNS = (
    "model", "gpu", "policy", "label", "rate", "slo_attainment", "mean_ttft_ms", "p99_ttft_ms",
    "mean_tpot_ms", "p99_tpot_ms", "mean_transfer_ms",
)  # fmt: skip

Row = dict[str, Any]


def profile_of(name: str, gpu: str) -> str:
    """Composed of kernels for both GPUs, so that these differ in nothing else."""
    return f"{gpu}/{name}-kernels" if (name, gpu) == ("llama-3.1-8b", "h100") else f"{gpu}/{name}"


def table(
    model: str, gpu: str, policy: str, rates: tuple[float, ...], num_requests: int
) -> list[Row]:
    name, size, _, tpot_ms = MODELS[model]
    overrides = [
        f"profile={profile_of(name, gpu)}",
        f"policy={policy}",
        f"slo.tpot_ms={tpot_ms}",
        f"workload.num_requests={num_requests}",
    ]
    experiment = Experiment.load(HERE / "experiment.yaml", overrides)
    found = compare_splits(experiment, REPLICAS * size, rates=list(rates))
    rows = [{"model": model, "gpu": gpu, "policy": policy, **row.to_dict()} for row in found.rows]
    return [{name: row[name] for name in COLUMNS} for row in rows]


def sustained(rows: list[Row], share: float = 0.9) -> float:
    """Return up to which rate so many requests keep all limits, between the rates that were run."""
    before = (0.0, 1.0)
    for row in sorted(rows, key=lambda row: row["rate"]):
        rate, attained = row["rate"], row["slo_attainment"]
        if attained < share:
            low, high = before
            return low + (rate - low) * (high - share) / (high - attained)
        before = (rate, attained)
    return before[0]


def draw(rows: list[Row], path: Path) -> None:
    figure, axes = plt.subplots(len(MODELS), len(GPUS), figsize=(9, 6), sharey=True)
    colors = {"off": "tab:gray", "static": "tab:blue"}
    for (model, gpu), axis in zip(product(MODELS, GPUS), axes.flat, strict=True):
        for policy in POLICIES:
            mine = [r for r in rows if (r["model"], r["gpu"], r["policy"]) == (model, gpu, policy)]
            best = {}
            for row in mine:
                if row["label"] != "colocated":
                    known = best.get(row["rate"])
                    best[row["rate"]] = max(known or row, row, key=lambda r: r["slo_attainment"])
            both = [row for row in mine if row["label"] == "colocated"]
            name = "EAGLE-3" if policy == "static" else "no speculation"
            for label, style, each in (("colocated", "--", both), ("split", "-", best.values())):
                ordered = sorted(each, key=lambda row: row["rate"])
                axis.plot(
                    [row["rate"] for row in ordered],
                    [100 * row["slo_attainment"] for row in ordered],
                    style, color=colors[policy], marker="o", markersize=3,
                    label=f"{name}, {label}",
                )  # fmt: skip
        axis.set_title(f"{model} on {gpu.upper()}", fontsize=10)
        axis.set_xlabel("requests/s of four replicas")
        axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel("within limits, %")
    axes.flat[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(
    out: Path = HERE, rates: tuple[float, ...] | None = None, num_requests: int = 500
) -> list[Row]:
    mpl.use("Agg")
    rows = [
        row
        for model, gpu, policy in product(MODELS, GPUS, POLICIES)
        for row in table(model, gpu, policy, rates or MODELS[model][2], num_requests)
    ]
    with (out / "results.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    draw(rows, out / "plot.png")
    for model, gpu, policy in product(MODELS, GPUS, POLICIES):
        mine = [r for r in rows if (r["model"], r["gpu"], r["policy"]) == (model, gpu, policy)]
        labels = dict.fromkeys(row["label"] for row in mine)
        found = {k: sustained([row for row in mine if row["label"] == k]) for k in sorted(labels)}
        text = ", ".join(f"{label} {rate:.1f}" for label, rate in found.items())
        sys.stdout.write(f"{model} {gpu} {policy}: {text}\n")
    return rows


if __name__ == "__main__":
    main()
