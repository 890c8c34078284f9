"""All policies on drafters of three kinds: traffic, loads, ramps, shifts, and what was recorded.

    python experiments/policy-scoreboard/run.py     # not yet timed on idle cores

Writes results.csv and plot.png beside this file and prints one line per policy and drafter. Cells
with recorded acceptance need the token traces, which are never shipped (SPECSIM_DATA); without them
they are left out, and said to be.
"""

import csv
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from specsim.api import Experiment, Policy, compare, parse_policies
from specsim.policies import check_proposer

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data")) / "tokens"
REPLICATIONS = 3
TRAFFIC = {"chat": "sharegpt", "code": "instructcoder", "summarisation": "cnn"}
FOLLOWING = {"chat": "code", "code": "summarisation", "summarisation": "chat"}
# Requests/s. Head and lookup: a tenth, half and all of what the server manages without speculation,
# measured with 1,500 requests at once (30.0, 49.7 and 28.3); the A100 with a draft model: about so.
LOADS = {
    "chat": {"low": 3.0, "medium": 15.0, "saturated": 30.0},
    "code": {"low": 5.0, "medium": 25.0, "saturated": 50.0},
    "summarisation": {"low": 3.0, "medium": 14.0, "saturated": 28.0},
}
MODEL_LOADS = {"low": 1.5, "medium": 7.0, "saturated": 14.0}
REQUESTS = {"low": 30, "medium": 80, "saturated": 150}
RAMP = [[5, 0.03], [5, 0.5], [5, 1.5]]  # shares of the saturated load, after TurboSpec's ramp
# Of the draft model, which nobody has recorded: alpha per request.
MODEL_ALPHAS = {"chat": (4.0, 3.0), "code": (7.0, 2.0), "summarisation": (3.5, 3.5)}
MODEL_LENGTHS = {
    "chat": {"prompt": [50, 450], "output": [100, 400]},
    "code": {"prompt": [50, 300], "output": [50, 250]},
    "summarisation": {"prompt": [400, 1000], "output": [50, 150]},
}
# The cells on which the fields of `joint` were chosen; all others only report.
CHOSEN_ON = {"chat": {"low", "medium", "saturated", "ramp", "shift"}, "code": {"low", "medium"}}
POLICIES = [
    *("static:k=1", "static:k=2", "static:k=3", "static:k=5", "static:k=7"),
    "schedule:ranges=[[1, 16, 7], [17, 64, 5], [65, 256, 3]]",
    *("goodput", "goodput:granularity=request", "goodput_exact", "turbospec", "slo_aware"),
    *("confidence", "adaptive_verification", "draft_goodput", "joint", "random"),
    *("window_opt", "step_controller", "q_learning", "ema_tiers", "acceptance_target"),
    *("bandit", "bandit:algorithm=thompson"),
    *("bayes", "bayes:confidences=false", "oracle"),
]
BOUNDS = ("bayes", "bayes:confidences=false", "oracle")


class Cell(NamedTuple):
    """One cell of the scoreboard."""

    drafter: str
    traffic: str
    load: str
    fields: dict[str, Any]

    @property
    def half(self) -> str:
        """Whether `joint` was made with a look at it."""
        if self.drafter.endswith("recorded"):
            return "recorded"
        return "chosen on" if self.load in CHOSEN_ON.get(self.traffic, ()) else "held out"


def poisson(rate: float) -> dict[str, Any]:
    return {"kind": "poisson", "rate": rate}


def dataset(traffic: str) -> dict[str, Any]:
    name = TRAFFIC[traffic]
    return {"kind": "dataset", "name": "cnn_dailymail" if name == "cnn" else name}


def preset(traffic: str, method: str) -> dict[str, Any]:
    return {"kind": "preset", "name": f"llama-3.1-8b/{method}/{TRAFFIC[traffic]}"}


def scenario(
    load: str, loads: dict[str, float], lengths: tuple[Any, Any], acceptance: tuple[Any, Any]
) -> dict[str, Any]:
    """Return the workload and acceptance of a load; a shift leads from the first to the second."""
    if load == "ramp":
        segments = [[seconds, round(share * loads["saturated"], 2)] for seconds, share in RAMP]
        arrivals = {"kind": "piecewise", "segments": segments}
        return {
            "workload": {"arrivals": arrivals, "lengths": lengths[0]},
            "acceptance": acceptance[0],
        }
    if load == "shift":
        half = 50
        between = {"kind": "shift", "at": 0.5, "before": lengths[0], "after": lengths[1]}
        change = {
            "kind": "shift",
            "at_request": half,
            "before": acceptance[0],
            "after": acceptance[1],
        }
        workload = {"arrivals": poisson(loads["medium"] / 2), "lengths": between}
        return {"workload": {**workload, "num_requests": 2 * half}, "acceptance": change}
    workload = {"arrivals": poisson(loads[load]), "lengths": lengths[0]}
    return {"workload": {**workload, "num_requests": REQUESTS[load]}, "acceptance": acceptance[0]}


