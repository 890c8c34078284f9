"""Six policies on three GPUs at eight rates: 432 runs, and a table of them.

    python experiments/gpus-policies-loads/run.py    # from the top folder, resumes

Writes results.csv beside this file; the folder of the sweep is results/gpus-policies-loads.
"""

import csv
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from specsim.study.sweep import LocalProcesses, Sweep, SweepFolder, run_sweep

HERE = Path(__file__).parent
MEANS = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput")


def rows(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for labels, group in groupby(records, lambda record: record["labels"]):
        metrics = [record["metrics"] for record in group]
        found.append(
            {
                "gpu": labels["profile"],
                "policy": labels["policy"],
                "rate": labels["workload.arrivals.rate"],
                **{name: round(fmean(m[name] for m in metrics), 3) for name in MEANS},
                "within_limits": round(
                    fmean(m["request_goodput"] / m["request_throughput"] for m in metrics), 4
                ),
                "overloaded": sum(m["overloaded"] for m in metrics),
                "undecided": sum(m["undecided"] for m in metrics),
            }
        )
    return found


def main() -> None:
    sweep = Sweep.load(HERE / "sweep.yaml")
    folder = SweepFolder.create(Path("results") / HERE.name, sweep, resume=True)
    table = rows(run_sweep(folder, LocalProcesses(2)))
    with (HERE / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main()
