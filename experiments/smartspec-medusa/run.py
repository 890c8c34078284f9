"""SmartSpec fig. 15 and 16: Medusa trees of fixed width explode under load, goodput's do not.

    python experiments/run.py smartspec-medusa

Writes results.csv and plot.png beside this file and prints the table.
"""

import csv
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from experiments.marks import mark_stability
from specsim.api import Experiment, Policy, Summary, parse_policies, simulate

HERE = Path(__file__).parent
ALPHAS = (0.6, 0.8)
RATES = (0.5, 1, 2, 4, 6, 8, 10, 12, 16, 24)
MARKS = {"stable": "", "overloaded": "!", "undecided": "?"}
POLICIES = {
    "off": "off",
    "top 1": "medusa_tree:widths=[1,1,1]",
    "top 2": "medusa_tree:widths=[2,2,2]",
    "top 3": "medusa_tree:widths=[3,3,3]",
    "goodput": "medusa_tree",
}


def run(experiment: Experiment, policy: Policy) -> dict:
    """Latency, and what the decode steps batched."""
    summary = Summary(simulate(experiment.replace(policy=policy)))
    steps = summary.tables.steps
    decodes = steps[steps["prefill_tokens"] == 0]
    per_request = decodes["batched_tokens"].sum() / decodes["num_requests"].sum()
    return {
        "mean_e2el_ms": round(summary.data["mean_e2el_ms"], 1),
        "tokens_per_step": round(float(steps["batched_tokens"].mean()), 1),
        "requests_per_step": round(float(decodes["num_requests"].mean()), 1),
        "tokens_per_request": round(float(per_request), 2),
        "stability": summary.stability,
    }


def main(
    out: Path = HERE,
    rates: tuple[float, ...] = RATES,
    alphas: tuple[float, ...] = ALPHAS,
    num_requests: int = 500,
) -> None:
    base = Experiment.load(HERE / "experiment.yaml", [f"workload.num_requests={num_requests}"])
    policies = dict(zip(POLICIES, parse_policies(list(POLICIES.values())).values(), strict=True))
    rows = []
    for alpha in alphas:
        print(f"alpha = {alpha}: mean latency, ms / tokens per step / tokens per request")
        for rate in rates:
            arrivals = {"kind": "poisson", "rate": rate}
            experiment = base.replace(
                workload={**base.workload.model_dump(mode="json"), "arrivals": arrivals},
                acceptance={"kind": "bernoulli", "alpha": alpha},
            )
            cells = []
            for label, policy in policies.items():
                row = {"alpha": alpha, "rate": rate, "policy": label, **run(experiment, policy)}
                rows.append(row)
                cells.append(
                    f"{label} {row['mean_e2el_ms']:,.0f}/{row['tokens_per_step']:.0f}/"
                    f"{row['tokens_per_request']:.1f}{MARKS[row['stability']]}"
                )
            print(f"{rate:>5} " + "  ".join(cells), flush=True)
    with (out / "results.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, alphas, out)


def draw(rows: list[dict], alphas: tuple[float, ...], out: Path) -> None:
    mpl.use("Agg")
    shown = ("mean_e2el_ms", "tokens_per_step", "tokens_per_request")
    figure, axes = plt.subplots(
        len(alphas), 3, figsize=(12, 3.4 * len(alphas)), squeeze=False, constrained_layout=True
    )
    for line, alpha in zip(axes, alphas, strict=True):
        for axis, field in zip(line, shown, strict=True):
            for label in POLICIES:
                mine = [r for r in rows if (r["alpha"], r["policy"]) == (alpha, label)]
                x, y = [r["rate"] for r in mine], [r[field] for r in mine]
                [curve] = axis.plot(x, y, "o-", label=label)
                mark_stability(axis, x, y, [r["stability"] for r in mine], color=curve.get_color())
            axis.set_yscale("log")
            axis.set_title(f"alpha = {alpha}: {field.replace('_', ' ')}")
            axis.set_xlabel("requests/s")
    axes[0][0].legend()
    figure.savefig(out / "plot.png", dpi=100, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
