"""SmartSpec fig. 1: speculation gains at a low request rate and loses past some rate.

    python experiments/run.py smartspec-fig1

Writes results.csv and plot.png beside this file and prints the crossover rate of each k.
"""

import csv
import math
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from experiments.marks import mark_stability
from specsim.api import Experiment, compare, parse_policies

HERE = Path(__file__).parent
RATES = (1, 4, 8, 12, 16, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44)
KS = (1, 3, 5)
REPLICATIONS = 5


def main() -> None:
    base = Experiment.load(HERE / "experiment.yaml")
    policies = parse_policies([f"static:k={k}" for k in KS])
    rows = []
    for rate in RATES:
        arrivals = {"kind": "poisson", "rate": rate}
        workload = {**base.workload.model_dump(mode="json"), "arrivals": arrivals}
        comparison = compare(
            base.replace(workload=workload), policies, replications=REPLICATIONS, workers=2
        )
        for result in comparison.results:
            rows.append(
                {
                    "rate": rate,
                    "policy": result.label,
                    "mean_e2el_ms": round(result.mean("mean_e2el_ms"), 1),
                    "speed_up": round(result.speed_up.mean, 4),
                    "low": round(result.speed_up.low or 0, 4),
                    "high": round(result.speed_up.high or 0, 4),
                    "stability": result.stability,
                }
            )
    with (HERE / "results.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    crossings = {k: crossover(rows, f"static:k={k}") for k in KS}
    for k, rate in crossings.items():
        where = f"{rate:.1f} requests/s" if rate else f"not up to {RATES[-1]} requests/s"
        print(f"k = {k}: speculation stops paying at {where}")
    draw(rows)


def crossover(rows: list[dict], policy: str) -> float | None:
    """The lowest rate at which the speed-up falls through 1, interpolated on its logarithm."""
    points = [(row["rate"], math.log(row["speed_up"])) for row in rows if row["policy"] == policy]
    for (left, above), (right, below) in pairwise(points):
        if above > 0 >= below:
            return left + (right - left) * above / (above - below)
    return None


def draw(rows: list[dict]) -> None:
    mpl.use("Agg")
    figure, axis = plt.subplots(figsize=(7, 4.5), constrained_layout=True)
    for k in KS:
        mine = [row for row in rows if row["policy"] == f"static:k={k}"]
        rates = [row["rate"] for row in mine]
        gains = [row["speed_up"] for row in mine]
        [line] = axis.plot(rates, gains, "o-", label=f"k = {k}")
        mark_stability(
            axis, rates, gains, [row["stability"] for row in mine], color=line.get_color()
        )
        axis.fill_between(
            rates, [row["low"] for row in mine], [row["high"] for row in mine], alpha=0.2
        )
    axis.axhline(1.0, color="gray", linewidth=0.8)
    axis.set_xlabel("requests/s")
    axis.set_ylabel("speed-up over no speculation")
    axis.legend()
    figure.savefig(HERE / "plot.png", dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    main()
