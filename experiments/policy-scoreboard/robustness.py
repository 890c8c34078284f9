"""Two hundred settings at random: where is `joint` behind no speculation, or behind another policy?

    python experiments/policy-scoreboard/robustness.py

Draws what a user might have: a drafter of each kind (an EAGLE-3 head fitted as whole drafts, a
draft model that pays per pass, suffix trees), alpha from 0.01 to 0.95, the same for all requests,
per request or in regimes, 1 to 60 requests/s, vLLM's V0 and V1 order, prefix caching on and off.
Each setting runs 60 requests once under every policy. Writes robustness.csv and prints the worst
ten against `off` and against the best of the policies that lead elsewhere.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np

from specsim.api import Experiment, compare, parse_policies

HERE = Path(__file__).parent
SETTINGS = 200
REQUESTS = 60
LONGEST = 7
DRAFTERS = {
    "head": ("eagle3", "h100/llama-3.1-8b"),
    "model": ("draft_model", "h100/llama-3.1-8b-kernels"),
    "lookup": ("suffix", "h100/llama-3.1-8b"),
}
RIVALS = ["goodput", "goodput_exact", "draft_goodput"]  # those that lead most often


def setting(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is drawn, and the experiment's fields."""
    rng = np.random.default_rng([20261122, number])
    drafter = [*DRAFTERS][number % 3]
    method, profile = DRAFTERS[drafter]
    alpha = float(rng.uniform(0.01, 0.95))
    varies = ["not", "by request", "in regimes"][rng.integers(3)]
    rate = float(np.exp(rng.uniform(0.0, np.log(60.0))))
    order = ["v1", "prefill_first"][rng.integers(2)]
    caches = bool(rng.integers(2))
    prompt, output = int(rng.integers(50, 1500)), int(rng.integers(30, 300))
    spec: dict[str, Any] = {"method": method, "num_speculative_tokens": LONGEST}
    workload: dict[str, Any] = {
        "arrivals": {"kind": "poisson", "rate": round(rate, 2)},
        "lengths": {
            "kind": "uniform",
            "prompt": [prompt // 2, prompt],
            "output": [output // 2, 2 * output],
        },
        "num_requests": REQUESTS,
    }
    fields = {
        "workload": workload,
        "engine": {
            "scheduler": order,
            "enable_prefix_caching": caches,
            "max_num_seqs": 256,
            "max_model_len": 4096,
            "max_num_batched_tokens": 2048 if order == "v1" else 8192,
            "speculative_config": spec,
            **({"async_scheduling": False} if order == "v1" else {}),
        },
        "acceptance": acceptance(alpha, varies),
        "profile": profile,
        "seed": number,
    }
    drawn = {
        "drafter": drafter,
        "alpha": round(alpha, 3),
        "varies": varies,
        "rate": round(rate, 2),
        "order": order,
        "caches": caches,
        "prompt": prompt,
        "output": output,
    }
    return drawn, fields


def acceptance(alpha: float, varies: str) -> dict[str, Any]:
    if varies == "by request":
        return {"kind": "beta", "a": 4.0 * alpha, "b": 4.0 * (1.0 - alpha)}
    if varies == "in regimes":
        hard, easy = alpha * 0.4, 1.0 - (1.0 - alpha) * 0.4
        regimes = [
            {"weight": max(easy - alpha, 1e-3), "alpha": hard},
            {"weight": max(alpha - hard, 1e-3), "alpha": easy},
        ]
        return {"kind": "markov", "regimes": regimes, "regime_len": 12.0}
    return {"kind": "bernoulli", "alpha": alpha}


def run(base: Experiment, number: int) -> dict[str, Any]:
    drawn, fields = setting(number)
    policies = parse_policies([*RIVALS, "joint"])
    comparison = compare(base.replace(**fields), policies, replications=1, workers=1)
    latencies = {result.label: result.latencies[0] for result in comparison.results}
    best = min((label for label in latencies if label != "joint"), key=lambda x: latencies[x])
    return {
        "setting": number,
        **drawn,
        "best_other": best,
        "behind_off_percent": round(100.0 * (latencies["joint"] / latencies["off"] - 1.0), 2),
        "behind_best_percent": round(100.0 * (latencies["joint"] / latencies[best] - 1.0), 2),
        **{f"{label}_ms": round(value, 1) for label, value in latencies.items()},
    }


def main(numbers: range) -> None:
    base = Experiment.load(HERE / "experiment.yaml")
    rows = []
    for number in numbers:
        rows.append(run(base, number))
        with (HERE / "robustness.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    for name in ("behind_off_percent", "behind_best_percent"):
        values = [row[name] for row in rows]
        over = sum(value > 1.0 for value in values)
        print(f"{name}: worst {max(values)}, over 1 % in {over} of {len(values)} settings")
        for row in sorted(rows, key=lambda row: -row[name])[:10]:
            print("   ", {key: value for key, value in row.items() if not key.endswith("_ms")})


if __name__ == "__main__":
    main(range(int(sys.argv[1])) if len(sys.argv) > 1 else range(SETTINGS))
