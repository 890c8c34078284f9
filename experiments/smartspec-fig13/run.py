"""SmartSpec fig. 13: mean latency over the request rate, up to the service rate and beyond it.

    python experiments/run.py smartspec-fig13

Writes results.csv and plot.png beside this file.
"""

import csv
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from specsim.api import Experiment, Summary, simulate

HERE = Path(__file__).parent
LENGTHS = ((128, 128), (256, 256), (512, 128), (128, 512), (1024, 128))
"""Prompt and output, tokens: the paper varies both and does not say over what."""
LOADS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.5)
"""Request rate over service rate."""
COUNT = 1000
SEEDS = 3


def summary(
    base: Experiment, lengths: tuple[int, int], rate: float, count: int, seed: int = 0
) -> dict:
    prompt, output = lengths
    workload = {
        "arrivals": {"kind": "poisson", "rate": rate},
        "lengths": {"kind": "constant", "prompt": prompt, "output": output},
        "num_requests": count,
    }
    return dict(Summary(simulate(base.replace(workload=workload, seed=seed))).data)


def service_rate(base: Experiment, lengths: tuple[int, int], count: int) -> float:
    """Return the requests per second that are served while all of them wait from the start."""
    return float(summary(base, lengths, 1e6, 2 * count)["request_throughput"])


def mean_latency(
    base: Experiment, lengths: tuple[int, int], rate: float, count: int, seeds: int
) -> float:
    """Return the mean over the seeds, seconds."""
    runs = [summary(base, lengths, rate, count, seed) for seed in range(seeds)]
    return sum(float(run["mean_e2el_ms"]) for run in runs) / seeds / 1e3


def rows_of(
    base: Experiment, lengths: tuple[int, int], loads: tuple[float, ...], count: int, seeds: int
) -> list[dict]:
    """Return one row per load; the same for half as many requests shows what never settles."""
    limit = service_rate(base, lengths, count)
    rows = []
    for load in loads:
        half, whole = (
            mean_latency(base, lengths, load * limit, number, seeds)
            for number in (count // 2, count)
        )
        rows.append(
            {
                "prompt": lengths[0],
                "output": lengths[1],
                "service_rate": round(limit, 3),
                "load": load,
                "rate": round(load * limit, 3),
                "mean_e2el_s": round(whole, 3),
                "over_half_as_many": round(whole / half, 3),
            }
        )
    return rows


def draw(rows: list[dict], out: Path) -> None:
    mpl.use("Agg")
    figure, axis = plt.subplots(figsize=(7, 4.5), constrained_layout=True)
    for prompt, output in dict.fromkeys((row["prompt"], row["output"]) for row in rows):
        mine = [row for row in rows if (row["prompt"], row["output"]) == (prompt, output)]
        axis.plot(
            [row["rate"] for row in mine],
            [row["mean_e2el_s"] for row in mine],
            "o-",
            label=f"{prompt} in, {output} out",
        )
        axis.plot(mine[0]["service_rate"], mine[0]["mean_e2el_s"], "k|", markersize=10)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("requests/s (| : service rate)")
    axis.set_ylabel("mean latency, s")
    axis.legend()
    figure.savefig(out / "plot.png", dpi=120, metadata={"Software": None})


def main(
    out: Path = HERE,
    lengths: tuple[tuple[int, int], ...] = LENGTHS,
    loads: tuple[float, ...] = LOADS,
    count: int = COUNT,
    seeds: int = SEEDS,
) -> None:
    base = Experiment.load(HERE / "experiment.yaml")
    rows = [row for pair in lengths for row in rows_of(base, pair, loads, count, seeds)]
    with (out / "results.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(row)
    draw(rows, out)


if __name__ == "__main__":
    main()
