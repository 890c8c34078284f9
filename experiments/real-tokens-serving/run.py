"""Suffix decoding and its hybrid with EAGLE in a server, on real answers.

    SPECSIM_DATA=... python experiments/run.py real-tokens-serving

Writes loads.csv, tau.csv and plots beside this file. It needs the recorded token traces, which are
never shipped.
"""

import csv
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import yaml
from matplotlib import pyplot as plt

from experiments.marks import mark_stability
from specsim.api import Experiment, Request, Summary, load_profile, read_trace, simulate
from specsim.results.stability import together

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data")) / "tokens"
MIX = ("sharegpt", "instructcoder", "gsm8k", "cnn")
WORKLOADS = {"code": ("instructcoder",), "mix": MIX}
LONGEST = 2000  # tokens; four longer answers are loops that end at the limit of 8,192
SEEDS = {"code": (0, 1), "mix": (0,)}
# Requests/s. Of the mix the server manages about 40 without speculation: then 256 run at once, and
# requests begin to wait. The 247 requests of code are too few to fill it.
RATES = {"code": (2, 10, 30, 60, 120), "mix": (1, 5, 10, 20, 30, 40)}
# Microseconds of host time per draft token: the profile's (the paper's), and what specsim's own
# trees take (experiments/real-tokens, drafters.csv), which is also about what Arctic's take.
TOKEN_US = {"20 us": 20.0, "4 us": 4.0}
TAU_HOST = "4 us"
POLICIES = (
    "off", "static", "static:k=5", "static:k=2", "goodput", "turbospec", "draft_goodput",
    "draft_goodput:calibrate=false", "adaptive_verification", "oracle",
)  # fmt: skip
TAUS = (0, 0.5, 1, 1.5, 2, 3, 5, 1000, None)
FALLBACK_LENS = (3, 5)
TAU_RATES = (1, 20)

Row = dict[str, Any]


@cache
def answers(workload: str) -> list[Request]:
    """The requests of some datasets, without the loops."""
    found = [
        request
        for dataset in WORKLOADS[workload]
        for request in read_trace(DATA / f"llama31_8b_{dataset}.jsonl.gz").requests()
    ]
    return [request for request in found if request.output_len <= LONGEST]


def requests(workload: str, rate: float, seed: int) -> list[Request]:
    """Every request once, in random order, at random times."""
    rng = np.random.default_rng([seed, 42])
    found = answers(workload)
    gaps = rng.exponential(size=len(found))
    times = np.cumsum(gaps) / rate
    return [
        replace(found[place], index=index, id=str(index), arrived_at=float(time))
        for index, (place, time) in enumerate(zip(rng.permutation(len(found)), times, strict=True))
    ]


class Case(NamedTuple):
    """One run."""

    workload: str
    rate: float
    seed: int
    profile: str
    policy: Any
    speculation: Row
    acceptance: Row
    max_requests: int | None = None


SUFFIX: Row = {"method": "suffix"}
TOKENS: Row = {"kind": "token_match"}
RECORDED: Row = {"kind": "recorded", "proposer": "eagle"}


def run(case: Case) -> Row:
    base = Experiment.load(HERE / "experiment.yaml")
    experiment = base.replace(
        engine=base.engine.model_dump(exclude_none=True) | {"speculative_config": case.speculation},
        acceptance=case.acceptance,
        policy=case.policy,
        profile=case.profile,
        seed=case.seed,
    )
    chosen = requests(case.workload, case.rate, case.seed)[: case.max_requests]
    summary = Summary(simulate(experiment, requests=chosen)).data
    return {**summary["specsim"], **summary}


def means(rows: Sequence[Row]) -> Row:
    """Average what is of interest over seeds."""
    return {
        "mean_e2el_ms": round(fmean(row["mean_e2el_ms"] for row in rows), 1),
        "mean_tpot_ms": round(fmean(row["mean_tpot_ms"] for row in rows), 3),
        "tokens_per_step": round(fmean(row["tokens_per_step"] for row in rows), 3),
        "output_throughput": round(fmean(row["output_throughput"] for row in rows), 1),
        "stability": together(row["stability"] for row in rows),
        "beyond_valid_range": any("valid range" in w for row in rows for w in row["warnings"]),
    }


def load_cases(profiles: dict[str, str], limit: int | None) -> Iterator[tuple[Row, list[Case]]]:
    for workload, rates in RATES.items():
        for rate in rates:
            for host, profile in profiles.items():
                for policy in POLICIES:
                    cases = [
                        Case(workload, rate, seed, profile, policy, SUFFIX, TOKENS, limit)
                        for seed in SEEDS[workload]
                    ]
                    row = {"workload": workload, "rate": rate, "host": host, "policy": policy}
                    yield row, cases


