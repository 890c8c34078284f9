"""Two real vLLM runs, replayed under step times of different origin.

    SPECSIM_DATA=... python experiments/run.py real-runs

Writes errors.csv, statistics.csv and a plot per run beside this file.
"""

import csv
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from specsim.latency import LATENCY, LatencyModel
from specsim.profile import Profile
from specsim.reality.profile_fit import fit_model, kernel_points, kernels_of
from specsim.reality.validation import (
    Replaced,
    Replay,
    RunFolder,
    Validation,
    compare_runs,
    compose,
    load_run,
    replay,
)
from specsim.results.metrics import Requests, latency
from specsim.show.charts.reality_plots import plot_validation

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data")) / "real-runs"
RUNS = ("RTX4090-llama-3.1-8b", "RTXPRO6000-llama-3.1-8b")
FITTED = 60
"""Requests, in order of arrival, that a constant is fitted on."""


def with_target(base: Replay, target: LatencyModel | dict[str, Any]) -> Replay:
    """Return the same replay under other step times."""
    model = LATENCY.parse(target)
    return replace(base, profile=base.profile.model_copy(update={"target": model}))


def linear_forms(run: RunFolder, profile: Profile) -> dict[str, LatencyModel]:
    """Fit both linear models to the kernel tables alone, as `specsim profile fit` does."""
    seqs = int(run.engine_kwargs["max_num_seqs"])
    kernels, subject = kernels_of(run.path, profile.model, profile.gpu, 1)
    points = kernel_points(kernels, subject.kv_tokens, seqs, 2048)
    return {kind: fit_model(points, kind, run.path.name) for kind in ("two_regime", "linear")}


def rows_of(run: Requests, rows: slice) -> Requests:
    names = ("arrived_at", "first_token_at", "ended_at", "prompt_len", "output_len")
    return {name: run[name][rows] for name in names}


def shifted(model: LatencyModel, constant_ms: float) -> dict[str, Any]:
    """Return a linear model whose every step lasts longer by a constant."""
    fields = model.model_dump(mode="json")
    for part in (fields, fields.get("decode"), fields.get("mixed")):
        if part and "delta_ms" in part:
            part["delta_ms"] = max(0.0, part["delta_ms"] + constant_ms)
    return fields


def with_constant(run: RunFolder, base: Replay, model: LatencyModel) -> tuple[float, Validation]:
    """Fit one constant per step so that the first requests' mean latency is the measured one."""
    first = slice(0, FITTED)

    def excess(constant_ms: float) -> float:
        found = replay(run, with_target(base, shifted(model, constant_ms)))
        real, ours = rows_of(found.measured, first), rows_of(found.simulated, first)
        return float(latency(ours).mean() - latency(real).mean())

    constant_ms = brentq(excess, -12.0, 12.0, xtol=1e-3)
    return constant_ms, replay(run, with_target(base, shifted(model, constant_ms)))


def held_out(found: Validation) -> Validation:
    """Keep only the requests that nothing was fitted on."""
    rest = slice(FITTED, None)
    measured, simulated = rows_of(found.measured, rest), rows_of(found.simulated, rest)
    statistics = compare_runs([measured], simulated)
    return replace(found, measured=measured, simulated=simulated, statistics=statistics)


def variants(run: RunFolder) -> dict[str, Callable[[], Validation]]:
    base = compose(run, Replaced())
    target = base.profile.target.model_dump(mode="json")
    kernels = target["inner"]
    forms = linear_forms(run, base.profile)

    def without_tokens() -> Validation:
        requests = [replace(each, prompt_token_ids=None) for each in base.requests]
        return replay(run, replace(base, requests=requests))

    def calibrated(kind: str) -> Validation:
        constant_ms, found = with_constant(run, base, forms[kind])
        print(f"  {kind}: {constant_ms:+.2f} ms a step from the first {FITTED} requests")
        return held_out(found)

    def other(fields: dict[str, Any]) -> Callable[[], Validation]:
        return lambda: replay(run, with_target(base, fields))

    return {
        "kernel tables": lambda: replay(run, base),
        "kernel tables, no padding": other(kernels),
        "kernel tables, skew.csv on": other({**target, "inner": {**kernels, "skew": True}}),
        "kernel tables, skew.csv off": other({**target, "inner": {**kernels, "skew": False}}),
        "kernel tables, no prefix hits": without_tokens,
        "two_regime, fitted to the tables": other(forms["two_regime"].model_dump(mode="json")),
        "linear, fitted to the tables": other(forms["linear"].model_dump(mode="json")),
        f"two_regime and a constant (requests after {FITTED})": lambda: calibrated("two_regime"),
        f"linear and a constant (requests after {FITTED})": lambda: calibrated("linear"),
    }


def main() -> None:
    errors, statistics = [], []
    for name in RUNS:
        run = load_run(DATA / name)
        print(name)
        drawn = {}
        for label, simulated in variants(run).items():
            found = simulated()
            drawn[label] = found
            worst = found.worst
            per_request = found.request_errors()
            values = [found.mean_error, abs(worst.error), *per_request.values()]
            hits = found.details["prefix_hit_tokens"]
            shares = [f"{value:.2%}" for value in values]
            errors.append([name, label, *shares, f"{worst.metric} {worst.name}", hits])
            print(f"  {label}: mean {shares[0]}, worst {shares[1]} ({errors[-1][-2]})")
            statistics += [
                [name, label, each.metric, each.name, f"{each.simulated:.6f}", f"{each.error:.4%}"]
                for each in found.statistics
            ]
        fits = [f"{kind}, fitted to the tables" for kind in ("two_regime", "linear")]
        shown = ("kernel tables", *fits)
        plot_validation({label: drawn[label] for label in shown}, HERE / f"{name}.png", name)
    header = ["run", "variant", "mean_error", "worst_error", "mape_ttft", "mape_tpot"]
    write("errors.csv", [*header, "mape_latency", "worst_statistic", "prefix_hit_tokens"], errors)
    names = ["run", "variant", "metric", "statistic", "simulated_s", "error"]
    write("statistics.csv", names, statistics)


def write(name: str, header: list[str], rows: list[list[Any]]) -> None:
    with (HERE / name).open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerows([header, *rows])


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
