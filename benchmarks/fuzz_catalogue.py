"""Commands that read files, by kind, with valid files for them."""

import functools
import json
import os
from pathlib import Path
from typing import Any

from fuzz_contents import BENCH, CHAT, MEASURED, PRICES, RUNS, STEPS, TOKENIZER, TOKENS
from fuzz_values import BASE

Files = dict[str, Any]
"""By name, what each holds: values, rows, or text."""
ROOT = Path(__file__).resolve().parents[1]
QUICK = {**BASE, "workload": {**BASE["workload"], "num_requests": 6}}
# `capacity` makes its runs longer until the answer stands still. With sessions or offloading, on
# two GPUs, these are a million requests, all of them needed: half a minute, at 30 us each.
SEARCHED = ["--max-requests", "2000", "--replications", "2"]
STUDIES: list[list[str]] = [
    ["compare", "e.yaml", "--policies", "off", "static:k=2", "--replications", "2", "--out", "OUT"],
    ["tune", "e.yaml", "--replications", "2", "--max-k", "2", "--out", "OUT"],
    [
        "capacity",
        "e.yaml",
        "--slo",
        "ttft:500,tpot:50",
        "--policies",
        "off",
        "--out",
        "OUT",
        *SEARCHED,
    ],
    [
        "capacity",
        "e.yaml",
        "--slo",
        "e2el:9000",
        "--gpus",
        "h100,l40s",
        "--qps",
        "10",
        "--prices",
        "prices.yaml",
        *SEARCHED,
    ],
    ["split", "e.yaml", "--gpus", "2", "--out", "OUT"],
    ["run", "e.yaml", "--seed", "3", "--check", "--out", "OUT"],
    [
        "plan",
        "--vllm",
        "vllm serve Qwen/Qwen3-8B",
        "--qps",
        "1",
        "--gpus",
        "h100",
        "--traffic",
        "chat",
        "--prices",
        "prices.yaml",
        "--acceptance",
        "ACCEPTANCE",
    ],
]


def _shipped(path: str) -> Any:
    import yaml

    return yaml.safe_load((ROOT / "profiles" / path).read_text())


