"""What `measure.py` served, simulated: is a policy's gain in a real vLLM the simulated one?

    python experiments/closed-loop/run.py

Reads measured.csv, and the profile and rates that come from recordings of the same server that are
not compared. Writes gains.csv: each policy's mean latency over that of the static draft length that
was best in the measured runs, paired load by load, beside the same ratio simulated.
"""

import argparse
import csv
import json
import sys
from functools import cache
from math import exp, log, sqrt
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any, TextIO

from loads import (
    CELLS,
    LONGEST,
    MAX_NUM_SEQS,
    PLAIN,
    POLICIES,
    STATIC,
    STATIC_LONGEST,
    Cell,
    changes_at,
    requests_of,
)

from specsim.api import Experiment, Summary, load_profile, simulate
from specsim.core.request import Request
from specsim.latency.measured import Linear, TwoRegime
from specsim.profile import Profile
from specsim.profile.model_error import known_spreads
from specsim.study.paired import speed_up

HERE = Path(__file__).parent
LUCKS = 20
AS_SERVED = {"off": f"schedule:ranges=[[1, {MAX_NUM_SEQS}, 0]]"}
"""What policies are there: vLLM's drafter runs its first pass also where nothing is drafted."""
Latencies = dict[str, list[float]]
"""Mean end-to-end latency by policy, one per repetition, milliseconds."""


def measured(cell: Cell) -> Latencies:
    """Return what was measured."""
    with (HERE / "measured.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["cell"] == cell.name]
    return {
        policy: [float(row["mean_e2el_ms"]) for row in rows if row["policy"] == policy]
        for policy in POLICIES
    }


@cache
def run_spread() -> float:
    """Return by how much the machine makes a whole run slower or faster: a spread of logarithms.

    Of batches that two schedulers with the same k served in turn; see PROTOCOL.md.
    """
    with (HERE / "throughput.csv").open(newline="") as file:
        speeds = {(row["pair"], row["scheduler"]): float(row["tokens_per_s"])
                  for row in csv.DictReader(file)}  # fmt: skip
    pairs = sorted({pair for pair, _ in speeds})
    ratios = [speeds[pair, STATIC_LONGEST] / speeds[pair, PLAIN] for pair in pairs]
    return stdev(map(log, ratios)) / sqrt(2)


@cache
def server() -> dict[str, Any]:
    """Return what is known of the server."""
    found: dict[str, Any] = json.loads((HERE / "server.json").read_text())
    return found


def experiment(
    cell: Cell, policy: str, num_requests: int, luck: int, *, serves_all: bool
) -> Experiment:
    """Return the simulation of a load."""
    engine = {**server()["engine"], "drafter_serves_all": serves_all}
    for name in ("dtype", "enforce_eager"):
        del engine[name]
    engine["num_gpu_blocks"] = engine.pop("num_gpu_blocks_override")
    speculation = {"method": "draft_model", "num_speculative_tokens": LONGEST}
    rates = {
        kind: {"kind": "per_position", "conditional_rates": each}
        for kind, each in server()["conditional_rates"].items()
    }
    half = {"before": rates[cell.before], "after": rates[cell.after]}
    fields = {
        "workload": {
            "arrivals": {"kind": "burst"},
            "num_requests": num_requests,
            "lengths": {"kind": "uniform", "prompt": [1, 2], "output": [1, 2]},
        },  # in whose place are those that were served
        "engine": {**engine, "speculative_config": speculation},
        "acceptance": {"kind": "shift", "at_request": changes_at(num_requests), **half},
        "profile": str(HERE / "profile.yaml"),
        "policy": AS_SERVED.get(policy, policy),
        "seed": luck,
    }
    return Experiment.parse(fields, cell.name)


def off_by(profile: Profile, target: float, drafting: float) -> Profile:
    """Return a profile by which passes take so many times as long."""
    passes, [(name, cost)] = profile.target, profile.drafts.items()
    assert isinstance(passes, TwoRegime)
    assert isinstance(cost.latency, Linear)
    slower = {part: _slower(getattr(passes, part), target) for part in ("decode", "mixed")}
    draft = cost.model_copy(update={"latency": _slower(cost.latency, drafting)})
    changes = {"target": passes.model_copy(update=slower), "drafts": {name: draft}}
    return profile.model_copy(update=changes)


def _slower(passes: Linear, factor: float) -> Linear:
    names = ("alpha_ns", "gamma_us", "delta_ms")
    return passes.model_copy(update={each: factor * getattr(passes, each) for each in names})


def simulated(cell: Cell, repetitions: int, *, serves_all: bool) -> list[Latencies]:
    """Return what is simulated, once per luck, of the loads that were measured."""
    profile, believed = (load_profile(str(HERE / f"{n}.yaml")) for n in ("profile", "believed"))
    loads = [
        [
            Request(number, len(each.prompt), each.output_len, each.at)
            for number, each in enumerate(requests_of(cell, repetition))
        ]
        for repetition in range(repetitions)
    ]
    rest = known_spreads().rest

    def latency(policy: str, repetition: int, luck: int) -> float:
        load, world = loads[repetition], Random(luck)
        alike = exp(Random(f"{luck} {policy} {repetition}").gauss(0.0, run_spread()))
        target, drafting = (alike * exp(world.gauss(0.0, rest)) for _ in range(2))
        run = experiment(cell, policy, len(load), luck * 100 + repetition, serves_all=serves_all)
        real = off_by(profile, target, drafting)
        found: float = Summary(simulate(run, requests=load, profile=real, believed=believed)).data[
            "mean_e2el_ms"
        ]
        return found

    numbers = range(repetitions)
    return [
        {policy: [latency(policy, n, luck) for n in numbers] for policy in POLICIES}
        for luck in range(LUCKS)
    ]


def gains(cell: Cell, *, serves_all: bool) -> list[dict[str, Any]]:
    """Return each policy's gain over the static draft length that was measured to be best."""
    real = measured(cell)
    best = min(STATIC, key=lambda policy: fmean(real[policy]))
    worlds = simulated(cell, len(real["off"]), serves_all=serves_all)
    rows = []
    for policy in (each for each in POLICIES if each != best):
        found = speed_up(real[best], real[policy])
        by_luck = [speed_up(world[best], world[policy]).mean for world in worlds]
        middle, half = fmean(by_luck), 1.96 * stdev(by_luck)
        row = {
            "cell": cell.name, "policy": policy, "over": best,
            "measured": found.mean, "measured_low": found.low, "measured_high": found.high,
            "simulated": middle, "simulated_low": middle - half, "simulated_high": middle + half,
            "measured_ms": fmean(real[policy]),
            "simulated_ms": fmean(fmean(world[policy]) for world in worlds),
        }  # fmt: skip
        rows.append({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--may-let-go", action="store_true", help="policies may; only printed")
    may_let_go = parser.parse_args().may_let_go
    rows = [row for cell in CELLS for row in gains(cell, serves_all=not may_let_go)]
    if may_let_go:
        return write(rows, sys.stdout)
    with (HERE / "gains.csv").open("w", newline="") as file:
        return write(rows, file)


def write(rows: list[dict[str, Any]], file: TextIO) -> None:
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


if __name__ == "__main__":
    main()
