"""Numbers of pages that an experiment has found, or that follow from what is shipped."""

import csv
import json
import re
from collections.abc import Iterable
from statistics import median
from typing import Any

import pytest
from conftest import ROOT
from pages import blocks

from specsim.core.step import StepLoad
from specsim.latency.roofline import Roofline
from specsim.profile import load_profile

EXPERIMENTS = ROOT / "experiments"
README = ROOT / "README.md"
FIDELITY = ROOT / "docs" / "explanation" / "fidelity.md"
INDEX = ROOT / "docs" / "index.md"
PROFILES = ROOT / "profiles" / "README.md"


def text_of(path: Any) -> str:
    return " ".join(path.read_text(encoding="utf-8").split())


def rows(file: str) -> list[dict[str, str]]:
    with (EXPERIMENTS / file).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def one(file: str, **where: object) -> dict[str, str]:
    wanted = {name: str(value) for name, value in where.items()}
    [found] = [row for row in rows(file) if wanted.items() <= row.items()]
    return found


def found_by(file: str) -> Any:
    return json.loads((EXPERIMENTS / file).read_text(encoding="utf-8"))


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def test_recordings_of_real_schedulers() -> None:
    own = len([*(ROOT / "tests" / "parity" / "recorded").rglob("*.scenario.json")])
    versions = (ROOT / "docs" / "reference" / "versions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| 0\.\d+ \| ([\d,]+) \| ([\d,]+) \|", versions, re.MULTILINE)
    counts = [[int(each.replace(",", "")) for each in row] for row in rows]
    random, agree = (sum(row[place] for row in counts) for place in range(2))
    said = f"all {own} recordings of `make test`, and in {agree:,} of {random:,} random"
    assert said in text_of(README)
    assert f"all {own} recordings of our own" in text_of(FIDELITY)


def test_the_demo() -> None:
    found = found_by("demo/comparison.json")
    both = [{**each, **each["summaries"][0]} for each in found.values() if isinstance(each, dict)]
    statistics = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
    metrics = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E latency": "e2el"}
    shown = {
        f"{label} {statistic}, ms": [f"{each[f'{key}_{metric}_ms']:,.2f}" for each in both]
        for label, metric in metrics.items()
        for statistic, key in statistics.items()
    }
    shown |= {
        "requests/s": [f"{each['request_throughput']:.3f}" for each in both],
        "output tokens/s": [f"{each['output_throughput']:,.0f}" for each in both],
        "tokens per step": [f"{each['specsim']['tokens_per_step']:.3f}" for each in both],
        "speed-up": [f"{each['speed_up']['mean']:.3f}" for each in both],
    }
    index = text_of(INDEX)
    for label, values in shown.items():
        assert " ".join([label, *values]) in index
    of_readme = next(block.text for block in blocks(README) if block.language == "text")
    for line in of_readme.splitlines():
        assert " ".join(line.split()) in index
    for page in (text_of(README), index):
        assert f"{both[0]['completed']:,} requests, 5 million tokens" in page


def test_the_picture() -> None:
    gains = {
        row["rate"]: float(row["speed_up"])
        for row in rows("speed-up/results.csv")
        if row["policy"] == "static:k=5"
    }
    page = text_of(README)
    assert f"At 7 requests/s, k = 5 answers requests {gains['7.0']:.1f} times as fast" in page
    assert "at 42 requests/s it is slower" in page
    assert gains["42.0"] < 1


def test_published_results() -> None:
    for row in rows("specdecode-bench-batch/results.csv"):
        if row["published_all_requests"]:
            assert float(row["specsim"]) == pytest.approx(
                float(row["published_all_requests"]),
                rel=0.0305,  # 3 %, and half a digit: what is published has two
            )
    [found] = rows("turbospec-tables/evaluation.csv")
    below, above = (found[f"median_error_{side}_percent"] for side in ("below", "above"))
    sign = found["sign_right_percent"]
    assert (
        f"median error {below} % below saturation, {above} % above; sign of the speed-up right in "
        f"{sign} %"
    ) in text_of(README)
    for name, value in (("median error below", below), ("median error above", above)):
        assert f"| {name} saturation | {value} %" in text_of(FIDELITY)
    assert f"| sign of the speed-up right | {sign} %" in text_of(FIDELITY)


def test_crossovers() -> None:
    lines = (EXPERIMENTS / "smartspec-fig1" / "README.md").read_text().splitlines()
    rates = {
        line.split("|")[1].strip(): line.split("|")[2].strip() for line in lines if line[:2] == "| "
    }
    for path in (README, FIDELITY):
        assert f"at {rates['5']} and {rates['3']} |" in text_of(path)


