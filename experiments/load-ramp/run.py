"""One acceptance rate, nine loads: a policy that looks at acceptance alone loses at the top.

    python experiments/run.py load-ramp

Writes loads.csv, ramp.csv and plot.png beside this file and prints the tables.
"""

import csv
from collections.abc import Iterable
from math import exp, log
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
from matplotlib import pyplot as plt

from experiments.marks import mark_stability
from specsim.api import Experiment, Policy, Summary, parse_policies, simulate
from specsim.results.stability import together

HERE = Path(__file__).parent
RATES = (10, 50, 100, 150, 200, 225, 250, 300, 400)
SHORT_RATES = (100, 300, 450, 800)
SHORT = {"kind": "uniform", "prompt": [8, 24], "output": [32, 96]}
RAMP = ((10, 25), (10, 100), (10, 200), (20, 400))
"""(seconds, requests/s)"""
SEEDS = (0, 1, 2)
FIXED = ("off", *(f"static:k={k}" for k in range(1, 6)))
POLICIES = (*FIXED, "goodput", "acceptance_target")


def policies(texts: Iterable[str]) -> dict[str, Policy]:
    return parse_policies([text for text in texts if text != "off"])


def summarise(experiment: Experiment) -> dict:
    summary = Summary(simulate(experiment))
    rows = summary.tables.steps["num_requests"].sum()
    return {
        "mean_e2el_ms": summary.data["mean_e2el_ms"],
        "tokens_per_s": summary.data["output_throughput"],
        "idle_rows": 1 - float(summary.tables.steps["deliveries"].sum() / rows),
        "stability": summary.stability,
    }


def at_loads(
    base: Experiment, rates: Iterable[float], seeds: Iterable[int], texts: Iterable[str] = POLICIES
) -> list[dict]:
    """Every policy at every constant load; ratios are paired by seed, geometric means."""
    seeds, rows = tuple(seeds), []
    for rate in rates:
        workload = {
            **base.workload.model_dump(mode="json"),
            "arrivals": {"kind": "poisson", "rate": rate},
        }
        runs = {
            label: [
                summarise(base.replace(workload=workload, policy=policy, seed=seed))
                for seed in seeds
            ]
            for label, policy in policies(texts).items()
        }
        rows += compared(rate, runs)
        print(line(rows, rate), flush=True)
    return rows


def compared(rate: float, runs: dict[str, list[dict]]) -> list[dict]:
    """Latency and throughput, each over that of the best fixed k, 0 included."""
    fixed = [label for label in runs if label in FIXED]
    best = min(fixed, key=lambda label: fmean(run["mean_e2el_ms"] for run in runs[label]))
    most = max(fixed, key=lambda label: fmean(run["tokens_per_s"] for run in runs[label]))
    return [
        {
            "rate": rate,
            "policy": label,
            "mean_e2el_ms": round(fmean(run["mean_e2el_ms"] for run in mine), 1),
            "tokens_per_s": round(fmean(run["tokens_per_s"] for run in mine), 1),
            "latency_over_best": round(ratio(mine, runs[best], "mean_e2el_ms"), 4),
            "latency_over_off": round(ratio(mine, runs["off"], "mean_e2el_ms"), 4),
            "throughput_over_best": round(ratio(mine, runs[most], "tokens_per_s"), 4),
            "throughput_over_off": round(ratio(mine, runs["off"], "tokens_per_s"), 4),
            "idle_rows": round(fmean(run["idle_rows"] for run in mine), 4),
            "stability": together(run["stability"] for run in mine),
        }
        for label, mine in runs.items()
    ]


def ratio(candidate: list[dict], reference: list[dict], field: str) -> float:
    pairs = zip(candidate, reference, strict=True)
    return exp(fmean(log(mine[field] / other[field]) for mine, other in pairs))


