"""TurboSpec's figures 9 to 11, 13 and 14, and its memory claim.

    SPECSIM_DATA=... python experiments/run.py turbospec-adaptation

Writes fixed.csv, offline.csv, changes.csv, memory.csv and cdf.png beside this file. Figures 13 and
14 need the recorded token traces, which are never shipped.
"""

import csv
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import NDArray

from specsim.api import Experiment, Profile, Request, Summary, read_trace, simulate
from specsim.hardware import load_model

sys.path.insert(0, str(Path(__file__).parents[1] / "turbospec-tables"))
from servers import BESIDE, Parameters, profile  # they lie beside that experiment

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SPECSIM_DATA", HERE.parents[2] / "shared" / "data")) / "tokens"
CONFIGS = ("off", "k=1", "k=3", "k=5", "k=7", "TS")
CHANGING = ("off", "k=1", "k=3", "k=5", "TS")
LONGEST = 7  # tokens: of TurboSpec in fig. 10
ALPHAS = (0.5, 0.7, 0.9)
BATCHES = (1, 4, 8, 16, 32, 64)
SHAPES = {"l40s": (256, 256), "h100": (1024, 128)}  # prompt and output of fig. 11
NUM_OFFLINE = 300
RATES = ((40, 1), (40, 16), (40, 48))  # seconds, requests/s (section 7.2)
SHIFT = (60, 16)  # of each dataset; the paper gives no rate
LOOP = 2000  # tokens; longer answers end at the limit of 8,192
# Of the servers fitted to Org and k = 1 of table 4 and 5 (turbospec-tables/parameters.csv):
# Vicuna-7B on the L40S; on the H100 those of Vicuna-33B, the smallest that was measured there.
FITTED = {
    "l40s": Parameters(compute=0.8675, memory=0.9979, host_us=55.14, request_us=321.5),
    "h100": Parameters(compute=0.8527, memory=0.9883, host_us=48.06, request_us=298.5),
}

Row = dict[str, Any]


def policy(config: str) -> Row:
    if config == "off":
        return {"kind": "off"}
    return {"kind": "turbospec"} if config == "TS" else {"kind": "static", "k": int(config[2:])}


@cache
def server(gpu: str, host: str = "fitted") -> Profile:
    """Llama-2-7B with a draft model of 160M, with or without host time per drafted sequence."""
    found = FITTED[gpu] if host == "fitted" else replace(FITTED[gpu], request_us=0.0)
    [where] = [each for each in BESIDE if each.gpu == gpu]
    return profile(where, found)


class Case(NamedTuple):
    config: str
    requests: list[Request]
    acceptance: Row
    drafter: Row
    profile: Profile | None = None


def run(case: Case) -> Summary:
    base = Experiment.load(HERE / "experiment.yaml")
    engine = base.engine.model_dump(mode="json", exclude_none=True)
    speculation = {"num_speculative_tokens": LONGEST, **case.drafter}
    experiment = base.replace(
        engine={**engine, "speculative_config": speculation},
        acceptance=case.acceptance,
        policy=policy(case.config),
    )
    return Summary(simulate(experiment, requests=case.requests, profile=case.profile))


# Fixed acceptance: figures 9 to 11


def burst(count: int, prompt_len: int, output_len: int) -> list[Request]:
    return [Request(index, prompt_len, output_len) for index in range(count)]


def fixed(batches: Sequence[int] = BATCHES) -> list[Row]:
    """Figures 9 and 10: so many requests at once, 256 tokens in, 256 out."""
    rows = []
    for gpu, alpha, batch in product(FITTED, ALPHAS, batches):
        base = 0.0
        for config in CONFIGS:
            acceptance = {"kind": "bernoulli", "alpha": alpha}
            method = {"method": "draft_model"}
            case = Case(config, burst(batch, 256, 256), acceptance, method, server(gpu))
            summary = run(case)
            data, found = summary.data, summary.tables.requests
            base = base or data["mean_e2el_ms"]
            row = {"gpu": gpu, "alpha": alpha, "batch": batch, "config": config}
            row["speed_up"] = round(base / data["mean_e2el_ms"], 4)
            row["mean_k"] = round(float(found["draft_tokens"].sum() / found["deliveries"].sum()), 3)
            rows.append(row)
    return rows


def offline(count: int = NUM_OFFLINE) -> list[Row]:
    """Figure 11: all requests at once, output tokens per second."""
    rows = []
    for (gpu, shape), host, alpha in product(SHAPES.items(), ("fitted", "none"), ALPHAS):
        base = 0.0
        acceptance, method = {"kind": "bernoulli", "alpha": alpha}, {"method": "draft_model"}
        for config in CONFIGS:
            case = Case(config, burst(count, *shape), acceptance, method, server(gpu, host))
            data = run(case).data
            base = base or data["output_throughput"]
            row = {"gpu": gpu, "prompt": shape[0], "output": shape[1], "host": host, "alpha": alpha}
            gain = round(data["output_throughput"] / base, 4)
            rows.append({**row, "config": config, "speed_up": gain})
    return rows


