"""Try other rules of when a fit is kept, by PROTOCOL.md; errors of all of them per server.

    SPECSIM_DATA=FOLDER python experiments/gpu-runs/keep.py [--server NAME]

Adds the ratios of each server to results/keep.json, and prints the choice by those that are there.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from clean import cleaned
from run import SERVERS, Server, data_folder

from specsim.profile.from_tables import TableProfile
from specsim.profile.kernel_tables import TableOptions, tables_folder
from specsim.reality.profile_fit.run_fit import ROUNDS, Problem, Solution, parameters_of, solved
from specsim.reality.validation import Replayer, read_table, select_rows
from specsim.reality.validation.prediction_errors import measured_of

OUT = Path(__file__).parent / "results" / "keep.json"
SHARES = (0.25, 0.5, 0.75, 1.0)
FORMS = {"once": 0.7, "settled": 0.7, "half": 0.5}
KEPT = ("each", "kinds", "half", "needed")

ONE_TIME = ("output_tok_s", "tpot_or_itl_mean_ms", "e2e_mean_ms")
KINDS = (ONE_TIME, ("itl_p50_ms",), ("ttft_p50_ms",), ("engine_steps",))
NEEDED, SLACK, HURT = 1.7, 0.1, 1.02
GROUPS = {"A100": "a100-", "H100": "h100-", "H200": "h200-", "H100 NVL": "h100nvl-"}


class Tried(NamedTuple):
    """A solution, and how far each load is off by what the others say; by share of the way."""

    found: Solution
    is_free: np.ndarray
    left_out: dict[float, list[dict[str, float]]]  # of each load and metric


class Rows:
    """Errors of some rows by load and metric, in what each may be off by."""

    def __init__(self, server: Server, runs: Sequence[Any], start: Any) -> None:
        self.replayer = Replayer(runs, processes=os.cpu_count() or 1)
        parameters = parameters_of(start, self.replayer.runs)
        self.problem = Problem(start, parameters, self.replayer, server.metrics, None)
        self.metrics = server.metrics

    def of(self, errors: np.ndarray) -> list[dict[str, float]]:
        """Return the mean size of the weighed errors of each load and metric."""
        keys, runs = self.replayer.keys, self.replayer.runs
        told = [
            (metric, keys.count(key))
            for metric in self.metrics
            for run, key in zip(runs, keys, strict=True)
            if measured_of(run, metric)
        ]
        found: dict[int, dict[str, list[float]]] = {}
        for load, (name, count), error in zip(self.problem.loads, told, errors, strict=True):
            found.setdefault(load, {}).setdefault(name, []).append(abs(error) * count**0.5)
        return [
            {name: float(np.mean(each)) for name, each in metrics.items()}
            for metrics in found.values()
        ]


def forms_of(problem: Problem) -> Iterator[tuple[str, Solution, np.ndarray]]:
    """Return the solution of each form."""
    every = np.ones(len(problem.parameters), dtype=bool)
    first = solved(problem, every, ROUNDS)
    for name, untold in FORMS.items():
        best, is_free = first, every
        while True:
            told = is_free & (best.widths < untold)
            if told.all() or not told.any() or (told == is_free).all():
                is_free = told
                break
            best, is_free = solved(problem, told, 1, best), told
            if name == "once":
                break
        yield name, best._replace(places=np.where(is_free, best.places, 0.0)), is_free


def without_each(rows: Rows, found: Solution, is_free: np.ndarray) -> dict[float, list[Any]]:
    """Return how far each load is off by a share of what the other loads say."""
    problem = rows.problem
    loads = np.array(problem.loads)
    errors = problem.errors(found.places) / found.spread
    made: dict[float, list[Any]] = {share: [] for share in SHARES}
    for number, load in enumerate(dict.fromkeys(loads.tolist())):
        rest = loads != load
        slopes = np.vstack([found.slopes[rest] / found.spread, np.eye(len(is_free))])
        step = np.linalg.lstsq(slopes, -np.concatenate([errors[rest], found.places]))[0]
        places = np.clip(found.places + step * is_free, problem.lowest, problem.highest)
        for share in SHARES:
            made[share].append(rows.of(problem.errors(share * places))[number])
    return made


def is_kept(rule: str, before: list[dict[str, float]], after: list[dict[str, float]]) -> bool:
    sizes = [[np.mean(list(load.values())) for load in each] for each in (before, after)]
    if not all(new < old for old, new in zip(*sizes, strict=True)):
        return False
    if rule == "half":
        return bool(sum(sizes[1]) <= 0.5 * sum(sizes[0]))
    if rule == "needed":
        return bool(np.mean(sizes[0]) > NEEDED)
    if rule == "kinds":
        for old, new, kind in (
            (o, n, k) for o, n in zip(before, after, strict=True) for k in KINDS
        ):
            there = [name for name in kind if name in old]
            if sum(new[n] for n in there) > sum(old[n] for n in there) + SLACK * bool(there):
                return False
    return True


def ratios_of(server: Server) -> dict[str, Any]:
    """Return the loss of a server's held-out loads, of each alternative over that as built."""
    start = TableProfile.of(TableOptions(tables=tables_folder(), **server.build)).profile
    with TemporaryDirectory() as folder:
        rows = read_table(cleaned(data_folder() / server.file, Path(folder)))
    runs = select_rows(rows, server.rows)
    fitted = Rows(server, [r for r in runs if any(c.holds(r) for c in server.cells)], start)
    others = Rows(server, [r for r in runs if not any(c.holds(r) for c in server.cells)], start)
    own = {each.path: n for n, each in enumerate(fitted.problem.parameters)}

    def loss(places: np.ndarray) -> float:
        moved = np.array([places[own[p.path]] if p.path in own else 0.0
                          for p in others.problem.parameters])  # fmt: skip
        return float(np.mean([x for load in others.of(others.problem.errors(moved))
                              for x in load.values()]))  # fmt: skip

    zero = np.zeros(len(own))
    before, built = fitted.of(fitted.problem.errors(zero)), loss(zero)
    made: dict[str, Any] = {"built": round(built, 4), "ratios": {}}
    for form, found, is_free in forms_of(fitted.problem):
        after = without_each(fitted, found, is_free)
        totals = {s: sum(np.mean(list(load.values())) for load in after[s]) for s in SHARES}
        losses = {share: loss(share * found.places) / built for share in SHARES}
        for (how, share), rule in product(
            (("all", 1.0), ("share", min(SHARES, key=lambda s: (totals[s], -s)))), KEPT
        ):
            keeps = is_kept(rule, before, after[share])
            made["ratios"][f"{form} {how} {rule}"] = round(losses[share], 4) if keeps else 1.0
    return made


def choice(found: dict[str, Any], names: Sequence[str]) -> str:
    """Return the alternative that is chosen by some servers."""
    every = list(next(iter(found.values()))["ratios"])
    harmless = [a for a in every if max(found[n]["ratios"][a] for n in names) <= HURT]
    if not harmless:
        return "none"
    return min(harmless, key=lambda a: np.mean([np.log(found[n]["ratios"][a]) for n in names]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", action="append", choices=[each.name for each in SERVERS])
    wanted = parser.parse_args().server
    found = json.loads(OUT.read_text()) if OUT.is_file() else {}
    for server in SERVERS:
        if wanted is None or server.name in wanted:
            found[server.name] = ratios_of(server)
            OUT.write_text(json.dumps(found, indent=1) + "\n")
    for group, prefix in GROUPS.items():
        own = [name for name in found if name.startswith(prefix)]
        others = [name for name in found if name not in own]
        if own and others:
            taken = choice(found, others)
            told = {n: round(found[n]["ratios"].get(taken, 1.0), 3) for n in own}
            print(f"{group} left out: {taken}; {told}")
    print(f"by all: {choice(found, list(found))}")


if __name__ == "__main__":
    sys.exit(main())
