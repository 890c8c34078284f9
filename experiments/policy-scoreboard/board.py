"""Published controllers beside ours, each as vLLM would run it by default.

    python experiments/policy-scoreboard/board.py     # 4 minutes on 2 cores
    python experiments/policy-scoreboard/board.py my_policies:HalfTheBatch     # yours beside them

The cells of run.py but for real suffix drafts, and a shift of the traffic for every drafter, with
the same requests and luck for all policies and seeds of its own for each cell. Steps are scheduled
asynchronously where drafter and policy can, as vLLM 0.33 does unless it is told not to. Writes
board.csv, a row per cell and policy with the mean end-to-end latency of each replication, and
regrets.csv, what follows. Given policies, it runs those alone, beside what is kept of the others,
prints where they stand, and writes nothing.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from run import HERE, Cell, allowed, cells
from scipy.stats import t

from specsim.api import Experiment, parse_policies
from specsim.core.errors import SpecsimError
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.show.render import new_table

REPLICATIONS = 3
FIXED = ["static:k=1", "static:k=2", "static:k=3", "static:k=5", "static:k=7"]
PUBLISHED = [
    "schedule:ranges=[[1, 16, 7], [17, 64, 5], [65, 256, 3]]",
    *("adaptive_verification", "adaptive_k", "ema_tiers", "throughput_tiers"),
    "acceptance_gate:draft_len_schedule={4: 4, 8: 2, 32: 1}",
    "acceptance_gate:acceptance_window=5,acceptance_length_threshold=0.6",
    "acceptance_rate_gate:acceptance_rate_window_size=8,acceptance_rate_threshold=0.5",
    *("goodput", "confidence", "turbospec", "slo_aware", "disco", "specdec_pp", "adaedl"),
    *("bandit", "bandit:algorithm=thompson", "ucbspec", "nightjar", "tapout"),
    *("dsde", "spec_serve"),
    *("step_controller", "window_opt", "q_learning"),
]
OURS = ["goodput_exact", "draft_goodput", "joint"]
ASYNC = ", asynchronous"
"""Of a policy that would not be by itself."""
CHANGING = ("ramp", "shift")
Row = dict[str, Any]


def experiments(base: Experiment, cell: Cell, asked: Sequence[str]) -> dict[str, Experiment]:
    """Return a cell's experiment with each policy that it allows of those asked for, and `off`."""
    experiment = base.replace(**cell.fields)
    policies = allowed(experiment, [*asked])
    found = {text: experiment.replace(policy=policy) for text, policy in policies.items()}
    is_async = "static:k=1" in found and found["off"].is_async and found["static:k=1"].is_async
    if "joint" in found and is_async:
        engine = experiment.engine.model_copy(update={"async_scheduling": True})
        found["joint" + ASYNC] = found["joint"].replace(engine=engine)
    return found


def rows_of(base: Experiment, asked: Sequence[str], numbered: tuple[int, Cell]) -> list[Row]:
    """Return what came of a cell, policy by policy."""
    number, cell = numbered
    rows = []
    for text, experiment in experiments(base, cell, asked).items():
        row = {"drafter": cell.drafter, "traffic": cell.traffic, "load": cell.load, "policy": text}
        row["is_async"] = str(experiment.is_async).lower()
        for seed in range(REPLICATIONS):
            run = simulate(experiment.replace(seed=100 * number + seed), keeps_steps=False)
            row[f"mean_e2el_ms_{seed}"] = f"{Summary(run).data['mean_e2el_ms']:.6g}"
        rows.append(row)
    return rows


def group_of(row: Row) -> str:
    """Return where a row counts: by drafter, in a world that changes or in one that does not."""
    if row["drafter"].endswith("recorded"):
        return "recorded"
    return f"{row['drafter']}, {'changing' if row['load'] in CHANGING else 'stationary'}"