def test_replayed_runs() -> None:
    runs = ("RTX4090-llama-3.1-8b", "RTXPRO6000-llama-3.1-8b")
    small, large = (
        one("real-runs/errors.csv", run=run, variant="kernel tables")["mean_error"].replace(
            "%", " %"
        )
        for run in runs
    )
    assert f"{small} (RTX 4090) and {large} (RTX PRO 6000)" in text_of(README)
    assert f"| kernel tables, no real run used | {small} | {large} |" in text_of(FIDELITY)
    [whole] = [row for row in rows("real-runs/moe.csv") if row["variant"].endswith(": all")]
    assert f"| {percent(float(whole['mean_abs_error']))} %; [one term was added" in text_of(README)


def test_servers() -> None:
    best = [
        100 * each["speculation"]["before"]["best_k_slower_by"]
        for name, each in found_by("gpu-runs/results/errors.json").items()
        if "nvl" not in name
    ]
    assert f"that is called best is at most {max(best):.1f} % slower" in text_of(README)


def test_closed_loops() -> None:
    loops = [
        row
        for row in rows("silicon/results.csv")
        if (row["engine"], row["model"], row["gpu"]) == ("vllm", "Qwen/Qwen3-32B", "h100_sxm")
    ]
    tpot, ttft = (
        [_median(row[f"error_{name}"] for row in loops if row["gpus"] == size) for size in "248"]
        for name in ("tpot", "ttft")
    )
    assert f"| {sum(row['gpus'] in '248' for row in loops)} closed loops" in text_of(README)
    assert (
        f"median error of TPOT {tpot[0]:.1f}, {tpot[1]:.1f} and {tpot[2]:.1f} %, "
        f"of TTFT {ttft[0]:.0f}, {ttft[1]:.0f} and {ttft[2]:.0f} %"
    ) in text_of(README)
    both = [row for row in loops if row["aiconfigurator_tpot"]]
    ours, theirs = (
        [f"{_median(row[f'{who}_{name}'] for row in both):.1f}" for name in ("tpot", "ttft")]
        for who in ("error", "aiconfigurator")
    )
    assert f"on {len(both)} drawn ones {ours[0]} and {ours[1]} %, where" in text_of(README)
    assert f"has {theirs[0]} and {theirs[1]} %" in text_of(README)


def _median(errors: Iterable[str]) -> float:
    return 100 * median(abs(float(error)) for error in errors)


def test_composed_profiles() -> None:
    composed = [
        path
        for path in (ROOT / "profiles").glob("*/*.yaml")
        if "aiconfigurator-core" in path.read_text(encoding="utf-8")
    ]
    gpus = {path.parent.name for path in composed}
    models = {re.sub(r"(-fp8)?(-tp\d)?(-kernels)?$", "", path.stem) for path in composed}
    assert (len(gpus), len(models)) == (10, 17)
    assert "ten GPUs, seventeen models" in text_of(PROFILES)


ROOFLINES = {
    "H100": "h100/llama-3.1-8b-kernels",
    "H200": "h200/llama-3.1-8b",
    "B200": "b200/llama-3.1-8b",
    "A100 80 GB": "a100-80gb/llama-3.1-8b",
    "L40S": "l40s/llama-3.1-8b",
}
LOADS = [
    *(StepLoad(1000 * size, size, size) for size in (1, 8, 64, 256)),
    *(StepLoad(1000 * size, 6 * size, size) for size in (8, 64)),
    StepLoad(0, 2048, 1, 2048),
]


@pytest.mark.parametrize("gpu", ROOFLINES)
def test_rooflines_beside_kernel_tables(gpu: str) -> None:
    composed = load_profile(ROOFLINES[gpu])
    roofline = Roofline(model="llama-3.1-8b", gpu=composed.gpu)
    off = [roofline.forward_time(load) / composed.target.forward_time(load) - 1 for load in LOADS]
    assert f"| {gpu} | {' | '.join(f'{100 * each:+.0f} %' for each in off)} |" in text_of(PROFILES)


def test_the_board() -> None:
    """Of its policies, those that are neither a fixed k nor ours are of papers and engines."""
    names = {row["policy"].partition(":")[0] for row in rows("policy-scoreboard/board.csv")}
    own = {"joint", "joint, asynchronous", "goodput_exact", "draft_goodput"}
    published = names - own - {"off", "static"}
    said = f"{len(published)} controllers of papers and engines and three of ours"
    assert said in text_of(ROOT / "docs" / "how-to" / "policies.md")