def cells(engine: dict[str, Any], *, shifts: bool = False) -> Iterator[Cell]:
    """Yield the cells; with a shift of the traffic for each drafter, or for the head alone."""
    others = ("shift",) if shifts else ()
    for traffic, loads in LOADS.items():
        both = (traffic, FOLLOWING[traffic])
        lengths = (dataset(both[0]), dataset(both[1]))
        heads = (preset(both[0], "eagle"), preset(both[1], "eagle"))
        for load in ("low", "medium", "saturated", "ramp", "shift"):
            yield Cell("head", traffic, load, scenario(load, loads, lengths, heads))
        suffix = {"method": "suffix", "num_speculative_tokens": 7}
        found = (preset(both[0], "ngram"), preset(both[1], "ngram"))
        for load in ("low", "saturated", "ramp", *others):
            fields = scenario(load, loads, lengths, found)
            fields["engine"] = {**engine, "speculative_config": suffix}
            yield Cell("lookup", traffic, load, fields)
        own = [{"kind": "uniform", **MODEL_LENGTHS[name]} for name in both]
        alphas = [dict(zip("ab", MODEL_ALPHAS[name], strict=True)) for name in both]
        models = [{"kind": "beta", **each} for each in alphas]
        spec = {"method": "draft_model", "num_speculative_tokens": 7}
        for load in ("low", "medium", "saturated", "ramp", *others):
            fields = scenario(load, MODEL_LOADS, (own[0], own[1]), (models[0], models[1]))
            fields["engine"] = {**engine, "speculative_config": spec}
            fields["profile"] = "a100/llama-7b"
            yield Cell("model", traffic, load, fields)
    yield from recorded(engine)


def recorded(engine: dict[str, Any]) -> Iterator[Cell]:
    """Yield cells whose acceptance no model has made."""
    for traffic, name in TRAFFIC.items():
        path = DATA / f"llama31_8b_{name}.jsonl.gz"
        if not path.exists():
            print(f"{traffic}: {path} is not here; its recorded cells are left out")
            continue
        for load in ("saturated",):
            workload = {
                "arrivals": poisson(LOADS[traffic][load]),
                "lengths": {"kind": "trace", "path": str(path)},
                "num_requests": 140,
            }
            fields = {"workload": workload, "acceptance": {"kind": "recorded", "proposer": "eagle"}}
            yield Cell("head, recorded", traffic, load, fields)
            real = {"workload": workload, "acceptance": {"kind": "token_match"}}
            real["engine"] = {**engine, "speculative_config": {"method": "suffix"}}
            yield Cell("lookup, recorded", traffic, load, real)


def allowed(experiment: Experiment, texts: list[str]) -> dict[str, Policy]:
    """Return the policies that the drafter allows, and `off`."""
    proposer, found = experiment.engine.speculative_config, {}
    assert proposer is not None
    for text, policy in parse_policies(texts).items():
        try:
            check_proposer(policy, proposer)
        except ValueError:
            continue
        found[text] = policy
    return found


def rows_of(base: Experiment, cell: Cell) -> list[dict[str, Any]]:
    experiment = base.replace(**cell.fields)
    is_known = cell.half != "recorded"
    asked = [text for text in POLICIES if is_known or not text.startswith("bayes")]
    policies = allowed(experiment, asked)
    comparison = compare(experiment, policies, replications=REPLICATIONS)
    rows = []
    for place, standing in enumerate(comparison.standings, 1):  # bounds have a place, too
        result, oracle = standing.result, standing.regrets.get("oracle")
        assert oracle is not None
        rows.append(
            {
                "drafter": cell.drafter,
                "traffic": cell.traffic,
                "load": cell.load,
                "half": cell.half,
                "rank": place,
                "policy": result.label,
                "speed_up": round(result.speed_up.mean, 4),
                "speed_up_low": round(result.speed_up.low or 0.0, 4),
                "speed_up_high": round(result.speed_up.high or 0.0, 4),
                "regret_oracle_percent": round(oracle.mean, 2),
                "regret_oracle_low": round(oracle.low or 0.0, 2),
                "regret_oracle_high": round(oracle.high or 0.0, 2),
                "mean_e2el_ms": round(result.mean("mean_e2el_ms"), 1),
                "mean_tpot_ms": round(result.mean("mean_tpot_ms"), 3),
                "tokens_per_step": round(result.mean("tokens_per_step"), 3),
                "stability": result.stability,
            }
        )
    return rows