def log_regrets(rows: list[Row]) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Return ln(latency / that of the best fixed k of the cell), by group and policy.

    The best is so in hindsight, over all replications; no draft is a k as well. Shape (cells,
    replications).
    """
    cells_of: dict[tuple[str, ...], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        cells_of[row["drafter"], row["traffic"], row["load"]][row["policy"]] = row
    found = defaultdict(list)
    for cell in cells_of.values():
        logs = {
            policy: np.log([float(row[f"mean_e2el_ms_{n}"]) for n in range(REPLICATIONS)])
            for policy, row in cell.items()
        }
        best = min(("off", *FIXED), key=lambda policy: float(logs[policy].mean()))
        for policy, values in logs.items():
            found[group_of(cell[policy]), policy].append(values - logs[best])
    return {place: np.array(each) for place, each in found.items()}


def regrets(rows: list[Row]) -> list[Row]:
    """Return regrets in percent with intervals that hold for all at once, and Holm's p.

    Cells are fixed and their runs independent: the variance of a mean over cells is that of their
    means, its degrees of freedom are Satterthwaite's. Intervals are Bonferroni's, 95 % for all.
    """
    found = []
    each_of = log_regrets(rows)
    for (group, policy), each in each_of.items():
        parts = each.var(axis=1, ddof=1) / REPLICATIONS
        mean, error = float(each.mean()), float(np.sqrt(parts.sum())) / len(each)
        freedom = parts.sum() ** 2 / (parts**2).sum() * (REPLICATIONS - 1) if error else np.inf
        p = 2.0 * float(t.sf(abs(mean) / error, freedom)) if error else float(mean == 0.0)
        half = float(t.isf(0.025 / len(each_of), freedom)) * error
        worst = float(each.mean(axis=1).max())
        row = {"group": group, "policy": policy, "cells": len(each), "p": p}
        bounds = {"mean": mean, "low": mean - half, "high": mean + half, "worst_cell": worst}
        percent = {f"{name}_percent": f"{100 * np.expm1(b):.2f}" for name, b in bounds.items()}
        found.append({**row, **percent})
    largest = 0.0
    for rank, row in enumerate(sorted(found, key=lambda row: float(row["p"]))):
        largest = max(largest, min(1.0, (len(found) - rank) * row["p"]))
        row["p"] = f"{largest:.3g}"
    return found


def save(name: str, rows: list[Row]) -> None:
    with (HERE / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def beside_others(own: list[Row], asked: Sequence[str]) -> list[Row]:
    """Return what is kept of the board, with one's own rows; a SpecsimError if it is of old."""
    with (HERE / "board.csv").open(newline="") as file:
        kept = list(csv.DictReader(file))
    place = ("drafter", "traffic", "load")
    cells_run = {tuple(row[name] for name in place) for row in own}
    before = [each for each in kept if tuple(each[name] for name in place) in cells_run]
    off = [[row for row in rows if row["policy"] == "off"] for rows in (before, own)]
    if off[0] != off[1]:
        raise SpecsimError(
            f"{HERE / 'board.csv'}: policy off is not what it is now; run board.py without policies"
        )
    others = [each for each in kept if each["policy"] not in asked]
    return others + [each for each in own if each["policy"] != "off"]


def standings(found: list[Row], asked: Sequence[str]) -> Table:
    """Return the board, the least mean regret first, one's own in bold."""
    places = list(dict.fromkeys(row["group"] for row in found))
    rows: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in found:
        rows[row["policy"]][row["group"]] = row

    def mean(policy: str) -> float:
        return fmean(float(row["mean_percent"]) for row in rows[policy].values())

    def text(row: Row | None) -> str:
        if row is None:
            return "-"
        return f"{float(row['mean_percent']):+.1f}{'*' if float(row['p']) < 0.05 else ' '}"

    cells = [
        [
            f"[bold]{escape(policy)}[/]" if policy in asked else escape(policy),
            *(text(rows[policy].get(place)) for place in places),
            f"{max(float(row['worst_cell_percent']) for row in rows[policy].values()):+.0f}",
        ]
        for policy in sorted(rows, key=mean)
    ]
    title = "regret against the best fixed k, %; *: different from it, at 5 % for all of the table"
    return new_table(title, ["policy", *places, "worst cell"], cells)


def main(own: list[str]) -> None:
    base = Experiment.load(HERE / "experiment.yaml")
    engine = base.engine.model_copy(update={"async_scheduling": None})
    base = base.replace(engine=engine)
    found = cells(engine.model_dump(exclude_unset=True), shifts=True)
    asked = [each for each in enumerate(found) if each[1].drafter != "lookup, recorded"]
    rows: list[Row] = []
    parse_policies(own)  # what is misspelt is found before the first run
    with ProcessPoolExecutor(2) as pool:
        run = partial(rows_of, base, own or FIXED + PUBLISHED + OURS)
        for found in pool.map(run, asked):
            rows += found
            print(found[0]["drafter"], found[0]["traffic"], found[0]["load"], flush=True)
            if not own:
                save("board.csv", rows)
    if own:
        found = regrets(beside_others(rows, own))
        wide = max(Console().width, 170)  # else long names would leave no room for numbers
        Console(width=wide).print(standings(found, own))
        return
    save("regrets.csv", regrets(rows))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SpecsimError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
