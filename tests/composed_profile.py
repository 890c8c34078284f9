"""A small composed profile, and tables whose values are those that it simulates."""

import csv
from pathlib import Path
from typing import Any

from specsim.profile import Profile
from specsim.reality.profile_fit.run_fit import changed
from specsim.reality.validation import predict, read_table

ATTENTION = {
    "num_layers": 32,
    "context_tokens": [1, 256, 1024, 8192],
    "sequences": [1, 16, 64],
    "decode_us": [[8, 9, 10], [9, 20, 70], [10, 60, 220], [18, 400, 1700]],
    "prompt": {"at": [16, 1024, 8192], "times_us": [8, 60, 3000]},
}
TARGET = {
    "kind": "composed",
    "batched_tokens": [1, 64, 256, 8192],
    "read_us": [6000, 6000, 6000, 6000],
    "compute_us": [0, 900, 3500, 110_000],
    "head": {"at": [1, 256], "times_us": [300, 400]},
    "attention": [ATTENTION],
}
DRAFTER = {
    **TARGET,
    "read_us": [200, 200, 200, 200],
    "compute_us": [0, 30, 110, 3500],
    "attention": [{**ATTENTION, "num_layers": 1}],
    "samples_drafts": False,
}
START = Profile.model_validate(
    {
        "model": "llama-3.1-8b",
        "gpu": "h100",
        "provenance": {"engine": "made up", "source": "made up", "date": "2026-01-01"},
        "target": TARGET,
        "drafts": {"eagle3": {"latency": DRAFTER, "weights_gib": 0.8}},
        "overhead": {"front_ms": 3.0},
        "valid_range": {"context_tokens": 400_000, "batched_tokens": 16384},
        "reserved_gib": 1.15,
    }
)
TRUE = {
    ("target", "compute_factor"): 1.25,
    ("target", "read_factor"): 1.1,
    ("target", "verify_factor"): 1.8,
    ("overhead", "front_ms"): 8.0,
    ("drafts", "eagle3", "latency", "fixed_us"): 150.0,
    ("drafts", "eagle3", "step_ms"): 1.5,
}
"""What the fit has to find, by its place in the profile."""
ROW = {
    "model": "Llama-3.1-8B-Instruct",
    "gpu": "H100",
    "tp": "1",
    "engine": "vllm",
    "engine_version": "0.24.0",
    "quantisation": "fp16",
    "isl": "700",
    "osl": "uniform 60..140",
    "max_num_seqs": "64",
    "num_gpu_blocks": "20000",
    "max_model_len": "8192",
    "max_num_batched_tokens": "2048",
    "num_prompts": "40",
}
RATES = ("0.7", "0.5", "0.35", "0.25", "0.18")


def row(run_id: str, clients: int, k: int, **cells: str) -> dict[str, str]:
    """Return the cells of a row that describe it."""
    drafts = {"method": "eagle3", "accept_rate_per_pos": ";".join(RATES[:k])} if k else {}
    load = {"concurrency": str(clients), "num_speculative_tokens": str(k)}
    return {"run_id": run_id, **ROW, "method": "none", **load, **drafts, **cells}


def write_table(path: Path, rows: list[dict[str, str]]) -> Path:
    names = list(dict.fromkeys(name for each in rows for name in each))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)
    return path


def simulated_table(path: Path, rows: list[dict[str, str]], profile: Profile) -> Path:
    """Write a table whose measured values are those that a profile simulates."""
    runs = read_table(write_table(path, [{**each, "output_tok_s": "1"} for each in rows]))
    found = predict(runs, profile)
    metrics = ("output_tok_s", "tpot_mean_ms", "itl_p50_ms", "ttft_p50_ms", "e2e_mean_ms")
    return write_table(
        path,
        [
            {**each, **{name: repr(one.values[name]) for name in (*metrics, "engine_steps")}}
            for each, one in zip(rows, found, strict=True)
        ],
    )


def truth(**more: Any) -> Profile:
    """Return the profile that the runs were made with."""
    return changed(START, {**TRUE, **more})