@functools.cache
def catalogue() -> dict[str, tuple[Files, list[list[str]]]]:
    """Return by kind the files of a case, and the commands that read them."""
    scenario = json.loads((ROOT / "tests/parity/recorded/random-26.scenario.json").read_text())
    log = json.loads((ROOT / "tests/parity/recorded/random-26.log.json").read_text())
    result = Path(os.environ["FUZZ_RESULTS"]).parent / "baseline.json"
    fields = {"model": "llama-3.1-8b", "gpu": "h100"}
    made = [f"--{name}={value}" for name, value in fields.items()]
    suite = {"base": QUICK, "scenarios": {"a": {"policy": "off"}}, "replications": 2}
    sweep = {"base": QUICK, "axes": [{"policy": ["off", "static:k=2"]}, {"replicas": [1, 2]}]}
    acceptance = _shipped("acceptance/llama-3.1-8b/eagle/sharegpt.yaml")
    return {
        "studies": ({"e.yaml": QUICK, "prices.yaml": PRICES}, STUDIES),
        "gates": (
            {"suite.yaml": suite, "b.json": json.loads(result.read_text())},
            [
                ["gate", "b.json", "suite.yaml", "--json", "OUT", "--junit", "g.xml"],
                ["gate", "b.json", "b.json", "--tolerance", "mean_e2el_ms=2%"],
                ["gate", "--update", "OUT", "suite.yaml", "--date", "2026-01-01"],
            ],
        ),
        "sweeps": (
            {"s.yaml": sweep},
            [
                ["sweep", "s.yaml", "--out", "OUT", "--keep-going"],
                ["sweep", "s.yaml", "--out", "OUT"],
            ],
        ),
        "profiles": (
            {
                "p.yaml": _shipped("h100/llama-3.1-8b.yaml"),
                "e.yaml": {**QUICK, "profile": "./p.yaml"},
                "steps.csv": STEPS,
            },
            [
                ["run", "e.yaml"],
                ["profile", "show", "./p.yaml"],
                ["compare", "e.yaml", "--policies", "off"],
                ["profile", "show", "./p.yaml", "--steps", "steps.csv"],
                ["run", "e.yaml", "--set", "policy=goodput", "--set", "replicas=2"],
            ],
        ),
        "composed": (
            {
                "p.yaml": _shipped("a100-80gb/llama-3.1-8b.yaml"),
                "e.yaml": {**QUICK, "profile": "./p.yaml"},
                "runs.csv": RUNS,
            },
            [
                ["run", "e.yaml"],
                ["profile", "show", "./p.yaml"],
                ["validate", "runs.csv", "--profile", "./p.yaml"],
            ],
        ),
        "models": (
            {
                "m.json": _shipped("llama-3.1-8b.json"),
                "g.yaml": _shipped("h100.yaml"),
                "moe.json": _shipped("mixtral-8x7b.json"),
                "window.json": _shipped("gemma-4-31b.json"),
            },
            [
                ["profile", "roofline", "--model", name, "--gpu", gpu, "--out", "OUT"]
                for name in ("m.json", "moe.json", "window.json")
                for gpu in ("g.yaml", "h100")
            ]
            + [
                ["profile", "build", "--model", name, "--gpu", "h100", "--out", "OUT"]
                for name in ("m.json", "moe.json", "window.json")
            ],
        ),
        "tokenizers": (
            {"t.json": TOKENIZER, "chat.jsonl": CHAT},
            [["tokens", "from-text", "chat.jsonl", "--tokenizer", "t.json", "--out", "OUT.jsonl"]],
        ),
        "tokens": (
            {"t.jsonl": TOKENS},
            [
                [
                    "acceptance",
                    "fit",
                    "t.jsonl",
                    "--proposer",
                    "eagle",
                    "--k",
                    "3",
                    "--json",
                    "OUT",
                    "--preset",
                    "preset.yaml",
                ],
                ["tokens", "describe", "t.jsonl"],
                ["trace", "describe", "t.jsonl"],
                ["trace", "convert", "t.jsonl", "OUT"],
                ["draft-eval", "--proposer", "suffix", "--tokens", "t.jsonl"],
                [
                    "draft-eval",
                    "--proposer",
                    "ngram_gpu",
                    "--tokens",
                    "t.jsonl",
                    "--grid",
                    "num_speculative_tokens=1,2",
                ],
            ],
        ),
        "tables": (
            {
                "runs.csv": RUNS,
                "runs.parquet": RUNS,
                "bench.json": BENCH,
                "many.jsonl": [BENCH, BENCH],
            },
            [
                [*command, name]
                for name in ("runs.csv", "runs.parquet", "bench.json", "many.jsonl")
                for command in (
                    ["validate", "--profile", "a100-80gb/llama-3.1-8b", "--json", "OUT"],
                    ["profile", "fit", "--start", "a100-80gb/llama-3.1-8b", "--out", "OUT"],
                )
            ],
        ),
        "steps": (
            {f"steps.{suffix}": STEPS for suffix in ("csv", "parquet", "jsonl")},
            [
                ["profile", "fit", f"steps.{suffix}", *made, *kind, "--out", "OUT"]
                for suffix in ("csv", "parquet", "jsonl")
                for kind in ([], ["--kind", "linear"])
            ],
        ),
        "measured": (
            {f"run/{name}": value for name, value in MEASURED.items()},
            [
                ["validate", "run", "--profile", "h100/llama-3.1-8b", "--json", "OUT"],
                ["profile", "fit", "run", *made, "--out", "OUT"],
                ["trace", "describe", "run/requests.jsonl"],
            ],
        ),
        "parities": (
            {"s.json": scenario, "l.json": log},
            [
                ["parity", "s.json"],
                ["parity", "s.json", "--log", "l.json"],
                ["parity", "s.json", "--out", "OUT"],
            ],
        ),
        "presets": (
            {
                "profiles/acceptance/mine.yaml": acceptance,
                "e.yaml": {**QUICK, "acceptance": {"kind": "preset", "name": "mine"}},
            },
            [["run", "e.yaml"], ["tune", "e.yaml", "--replications", "2"]],
        ),
    }


KINDS_OF_FILES = (
    "studies",
    "gates",
    "sweeps",
    "profiles",
    "composed",
    "models",
    "tokenizers",
    "tokens",
    "tables",
    "steps",
    "measured",
    "parities",
    "presets",
)
