"""SmartSpec figs. 11, 12 and 14: latency over request rate, dataset by dataset.

    python experiments/run.py smartspec-fig11

Writes results.csv, claim.csv and plot.png beside this file, and prints speed-ups as it goes.
"""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib import pyplot as plt

from experiments.marks import mark_stability
from specsim.api import Experiment, Profile, Summary, parse_policies, simulate
from specsim.core.step import StepLoad
from specsim.hardware import GIB, load_gpu, load_model
from specsim.profile import StepCosts
from specsim.results.stability import together

HERE = Path(__file__).parent
COMPUTE, MEMORY = 0.6, 0.8
"""Shares of the data sheet, as in profiles/a100/llama-7b.yaml."""
LAYER_US = 66.0
"""Of a draft pass per layer, beside weights: that profile's 1.0 ms for Llama-160M."""
LONGEST = 7
REPLICATIONS = 2
POLICIES = ["static:k=1", "static:k=3", "static:k=5", "goodput"]
REFERENCES = ["random", "oracle"]  # of fig. 14, at one rate


class Target(NamedTuple):
    model: str
    size: int
    draft: str
    """Empty: prompt lookup."""
    rates: tuple[float, ...]


TARGETS = {
    "7B": Target("vicuna-7b", 1, "llama-160m", (1, 4, 8, 12, 16, 24, 32)),
    "33B": Target("vicuna-33b", 4, "llama-160m", (0.5, 1, 2, 4, 6, 8, 12, 16)),
    "70B": Target("llama-2-70b", 8, "tinyllama-1.1b", (0.5, 1, 2, 4, 6, 8, 12)),
    "Mistral-7B": Target("mistral-7b", 1, "", (1, 4, 8, 12, 16, 24)),
}
PANELS: dict[tuple[str, str], float] = {
    ("7B", "arena"): 0.62,
    ("7B", "sharegpt"): 0.62,
    ("7B", "spider"): 0.62,
    ("33B", "arena"): 0.59,
    ("33B", "sharegpt"): 0.59,
    ("33B", "spider"): 0.59,
    ("70B", "arena"): 0.78,
    ("70B", "sharegpt"): 0.78,
    ("Mistral-7B", "cnn_dailymail"): 0.35,
    ("Mistral-7B", "hagrid"): 0.35,
}
"""Token acceptance rate of each; where it is from says the README."""


def linear(model: str, size: int, fixed_ms: float) -> dict[str, Any]:
    """Return eq. 4 to 7 from the data sheet: alpha per context token, gamma per batched token."""
    shape, gpu = load_model(model), load_gpu("a100-80gb" if size > 1 else "a100")
    assert gpu.memory_gb_per_s is not None
    bandwidth = gpu.memory_gb_per_s * 1e9 * MEMORY
    flops = gpu.peak_tflops["float16"] * 1e12 * COMPUTE
    gamma = 2 * shape.num_parameters / size / flops
    delta = shape.weight_bytes / size / bandwidth
    if size > 1:  # two all-reduces per layer, as in specsim/latency/roofline.py
        assert gpu.interconnect_gb_per_s is not None
        number, hops = 2 * shape.num_hidden_layers, 2 * (size - 1)
        delta += number * (6.6 + 0.6 * hops) * 1e-6
        sent = hops / size * shape.hidden_size * shape.bytes_per_weight
        gamma += number * sent / (gpu.interconnect_gb_per_s * 1e9 * MEMORY)
    return {
        "kind": "linear",
        "alpha_ns": shape.kv_bytes_per_token_and_gpu(size) / bandwidth * 1e9,
        "gamma_us": gamma * 1e6,
        "delta_ms": delta * 1e3 + fixed_ms,
    }


def profile(target: Target) -> Profile:
    drafts: dict[str, Any] = {"ngram": {"target_share": 0.005875}}
    if target.draft:
        draft = load_model(target.draft)
        fixed_ms = LAYER_US * draft.num_hidden_layers / 1e3
        drafts["draft_model"] = {
            "basis": "pass",
            "latency": linear(target.draft, 1, fixed_ms),
            "weights_gib": draft.weight_bytes / GIB,
            "kv_bytes_per_token": draft.kv_bytes_per_token,
        }
    return Profile.model_validate(
        {
            "model": target.model,
            "gpu": "a100-80gb" if target.size > 1 else "a100",
            "tensor_parallel_size": target.size,
            "provenance": {
                "engine": "none; derived from data sheets, not measured",
                "source": "as profiles/a100/llama-7b.yaml",
                "date": "2026-11-22",
            },
            "target": linear(target.model, target.size, 0.0),
            "drafts": drafts,
            "overhead": {"step_ms": 0.5},
            "valid_range": {"context_tokens": 10**7, "batched_tokens": 10**6},
            "reserved_gib": 1.15,
        }
    )


