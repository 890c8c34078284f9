"""TurboSpec, tables 4 and 5: fitted on Org and k = 1 alone, everything else predicted.

    SPECSIM_DATA=... python experiments/turbospec-tables/run.py

Writes parameters.csv, predictions.csv, cells.csv, evaluation.csv and plot.png beside this file.
"""

import csv
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from servers import (
    CONFIGS,
    HERE,
    LOOKUP,
    SERVERS,
    Cell,
    Parameters,
    Server,
    latency,
    measured,
    method,
    prediction,
    saturated,
)
from stretches import HITS

FITTED = ("Org", "k=1")
BOUNDS = {
    "compute": (0.3, 1.5),
    "memory": (0.3, 1.5),
    "scale": (0.2, 3.0),
    "host_us": (1.0, 300.0),
    "request_us": (1.0, 2000.0),
    "hit": (0.02, 1.0),
}
PRIORS = {"compute": (0.9, 0.15), "memory": (1.0, 0.1), "hit": (HITS[1], 0.2)}
"""What was measured elsewhere: the value, and how far another may be, as a ratio.

Of kernels: what servers of experiments/gpu-runs reached (0.77 to 1 times the speed of computing,
1 to 1.06 of reading), and more, since these are of another engine. Of lookups: as the published
rates differ."""
TOLERANCE = {False: 0.12, True: 0.25}
"""Of the relative error, by whether the row is saturated: the weights of the fit."""
STEP = 0.04
"""Of the finite differences, of a logarithm."""
ITERATIONS = 6
"""Of each fit, at most."""


class Fit:
    """Levenberg-Marquardt on the logarithms of parameters and latencies, with a soft-L1 loss.

    Latency at low load fixes the ratio of length to efficiency, so it is that ratio which is
    varied: a length scale counts in units of the memory efficiency here.
    """

    def __init__(self, server: Server, known: dict[Cell, float]) -> None:
        self._server = server
        self._known = known
        rows = saturated(known)
        self._weights = {cell: 1 / TOLERANCE[rows[cell.dataset, cell.qps]] for cell in known}

    def __call__(self) -> Parameters:
        """Return what Org says, and then what k = 1 says beyond that."""
        start = Parameters()
        ratios = self._ratios(start)

        def of_org(x: np.ndarray) -> Parameters:
            compute, memory, host, *rest = (float(each) for each in x)
            scales = dict(zip(ratios, [ratio * memory for ratio in rest], strict=True))
            return Parameters(compute, memory, scales, host)

        names = ["compute", "memory", "host_us", *["scale"] * len(ratios)]
        x0 = [start.compute, start.memory, start.host_us, *ratios.values()]
        org = of_org(self._search("Org", of_org, x0, names, [None, None, None, *ratios]))

        def of_k1(x: np.ndarray) -> Parameters:
            return replace(org, request_us=float(x[0]), hit=float(x[1]))

        x0, names = [start.request_us, start.hit], ["request_us", "hit"]
        return of_k1(self._search("k=1", of_k1, x0, names, [None, LOOKUP])).rounded()

    def _ratios(self, start: Parameters) -> dict[str, float]:
        """Return length scale over memory efficiency by which the lowest rates come out right."""
        lowest: dict[str, Cell] = {}
        for cell in self._known:
            lowest.setdefault(cell.dataset, cell)
        scale = dict.fromkeys(lowest, 1.0)
        for _ in range(2):
            trial = replace(start, scale=scale)
            scale = {
                name: value * self._known[lowest[name]] / self._run(lowest[name], trial)
                for name, value in scale.items()
            }
        return {name: value / start.memory for name, value in scale.items()}

    def _run(self, cell: Cell, trial: Parameters) -> float:
        return latency(self._server, cell, trial, 0)

    def _search(
        self,
        config: str,
        make: Callable[[np.ndarray], Parameters],
        x0: list[float],
        names: list[str],
        affects: list[str | None],
    ) -> np.ndarray:
        """Return the parameters of least loss; `affects`: the one dataset that each acts on."""
        cells = [cell for cell in self._known if cell.config == config]
        goal = np.log([self._known[cell] for cell in cells])
        priors = [(column, *PRIORS[name]) for column, name in enumerate(names) if name in PRIORS]
        weights = np.array(
            [self._weights[cell] for cell in cells] + [1 / spread for _, _, spread in priors]
        )
        low, high = np.array([BOUNDS[name] for name in names]).T

        def residuals(x: np.ndarray) -> np.ndarray:
            trial = make(x)
            runs = np.log([self._run(cell, trial) for cell in cells]) - goal
            return np.append(runs, [math.log(x[column] / value) for column, value, _ in priors])

        def slopes(x: np.ndarray, base: np.ndarray) -> np.ndarray:
            matrix = np.zeros((len(cells) + len(priors), len(x)))
            for row, (column, _, _) in enumerate(priors, len(cells)):
                matrix[row, column] = 1.0
            for column, dataset in enumerate(affects):
                step = STEP if x[column] * math.exp(STEP) <= high[column] else -STEP
                moved = x.copy()
                moved[column] *= math.exp(step)
                trial = make(moved)
                rows = [row for row, cell in enumerate(cells) if dataset in (None, cell.dataset)]
                for row in rows:
                    changed = math.log(self._run(cells[row], trial)) - goal[row]
                    matrix[row, column] = (changed - base[row]) / step
            return matrix

        x = np.clip(np.array(x0), low, high)
        base, damping = residuals(x), 1e-2
        for _ in range(ITERATIONS):
            pull = weights / (1 + (weights * base) ** 2) ** 0.25  # of the soft-L1 loss
            matrix, before = slopes(x, base) * pull[:, None], loss(weights * base)
            for _ in range(4):
                inverse = matrix.T @ matrix + damping * np.eye(len(x))
                step = -np.linalg.solve(inverse, matrix.T @ (base * pull))
                trial = np.clip(x * np.exp(np.clip(step, -0.4, 0.4)), low, high)
                values = residuals(trial)
                if loss(weights * values) < before:
                    x, base, damping = trial, values, damping / 4
                    break
                damping *= 8
            if before - loss(weights * base) < 0.01:
                break
        return x