def hybrids(draft_len: int) -> Iterator[tuple[str, Any, Row, Row]]:
    """Yield name, policy, speculation and acceptance of what is compared with one fallback."""
    eagle = {"method": "eagle3", "num_speculative_tokens": draft_len}
    hybrid = {"method": "hybrid", "lookup": SUFFIX, "fallback": eagle}
    both = {"kind": "per_drafter", "models": {"suffix": TOKENS, "eagle3": RECORDED}}
    yield "off", "off", eagle, RECORDED
    yield "suffix", "static", SUFFIX, TOKENS
    yield "EAGLE", "static", eagle, RECORDED
    for tau in TAUS:
        name = "adaptive" if tau is None else f"tau={tau}"
        yield name, {"kind": "hybrid_suffix", "tau": tau}, hybrid, both


def tau_cases(profile: str, limit: int | None) -> Iterator[tuple[Row, list[Case]]]:
    for rate in TAU_RATES:
        for draft_len in FALLBACK_LENS:
            for name, policy, speculation, acceptance in hybrids(draft_len):
                cases = [
                    Case("mix", rate, seed, profile, policy, speculation, acceptance, limit)
                    for seed in SEEDS["mix"]
                ]
                yield {"rate": rate, "eagle_k": draft_len, "drafter": name}, cases


def host_profiles(folder: Path) -> dict[str, str]:
    """Write the profile with each speed of the host; return their paths."""
    profile = load_profile(Experiment.load(HERE / "experiment.yaml").profile)
    paths = {}
    for host, token_us in TOKEN_US.items():
        data = profile.model_dump(mode="json", exclude_none=True)
        data["drafts"]["suffix"] = {"token_us": token_us}
        path = folder / f"{host.replace(' ', '')}.yaml"
        path.write_text(yaml.safe_dump(data))
        paths[host] = str(path)
    return paths


def main(folder: Path = HERE, workers: int = 2, limit: int | None = None) -> None:
    with TemporaryDirectory() as temporary, ProcessPoolExecutor(workers) as pool:
        profiles = host_profiles(Path(temporary))
        tables = {
            "loads": list(load_cases(profiles, limit)),
            "tau": list(tau_cases(profiles[TAU_HOST], limit)),
        }
        for name, groups in tables.items():
            found = pool.map(run, [case for _, cases in groups for case in cases])
            rows = [{**row, **means([next(found) for _ in cases])} for row, cases in groups]
            with (folder / f"{name}.csv").open("w", newline="") as stream:
                writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            print(f"{name}: {len(rows)} rows", flush=True)
            (draw_loads if name == "loads" else draw_tau)(rows, folder)


def draw_loads(rows: list[Row], folder: Path) -> None:
    """Latency over that without speculation, by load."""
    mpl.use("Agg")
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), constrained_layout=True)
    for row_axes, workload in zip(axes, WORKLOADS, strict=True):
        for axis, host in zip(row_axes, TOKEN_US, strict=True):
            mine = [r for r in rows if (r["workload"], r["host"]) == (workload, host)]
            off = [r["mean_e2el_ms"] for r in mine if r["policy"] == "off"]
            for number, policy in enumerate(POLICIES[1:]):
                own = [r for r in mine if r["policy"] == policy]
                ratios = np.divide([r["mean_e2el_ms"] for r in own], off)
                answers = [r["stability"] for r in own]
                axis.plot(RATES[workload], ratios, f"C{number}-o", markersize=3, label=policy)
                mark_stability(
                    axis, RATES[workload], ratios, answers, color=f"C{number}", markersize=3
                )
            axis.axhline(1.0, color="gray", linewidth=0.8)
            axis.set_xscale("log")
            axis.set_title(f"{workload}, {host} per draft token", fontsize=10)
    for axis in axes[:, 0]:
        axis.set_ylabel("mean end-to-end latency over off")
    for axis in axes[1]:
        axis.set_xlabel("requests/s")
    axes[0, 0].legend(fontsize=7)
    save(figure, folder / "loads.png")


def draw_tau(rows: list[Row], folder: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), constrained_layout=True)
    for axis, rate in zip(axes, TAU_RATES, strict=True):
        for number, draft_len in enumerate(FALLBACK_LENS):
            table = {
                row["drafter"]: row["mean_tpot_ms"]
                for row in rows
                if (row["rate"], row["eagle_k"]) == (rate, draft_len)
            }
            swept = [tau for tau in TAUS if tau is not None and tau < 10]
            colour = f"C{number}"
            axis.plot(swept, [table[f"tau={tau}"] for tau in swept], f"{colour}-o",
                      label=f"hybrid, EAGLE k={draft_len}")  # fmt: skip
            axis.axhline(table["EAGLE"], color=colour, linestyle=":",
                         label=f"EAGLE k={draft_len} alone")  # fmt: skip
            axis.axhline(table["adaptive"], color=colour, linestyle="--", label="adaptive tau")
        axis.axhline(table["suffix"], color="black", linestyle="-.", label="suffix alone")
        axis.set_title(f"{rate} requests/s")
        axis.set_xlabel("tau")
    axes[0].set_ylabel("mean time per output token, ms")
    axes[0].legend(fontsize=8)
    save(figure, folder / "tau.png")


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
