"""All policies on three kinds of traffic, at three loads, on a ramp and through a shift.

    python experiments/policy-scoreboard/run.py     # about twenty minutes on 2 cores

Writes results.csv and plot.png beside this file and prints one line per policy.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from specsim.api import Experiment, compare, parse_policies

HERE = Path(__file__).parent
REPLICATIONS = 3
TRAFFIC = {"chat": "sharegpt", "code": "instructcoder", "summarisation": "cnn_dailymail"}
PRESETS = {"chat": "sharegpt", "code": "instructcoder", "summarisation": "cnn"}
# Requests/s: a tenth, half and all of what the server manages without speculation, measured with
# 1,500 requests at once (30.0, 49.7 and 28.3).
LOADS = {
    "chat": {"low": 3.0, "medium": 15.0, "saturated": 30.0},
    "code": {"low": 5.0, "medium": 25.0, "saturated": 50.0},
    "summarisation": {"low": 3.0, "medium": 14.0, "saturated": 28.0},
}
RAMP = [[40, 1], [40, 16], [40, 48]]  # TurboSpec (arXiv 2406.14066v3), section 7.2
POLICIES = [
    *("static:k=1", "static:k=2", "static:k=3", "static:k=5", "static:k=7"),
    "schedule:ranges=[[1, 16, 7], [17, 64, 5], [65, 256, 3]]",
    *("goodput", "goodput:granularity=request", "goodput_exact", "turbospec", "slo_aware"),
    *("confidence", "adaptive_verification", "oracle", "random"),
    *("window_opt", "step_controller", "q_learning", "ema_tiers", "acceptance_target"),
    *("bandit", "bandit:algorithm=thompson"),
]


def lengths(traffic: str) -> dict[str, Any]:
    return {"kind": "dataset", "name": TRAFFIC[traffic]}


def acceptance(traffic: str) -> dict[str, Any]:
    return {"kind": "preset", "name": f"llama-3.1-8b/eagle/{PRESETS[traffic]}"}


def scenarios() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield traffic, load and the fields of the experiment."""
    following = dict(zip(TRAFFIC, [*TRAFFIC][1:] + [*TRAFFIC][:1], strict=True))
    for traffic, loads in LOADS.items():
        for load, rate in loads.items():
            arrivals = {"kind": "poisson", "rate": rate}
            workload = {"arrivals": arrivals, "lengths": lengths(traffic), "num_requests": 400}
            yield traffic, load, {"workload": workload, "acceptance": acceptance(traffic)}
        workload = {
            "arrivals": {"kind": "piecewise", "segments": RAMP},
            "lengths": lengths(traffic),
        }
        yield traffic, "ramp", {"workload": workload, "acceptance": acceptance(traffic)}
        after, half = following[traffic], 300
        workload = {
            "arrivals": {"kind": "poisson", "rate": loads["medium"] / 2},
            "lengths": {"kind": "shift", "at": 0.5, "before": lengths(traffic),
                        "after": lengths(after)},
            "num_requests": 2 * half,
        }  # fmt: skip
        shift = {"kind": "shift", "at_request": half, "before": acceptance(traffic),
                 "after": acceptance(after)}  # fmt: skip
        yield traffic, f"shift to {after}", {"workload": workload, "acceptance": shift}


def main() -> None:
    base = Experiment.load(HERE / "experiment.yaml")
    policies = parse_policies(POLICIES)
    rows = []
    for traffic, load, fields in scenarios():
        experiment = base.replace(**fields)
        comparison = compare(experiment, policies, replications=REPLICATIONS, workers=2)
        for standing in comparison.standings:
            result, oracle = standing.result, standing.regret_oracle
            static = standing.regret_best_static
            assert oracle is not None
            assert static is not None
            rows.append(
                {
                    "traffic": traffic,
                    "load": load,
                    "rank": standing.rank,
                    "policy": result.label,
                    "speed_up": round(result.speed_up.mean, 4),
                    "speed_up_low": round(result.speed_up.low or 0.0, 4),
                    "speed_up_high": round(result.speed_up.high or 0.0, 4),
                    "regret_oracle_percent": round(oracle.mean, 2),
                    "regret_best_static_percent": round(static.mean, 2),
                    "best_static": static.reference,
                    "mean_e2el_ms": round(result.mean("mean_e2el_ms"), 1),
                    "mean_tpot_ms": round(result.mean("mean_tpot_ms"), 3),
                    "tokens_per_step": round(result.mean("tokens_per_step"), 3),
                    "unstable": result.is_unstable,
                }
            )
        print(f"{traffic}, {load}: best static {rows[-1]['best_static']}", flush=True)
    with (HERE / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    summarise(rows)
    plot(rows)


def summarise(rows: list[dict[str, Any]]) -> None:
    """Print each policy's regret, mean and worst over all scenarios."""
    labels = {row["policy"] for row in rows}
    regrets = {
        label: [row["regret_oracle_percent"] for row in rows if row["policy"] == label]
        for label in labels
    }
    print(f"{'policy':58} regret against the oracle, %: mean, worst")
    for label in sorted(labels, key=lambda label: fmean(regrets[label])):
        print(f"{label:58} {fmean(regrets[label]):6.1f} {max(regrets[label]):6.1f}")


def plot(rows: list[dict[str, Any]]) -> None:
    mpl.use("Agg")
    cells = list(dict.fromkeys((row["traffic"], row["load"]) for row in rows))
    values = {(r["policy"], r["traffic"], r["load"]): r["regret_oracle_percent"] for r in rows}
    labels = list(dict.fromkeys(row["policy"] for row in rows))
    labels.sort(key=lambda label: fmean(values[label, *cell] for cell in cells))
    grid = np.array([[values[label, *cell] for cell in cells] for label in labels])
    figure, axis = plt.subplots(figsize=(12, 8), constrained_layout=True)
    image = axis.imshow(np.clip(grid, 0, 100), cmap="viridis_r", aspect="auto")
    axis.set_xticks(range(len(cells)), [", ".join(cell) for cell in cells], rotation=60, ha="right")
    axis.set_yticks(range(len(labels)), labels)
    for (row, column), value in np.ndenumerate(grid):
        colour = "white" if value > 50 else "black"
        axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, label="regret against the oracle, % of mean end-to-end latency")
    figure.savefig(HERE / "plot.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