def loss(errors: np.ndarray) -> float:
    """Return the soft-L1 loss: quadratic in small errors, linear in large ones."""
    return float(np.sum(np.sqrt(1 + errors**2) - 1))


def fitted(known: dict[str, dict[Cell, float]], server: Server) -> Parameters:
    """Return one target's parameters, from Org and k = 1: the rest is not handed on."""
    seen = {cell: value for cell, value in known[server.target].items() if cell.config in FITTED}
    return Fit(server, seen)()


def predicted(job: tuple[Server, Cell, Parameters]) -> float:
    return prediction(*job)


def write(path: Path, rows: list[dict]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def compared(rows: list[dict], known: dict[str, dict[Cell, float]]) -> list[dict]:
    """Return every cell whose published value is at hand, with the error of the simulated one."""
    found = []
    for row in rows:
        cell = Cell(row["dataset"], row["qps"], row["config"])
        mine = known[row["target"]]
        if cell in mine:
            found.append(
                {
                    **row,
                    "saturated": saturated(mine)[cell.dataset, cell.qps],
                    "fitted": cell.config in FITTED,
                    "error_percent": round(100 * (row["latency_s"] / mine[cell] - 1), 1),
                }
            )
    return found


def evaluate(cells: list[dict], known: dict[str, dict[Cell, float]]) -> dict[str, float]:
    """Return the four figures of table 4's held-out columns, and how many cells they are of."""
    held_out = [row for row in cells if not row["fitted"]]
    sizes = {
        name: [abs(row["error_percent"]) for row in held_out if row["saturated"] == is_saturated]
        for name, is_saturated in (("below", False), ("above", True))
    }
    simulated = {
        (row["target"], Cell(row["dataset"], row["qps"], row["config"])): row["latency_s"]
        for row in cells
    }
    signs, regrets = [], []
    for row in held_out:
        real, cell = known[row["target"]], Cell(row["dataset"], row["qps"], row["config"])
        org = cell._replace(config="Org")
        gain = simulated[row["target"], org] - row["latency_s"]
        signs.append((real[org] > real[cell]) == (gain > 0))
        if cell.config == "TS":
            fixed = [cell._replace(config=config) for config in CONFIGS if config != "TS"]
            best = min(fixed, key=lambda each: simulated[row["target"], each])
            regrets.append(real[best] / min(real[each] for each in fixed) - 1)
    return {
        "cells_below_saturation": len(sizes["below"]),
        "median_error_below_percent": round(median(sizes["below"]), 1),
        "cells_above_saturation": len(sizes["above"]),
        "median_error_above_percent": round(median(sizes["above"]), 1),
        "sign_right_percent": round(100 * mean(signs), 1),
        "mean_regret_percent": round(100 * mean(regrets), 2),
    }


def draw(cells: list[dict], out: Path) -> None:
    mpl.use("Agg")
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.8), constrained_layout=True, sharey=True)
    for axis, is_fitted in zip(axes, (True, False), strict=True):
        for number, config in enumerate(CONFIGS):
            mine = [row for row in cells if row["config"] == config and row["fitted"] == is_fitted]
            real = [row["latency_s"] / (1 + row["error_percent"] / 100) for row in mine]
            if mine:
                simulated = [row["latency_s"] for row in mine]
                axis.plot(real, simulated, f"C{number}o", markersize=4, label=config)
        axis.plot([0.4, 200], [0.4, 200], color="gray", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="published mean latency, s")
        axis.set_title("fitted on these" if is_fitted else "predicted (table 4)")
        axis.legend()
    axes[0].set_ylabel("simulated, s")
    figure.savefig(out / "plot.png", dpi=120, metadata={"Software": None})


def main(out: Path = HERE) -> None:
    known = measured()
    with ProcessPoolExecutor(2) as pool:
        parameters = list(pool.map(partial(fitted, known), SERVERS))
        jobs = [
            (server, Cell(dataset, qps, config), found)
            for server, found in zip(SERVERS, parameters, strict=True)
            for dataset, qps in saturated(known[server.target])
            for config in CONFIGS
        ]
        times = list(pool.map(predicted, jobs, chunksize=4))
    write(
        out / "parameters.csv",
        [
            {"target": server.target, **found.row()}
            for server, found in zip(SERVERS, parameters, strict=True)
        ],
    )
    rows = [
        {
            "hardware": server.hardware,
            "target": server.target,
            "method": method(cell),
            **cell._asdict(),
            "latency_s": seconds,
        }
        for (server, cell, _), seconds in zip(jobs, times, strict=True)
    ]
    write(out / "predictions.csv", rows)
    cells = compared(rows, known)
    write(out / "cells.csv", cells)
    result = evaluate([row for row in cells if row["hardware"] == "L40S"], known)
    write(out / "evaluation.csv", [result])
    for name, value in result.items():
        print(f"{name}: {value:g}")
    draw(cells, out)


if __name__ == "__main__":
    main()