# Changing load and changing data: figures 13 and 14


@cache
def answers(dataset: str) -> tuple[Request, ...]:
    found = read_trace(DATA / f"llama31_8b_{dataset}.jsonl.gz").requests()
    return tuple(request for request in found if request.output_len <= LOOP)


def stream(segments: Sequence[tuple[str, float, float]], seed: int = 0) -> list[Request]:
    """Requests of some datasets, at random times; they come again when all have been asked."""
    rng = np.random.default_rng([seed, 14])
    found: list[Request] = []
    start = 0.0
    for dataset, seconds, rate in segments:
        times = start + np.sort(rng.uniform(0, seconds, round(seconds * rate)))
        known = answers(dataset)
        order = np.concatenate(
            [rng.permutation(len(known)) for _ in range(len(times) // len(known) + 1)]
        )
        for place, time in zip(order, times, strict=False):
            index = len(found)
            found.append(replace(known[place], index=index, id=str(index), arrived_at=float(time)))
        start += seconds
    return found


EAGLE: tuple[Row, Row] = ({"kind": "recorded", "proposer": "eagle"}, {"method": "eagle3"})
LOOKUP: tuple[Row, Row] = (
    {"kind": "token_match"},
    {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
)


def panels() -> Iterator[tuple[str, tuple[Row, Row], list[tuple[str, float, float]]]]:
    for dataset in ("instructcoder", "sharegpt"):
        yield f"13: EAGLE, {dataset}", EAGLE, [(dataset, *each) for each in RATES]
    yield "13: PLD, instructcoder", LOOKUP, [("instructcoder", *each) for each in RATES]
    shift = [("instructcoder", *SHIFT), ("sharegpt", *SHIFT)]
    yield "14: EAGLE, instructcoder to sharegpt", EAGLE, shift
    yield "14: PLD, instructcoder to sharegpt", LOOKUP, shift


def changes() -> tuple[list[Row], dict[str, dict[str, NDArray[np.float64]]]]:
    rows, curves = [], dict[str, dict[str, NDArray[np.float64]]]()
    for panel, (acceptance, method), segments in panels():
        requests = stream(segments)
        curves[panel] = {}
        for config in CHANGING:
            found = run(Case(config, requests, acceptance, method)).tables.requests
            latencies = found["ended_at"] - found["arrived_at"]
            curves[panel][config] = np.sort(latencies)
            quantiles = {
                f"p{q}_s": round(float(np.percentile(latencies, q)), 3) for q in (50, 90, 99)
            }
            row = {"panel": panel, "config": config, "requests": len(requests)}
            rows.append({**row, "mean_s": round(float(latencies.mean()), 3), **quantiles})
        print(f"{panel}: done", flush=True)
    return rows, curves


# Memory: figure 16 (a)


def memory(context: int = 512) -> list[Row]:
    """Vicuna-160M and its KV cache, of all memory in use, for sequences of so many tokens."""
    target, draft = load_model("llama-2-7b"), load_model("vicuna-160m")
    rows = []
    for batch in (1, 2, 4, 8, 16, 32, 64, 128):
        tokens = batch * context
        mine = draft.weight_bytes + tokens * draft.kv_bytes_per_token
        all_bytes = mine + target.weight_bytes + tokens * target.kv_bytes_per_token
        share = {"of_memory_in_use": round(mine / all_bytes, 4)}
        share["of_80_gb"] = round(mine / 80e9, 4)
        rows.append({"batch": batch, "context": context, "draft_gb": round(mine / 1e9, 3), **share})
    return rows


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as stream_:
        writer = csv.DictWriter(stream_, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(folder: Path = HERE) -> None:
    write(folder / "memory.csv", memory())
    write(folder / "fixed.csv", fixed())
    write(folder / "offline.csv", offline())
    print("fixed acceptance: done", flush=True)
    rows, curves = changes()
    write(folder / "changes.csv", rows)
    draw(curves, folder)


def draw(curves: dict[str, dict[str, NDArray[np.float64]]], folder: Path) -> None:
    mpl.use("Agg")
    figure, axes = plt.subplots(
        1, len(curves), figsize=(4 * len(curves), 3.8), constrained_layout=True
    )
    for axis, (panel, found) in zip(axes, curves.items(), strict=True):
        for config, latencies in found.items():
            shares = (np.arange(len(latencies)) + 1) / len(latencies)
            width = 2.2 if config == "TS" else 1.2
            axis.plot(latencies, shares, label=config, linewidth=width)
        axis.set_title(panel, fontsize=9)
        axis.set_xlabel("latency, s")
        axis.set_xscale("log")
    axes[0].set_ylabel("share of requests")
    axes[0].legend(fontsize=8)
    figure.savefig(folder / "cdf.png", dpi=100, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
