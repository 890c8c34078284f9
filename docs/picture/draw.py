"""Draw the picture of the README from the results of its sweep: ``make picture``."""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow.parquet as pq
from matplotlib import pyplot as plt
from numpy.typing import NDArray
from scipy.stats import sem, t

HERE = Path(__file__).parent
RATE, LATENCY = "workload.arrivals.rate", "mean_e2el_ms"
STYLES = {
    "static:k=1": ("#7b8794", "k = 1"),
    "static:k=3": ("#0f766e", "k = 3"),
    "static:k=5": ("#c2410c", "k = 5"),
    "goodput": ("#4338ca", "goodput: k chosen at every step"),
}


def latencies(folder: Path) -> tuple[list[float], dict[str, NDArray[np.float64]]]:
    """Return the rates, and of each policy the mean latency by rate and seed."""
    points = pq.read_table(folder / "points.parquet").to_pylist()
    rates = sorted({point[RATE] for point in points})
    seeds = sorted({point["seed"] for point in points})
    found = {point["policy"]: np.zeros((len(rates), len(seeds))) for point in points}
    for point in points:
        place = rates.index(point[RATE]), seeds.index(point["seed"])
        found[point["policy"]][place] = point[LATENCY]
    return rates, found


def draw(folder: Path, path: Path) -> None:
    """Draw the speed-up of each policy over no speculation, paired by seed, with 95 % bands."""
    rates, by_policy = latencies(folder)
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "specsim", "font.size": 10})
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for policy, (colour, label) in STYLES.items():
        ratios = by_policy["off"] / by_policy[policy]
        mean = ratios.mean(axis=1)
        half = t.ppf(0.975, ratios.shape[1] - 1) * sem(ratios, axis=1)
        axes.plot(rates, mean, color=colour, label=label, marker="o", markersize=3.5)
        axes.fill_between(rates, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.annotate("below: slower than without speculation", (rates[0], 0.955), fontsize=9)
    axes.set(xlabel="load, requests/s", ylabel="speed-up of mean latency", ylim=(0.5, 1.8))
    axes.set_title("Llama-3.1-8B with EAGLE-3 on one H100, chat", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), HERE / "speed-up.svg")