def line(rows: list[dict], rate: float) -> str:
    mine = {row["policy"]: row for row in rows if row["rate"] == rate}
    best = min((mine[label] for label in FIXED if label in mine), key=lambda r: r["mean_e2el_ms"])
    adaptive, blind = mine["goodput"], mine["acceptance_target"]
    return (
        f"{rate:>6} requests/s: best {best['policy']} {best['mean_e2el_ms']:,.0f} ms, "
        f"goodput {adaptive['latency_over_best']:.3f} of it "
        f"(throughput {adaptive['throughput_over_best']:.3f}); over off: "
        f"goodput {adaptive['latency_over_off']:.3f}, "
        f"acceptance_target {blind['latency_over_off']:.3f} "
        f"(throughput {blind['throughput_over_off']:.3f})"
    )


def on_ramp(
    base: Experiment,
    segments: tuple[tuple[float, float], ...],
    seeds: Iterable[int],
    texts: Iterable[str],
) -> list[dict]:
    """Mean latency of the requests that arrive in each segment, and k in it."""
    workload = {
        **base.workload.model_dump(mode="json"),
        "arrivals": {"kind": "piecewise", "segments": segments},
        "duration": None,
    }
    rows = []
    for label, policy in policies(texts).items():
        tables = [
            Summary(simulate(base.replace(workload=workload, policy=policy, seed=seed))).tables
            for seed in seeds
        ]
        start = 0.0
        for length, rate in segments:
            latencies, lens = [], []
            for table in tables:
                arrived = table.requests["arrived_at"]
                mine = table.requests[(arrived >= start) & (arrived < start + length)]
                latencies.append(float((mine["ended_at"] - mine["arrived_at"]).mean()))
                times = table.steps["scheduled_at"]
                steps = table.steps[(times >= start) & (times < start + length)]
                lens.append(float(steps["asked_draft_len"].mean()))
            rows.append(
                {
                    "rate": rate,
                    "policy": label,
                    "mean_e2el_ms": round(1e3 * fmean(latencies), 1),
                    "mean_k": round(fmean(lens), 2),
                }
            )
            start += length
    return rows


def main(out: Path = HERE) -> None:
    base = Experiment.load(HERE / "experiment.yaml")
    short = base.replace(workload={**base.workload.model_dump(mode="json"), "lengths": SHORT})
    print("answers of 128 tokens")
    loads = at_loads(base, RATES, SEEDS)
    print("answers of 64 tokens")
    shorter = at_loads(short, SHORT_RATES, SEEDS)
    texts = ("off", "static:k=2", "static:k=5", "goodput", "acceptance_target")
    ramp = on_ramp(base, RAMP, SEEDS, texts)
    for row in ramp:
        print(row)
    both = [{"mean_output_len": 128, **row} for row in loads]
    both += [{"mean_output_len": 64, **row} for row in shorter]
    write(both, out / "loads.csv")
    write(ramp, out / "ramp.csv")
    draw(loads, ramp, out)


def write(rows: list[dict], path: Path) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw(loads: list[dict], ramp: list[dict], out: Path) -> None:
    mpl.use("Agg")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for label in POLICIES:
        mine = [row for row in loads if row["policy"] == label]
        style = "o-" if label not in FIXED else ("k-" if label == "off" else "--")
        rates, gains = [row["rate"] for row in mine], [1 / row["latency_over_off"] for row in mine]
        [line] = left.plot(rates, gains, style, label=label)
        mark_stability(
            left, rates, gains, [row["stability"] for row in mine], color=line.get_color()
        )
    left.set_xlabel("requests/s")
    left.set_ylabel("speed-up over no speculation")
    left.legend(fontsize=8)
    for label in dict.fromkeys(row["policy"] for row in ramp):
        mine = [row for row in ramp if row["policy"] == label]
        right.plot([str(row["rate"]) for row in mine], [row["mean_e2el_ms"] for row in mine], "o-")
    right.set_yscale("log")
    right.set_xlabel("segment of the ramp, requests/s")
    right.set_ylabel("mean latency of its requests, ms")
    right.legend(list(dict.fromkeys(row["policy"] for row in ramp)), fontsize=8)
    figure.savefig(out / "plot.png", dpi=100, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