def main(wanted: list[str]) -> None:
    base = Experiment.load(HERE / "experiment.yaml")
    engine = base.engine.model_dump(exclude_unset=True)
    rows: list[dict[str, Any]] = []
    asked = [cell for cell in cells(engine) if not wanted or cell.drafter in wanted]
    asked.sort(key=lambda cell: ("recorded", "held out", "chosen on").index(cell.half))
    with ProcessPoolExecutor(2) as pool:
        for found in pool.map(partial(rows_of, base), asked):
            rows += found
            print(told(rows[-1], rows), flush=True)
            save(rows)
    summarise(rows)
    plot(rows)


def save(rows: list[dict[str, Any]]) -> None:
    with (HERE / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def told(last: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return how `joint` did in the cell of a row."""
    place = ("drafter", "traffic", "load")
    mine = [row for row in rows if all(row[key] == last[key] for key in place)]
    by_policy = {row["policy"]: row for row in mine}
    rivals = [row for row in mine if row["policy"] not in (*BOUNDS, "joint")]
    joint, best = by_policy["joint"], max(rivals, key=lambda row: row["speed_up"])
    behind = 100.0 * (best["speed_up"] / joint["speed_up"] - 1.0)
    text = (
        f"{', '.join(str(last[key]) for key in place)} ({last['half']}): joint "
        f"{joint['regret_oracle_percent']:.1f} %, best other {best['policy']} "
        f"{best['regret_oracle_percent']:.1f} %, joint behind it by {behind:+.2f} %"
    )
    if "bayes" in by_policy:
        bound = by_policy["bayes"]["regret_oracle_percent"]
        text += f"; bayes {bound:.1f} %"
        if bound > 0:
            text += f", ratio {joint['regret_oracle_percent'] / bound:.2f}"
    return text


def summarise(rows: list[dict[str, Any]]) -> None:
    """Print each policy's regret, mean and worst over all cells, by drafter and half."""
    for group in dict.fromkeys((row["drafter"], row["half"]) for row in rows):
        mine = [row for row in rows if (row["drafter"], row["half"]) == group]
        print(f"\n{', '.join(group)}: regret against the oracle, %: mean, worst")
        labels = dict.fromkeys(row["policy"] for row in mine)
        regrets = {
            label: [row["regret_oracle_percent"] for row in mine if row["policy"] == label]
            for label in labels
        }
        for label in sorted(labels, key=lambda label: fmean(regrets[label])):
            print(f"{label:58} {fmean(regrets[label]):6.1f} {max(regrets[label]):6.1f}")


def plot(rows: list[dict[str, Any]]) -> None:
    mpl.use("Agg")
    places = list(dict.fromkeys((row["drafter"], row["traffic"], row["load"]) for row in rows))
    values = {
        (r["policy"], r["drafter"], r["traffic"], r["load"]): r["regret_oracle_percent"]
        for r in rows
    }
    labels = list(dict.fromkeys(row["policy"] for row in rows))
    grid = np.array([[values.get((label, *place), np.nan) for place in places] for label in labels])
    order = np.argsort(np.nanmean(grid, axis=1))
    grid, labels = grid[order], [labels[place] for place in order]
    figure, axis = plt.subplots(figsize=(22, 9), constrained_layout=True)
    image = axis.imshow(np.clip(grid, 0, 100), cmap="viridis_r", aspect="auto")
    axis.set_xticks(range(len(places)), [", ".join(at) for at in places], rotation=75, ha="right")
    axis.set_yticks(range(len(labels)), labels)
    for (row, column), value in np.ndenumerate(grid):
        if not np.isnan(value):
            colour = "white" if value > 50 else "black"
            axis.text(
                column, row, f"{value:.0f}", ha="center", va="center", fontsize=6, color=colour
            )
    figure.colorbar(image, label="regret against the oracle, % of mean end-to-end latency")
    figure.savefig(HERE / "plot.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main(sys.argv[1:])