def needed_rate(target: Target, speed_up: float) -> float | None:
    """Return the acceptance rate at which one sequence is served so much faster by its best k.

    To a hundredth; None if no rate will do.
    """
    found = profile(target)
    drafts = tuple(found.drafts[name] for name in ["draft_model" if target.draft else "ngram"])
    costs = StepCosts(found.target, drafts, found.overhead)
    plain = StepCosts(found.target, (), found.overhead).step_time(StepLoad(256, 1, 1), 0)
    times = [costs.step_time(StepLoad(256, 1 + k, 1), k) for k in range(1, LONGEST + 1)]
    for percent in range(1, 100):
        rate = percent / 100
        emitted = [(1 - rate ** (k + 2)) / (1 - rate) for k in range(LONGEST)]
        if max(e * plain / t for e, t in zip(emitted, times, strict=True)) >= speed_up:
            return rate
    return None


def run(panel: tuple[str, str], rate: float, policies: list[str], num_requests: int) -> list[dict]:
    """Return mean latencies and speed-ups of policies on the same requests and luck."""
    name, dataset = panel
    target = TARGETS[name]
    spec = {"method": "draft_model" if target.draft else "ngram", "num_speculative_tokens": LONGEST}
    base = Experiment.load(HERE / "experiment.yaml", [f"workload.num_requests={num_requests}"])
    engine = base.engine.model_dump(mode="json", exclude_none=True)
    base = base.replace(
        workload={
            **base.workload.model_dump(mode="json"),
            "arrivals": {"kind": "poisson", "rate": rate},
            "lengths": {"kind": "dataset", "name": dataset},
        },
        # vLLM of that time verified by batch expansion.
        engine={**engine, "speculative_config": {**spec, "disable_mqa_scorer": True}},
        acceptance={"kind": "bernoulli", "alpha": PANELS[panel]},
    )
    rows: list[dict[str, Any]] = []
    for label, policy in parse_policies(policies).items():
        runs = [
            Summary(simulate(base.replace(policy=policy, seed=seed), profile=profile(target)))
            for seed in range(REPLICATIONS)
        ]
        latency = sum(run.data["mean_e2el_ms"] for run in runs) / len(runs)
        rows.append(
            {
                "target": name,
                "dataset": dataset,
                "rate": rate,
                "policy": label,
                "mean_e2el_ms": round(latency, 1),
                "speed_up": round(rows[0]["mean_e2el_ms"] / latency, 3) if rows else 1.0,
                "stability": together(run.stability for run in runs),
            }
        )
    return rows


def main(
    out: Path = HERE, panels: list[tuple[str, str]] | None = None, requests: int = 300
) -> None:
    rows = []
    for panel in panels or PANELS:
        for number, rate in enumerate(TARGETS[panel[0]].rates):
            policies = POLICIES + (REFERENCES if number == 1 else [])
            rows += run(panel, rate, policies, requests)
            line = {row["policy"]: row["speed_up"] for row in rows[-len(policies) :]}
            print(*panel, rate, line, flush=True)
    with (out / "results.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    claims = [{"target": name, "needed": needed_rate(each, 3.2)} for name, each in TARGETS.items()]
    print("acceptance rate at which one sequence is 3.2 times as fast:", claims)
    with (out / "claim.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, claims[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(claims)
    draw(rows, out)


def draw(rows: list[dict], out: Path) -> None:
    mpl.use("Agg")
    panels = list(dict.fromkeys((row["target"], row["dataset"]) for row in rows))
    figure, axes = plt.subplots(2, 5, figsize=(15, 6), constrained_layout=True)
    for axis, panel in zip(axes.flat, panels, strict=False):
        for policy in POLICIES:
            points = [
                (row["rate"], row["speed_up"], row["stability"])
                for row in rows
                if (row["target"], row["dataset"], row["policy"]) == (*panel, policy)
            ]
            rates, gains, answers = zip(*points, strict=True)
            [line] = axis.plot(rates, gains, "o-", label=policy, markersize=3)
            mark_stability(axis, rates, gains, answers, color=line.get_color(), markersize=3)
        axis.axhline(1.0, color="gray", linewidth=0.8)
        axis.set_title(f"{panel[0]}, {panel[1]}", fontsize=10)
        axis.set_xlabel("requests/s")
    axes.flat[0].set_ylabel("speed-up over no speculation")
    axes.flat[0].legend(fontsize=8)
    figure.savefig(out / "plot.png", dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    main()
