"""The picture of the README: speed-up over the load, for k = 1, 3, 5 and for a policy that chooses.

    python experiments/speed-up/run.py    # from the top folder

Writes results.csv and speed-up.svg beside this file.
"""

import csv
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import NDArray
from scipy.stats import sem, t

from specsim.study.sweep import LocalProcesses, Sweep, SweepFolder, run_sweep

HERE = Path(__file__).parent
RATE, LATENCY = "workload.arrivals.rate", "mean_e2el_ms"
STYLES = {
    "static:k=1": ("#7b8794", "k = 1"),
    "static:k=3": ("#0f766e", "k = 3"),
    "static:k=5": ("#c2410c", "k = 5"),
    "goodput": ("#4338ca", "goodput: k chosen at every step"),
}


def rows_of(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the speed-up of each policy at each rate, paired by seed, with 95 % intervals."""
    found: dict[tuple[str, float], list[float]] = defaultdict(list)
    for record in records:  # seeds come in the same order for all
        labels = record["labels"]
        found[labels["policy"], float(labels[RATE])].append(record["metrics"][LATENCY])
    rows = []
    for (policy, rate), latencies in found.items():
        if policy == "off":
            continue
        ratios: NDArray[np.float64] = np.divide(found["off", rate], latencies)
        half = t.ppf(0.975, len(ratios) - 1) * sem(ratios)
        ends = {
            "speed_up": ratios.mean(),
            "low": ratios.mean() - half,
            "high": ratios.mean() + half,
        }
        values = {name: round(float(value), 4) for name, value in ends.items()}
        rows.append({"policy": policy, "rate": rate, **values})
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "specsim", "font.size": 10})
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for policy, (colour, label) in STYLES.items():
        mine = [row for row in rows if row["policy"] == policy]
        rates, mean, low, high = (
            [row[name] for row in mine] for name in ("rate", "speed_up", "low", "high")
        )
        axes.plot(rates, mean, color=colour, label=label, marker="o", markersize=3.5)
        axes.fill_between(rates, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.annotate("below: slower than without speculation", (rows[0]["rate"], 0.955), fontsize=9)
    axes.set(xlabel="load, requests/s", ylabel="speed-up of mean latency", ylim=(0.5, 1.8))
    axes.set_title("Llama-3.1-8B with EAGLE-3 on one H100, chat", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main(out: Path = HERE) -> None:
    with TemporaryDirectory() as temporary:
        folder = SweepFolder.create(
            Path(temporary, "sweep"), Sweep.load(HERE / "sweep.yaml"), resume=False
        )
        rows = rows_of(run_sweep(folder, LocalProcesses(2)))
    with (out / "results.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, out / "speed-up.svg")


if __name__ == "__main__":
    main()
