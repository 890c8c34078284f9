"""Real vLLM against its simulation, with speculation on: record, fit, replay, compare.

``make test-vllm`` runs it with vLLM's Python in ``SPECSIM_VLLM_PYTHON``::

    python tests/vllm/run.py --out results/vllm [--cases off draft-3 ...]

Each case is one engine. Two loads are measured for the fit, two others, twice each, for the
comparison. A machine that others use drifts by 10 % and more within a minute, so they take turns:
each run that is compared stands between the two loads that its profile is fitted to. The profile
has seen nothing of it, nor of its requests. Fails if a log is not
complete, or if the median over the compared runs of the mean |error| of 15 statistics is neither
below 5 % nor below what the real server's own two runs differ by: a machine that others use too
can be no better known than it knows itself.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any

from specsim.calibration.run_writer import add_repetition
from specsim.calibration.vllm_runs import VllmRun, record_runs, vllm_python

HERE = Path(__file__).parent
TARGET = 0.05
# Requests per second, and how many.
LOADS = {"fit-low": (2.0, 24), "low": (3.5, 50), "fit-high": (7.0, 60), "high": (5.5, 60)}
ORDER = [
    "fit-low",
    "low",
    "fit-high",
    "high",
    "fit-low-2",
    "low-2",
    "fit-high-2",
    "high-2",
    "fit-low-3",
]
ENGINE = {
    "enforce_eager": True,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 256,
    "max_model_len": 1024,
    "block_size": 32,
    "num_gpu_blocks_override": 600,
    "dtype": "bfloat16",
}
# One thread computes, the other core is left to whatever else the machine does.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}


def cases(models: Path) -> dict[str, tuple[Path, dict[str, Any] | None]]:
    """Return per case the model and how it speculates."""
    found: dict[str, tuple[Path, dict[str, Any] | None]] = {"off": (models / "target", None)}
    ngram = {"method": "ngram", "num_speculative_tokens": 3, **LOOKUP}
    found["ngram-3"] = (models / "repeating", ngram)
    for k in (1, 3, 5):
        draft = {"method": "draft_model", "model": str(models / "draft")}
        found[f"draft-{k}"] = (models / "target", {**draft, "num_speculative_tokens": k})
    return found


def workload(folder: Path, rate: float, count: int, seed: int) -> VllmRun:
    """Return Poisson arrivals of made-up requests."""
    draw, now = random.Random(seed), 0.0
    arrivals, prompts, output_lens = [], [], []
    for _ in range(count):
        now += draw.expovariate(rate)
        arrivals.append(now)
        prompts.append([draw.randrange(2, 4096) for _ in range(draw.randint(20, 300))])
        output_lens.append(draw.randint(10, 100))
    return VllmRun(folder, arrivals, prompts, output_lens)


def record(out: Path, model: Path, speculation: dict[str, Any] | None) -> None:
    """Measure all loads of one case."""
    runs = []
    for name in ORDER:
        load = load_of(name)
        runs.append(workload(out / name, *LOADS[load], seed=1 + list(LOADS).index(load)))
    kwargs = {"model": str(model), **ENGINE}
    if speculation is not None:
        kwargs["speculative_config"] = speculation
    record_runs(runs, kwargs, environment=ENVIRONMENT, timeout_s=900)
    for run in runs:
        check_log(run)
    for load in ("low", "high"):
        add_repetition(out / load, out / f"{load}-2")


def load_of(run: str) -> str:
    """Return the load of a run or of its repetition: ``low`` of ``low-2``."""
    return run.rstrip("-0123456789")


def check_log(run: VllmRun) -> None:
    """Fail unless every request is there, and every token of every step."""
    meta = json.loads((run.folder / "meta.json").read_text())
    rows, steps = (
        [json.loads(line) for line in (run.folder / name).read_text().splitlines()]
        for name in ("requests.jsonl", "steps.jsonl")
    )
    expect(meta["complete"], f"{run.folder}: is not complete")
    expect(meta["num_steps"] == len(steps), f"{run.folder}: steps are missing")
    lens = [len(prompt) for prompt in run.prompts]
    found = sorted(rows, key=lambda row: row["number"])
    expect([row["input_toks"] for row in found] == lens, f"{run.folder}: requests are missing")
    expect([row["output_toks"] for row in found] == list(run.output_lens), "tokens are missing")
    computed = [0] * len(rows)
    for step in steps:
        nothing = [0] * step["num_requests"]
        columns = (step.get("drafted", nothing), step.get("accepted", nothing))
        for number, tokens, drafted, kept in zip(
            step["requests"], step["scheduled"], *columns, strict=True
        ):
            computed[number] += tokens - drafted + kept
    for row in found:
        beyond = sum(
            max(0, position + kept + 1 - row["output_toks"])
            for position, _, kept in row.get("accepted", [])
        )
        wanted = row["input_toks"] + row["output_toks"] - 1 + beyond
        expect(computed[row["number"]] == wanted, f"{run.folder}: {row} computed otherwise")


def expect(condition: object, otherwise: str) -> None:
    if not condition:
        sys.exit(f"FAILED: {otherwise}")


def specsim(*args: object) -> str:
    command = [sys.executable, "-m", "specsim", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def compare(out: Path, model: Path) -> dict[str, dict[str, Any]]:
    """Replay each compared run with a profile fitted to the two runs beside it."""
    found = {}
    for place, name in enumerate(ORDER):
        if name.startswith("fit"):
            continue
        profile, report = out / f"{name}.yaml", out / f"{name}.json"
        beside = [out / ORDER[place - 1], out / ORDER[place + 1]]
        options = ("--model", model / "config.json", "--gpu", "cpu", "--out", profile)
        (out / f"{name}-fit.txt").write_text(specsim("profile", "fit", *beside, *options))
        text = specsim("validate", out / name, "--profile", profile, "--json", report)
        (out / f"{name}.txt").write_text(text)
        found[name] = json.loads(report.read_text())
    for load in ("low", "high"):
        # How far the two runs lie apart is known where both are, in the folder of the first.
        pairs = zip(*(found[name]["statistics"] for name in (load, f"{load}-2")), strict=True)
        for first, second in pairs:
            second["spread"] = first["spread"]
    return found


def summary(case: str, run: str, report: dict[str, Any], out: Path) -> dict[str, Any]:
    meta = json.loads((out / run / "meta.json").read_text())
    statistics = report["statistics"]
    drafts = report["simulation"].get("measured_drafts")
    return {
        "case": case,
        "run": run,
        "requests_per_s": LOADS[load_of(run)][0],
        "mean_abs_error": report["mean_abs_error"],
        "mean_spread": mean(row["spread"] for row in statistics),
        "acceptance": drafts and drafts["accepted_tokens"] / drafts["draft_tokens"],
        "drafts": drafts,
        "simulated_drafts": report["simulation"].get("simulated_drafts"),
        "recorder_share": meta["recorder"]["share_of_steps"],
        "recorder_us_per_step": meta["recorder"]["us_per_step"],
        "mean_step_ms": 1e3 * meta["recorder"]["step_seconds"] / meta["num_steps"],
        "statistics": {
            f"{row['metric']} {row['statistic']}": {
                name: round(row[name], 4)
                for name in ("measured_ms", "simulated_ms", "error", "spread")
            }
            for row in statistics
        },
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    print("\nerror of the simulation (spread of the real server's two runs around their mean), %")
    for case in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == case]
        print(f"\n{case:<14}" + "".join(f"{row['run']:>15}" for row in mine))
        for name in mine[0]["statistics"]:
            cells = (row["statistics"][name] for row in mine)
            texts = (f"{100 * cell['error']:+.1f} ({100 * cell['spread']:.1f})" for cell in cells)
            print(f"{name:<14}" + "".join(f"{text:>15}" for text in texts))
        for name, title in (("mean_abs_error", "mean |error|"), ("mean_spread", "mean spread")):
            print(f"{title:<14}" + "".join(f"{100 * row[name]:>15.1f}" for row in mine))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", nargs="+")
    parser.add_argument("--compare-only", action="store_true", help="the runs are in --out already")
    given = parser.parse_args()
    models = given.out / "models"
    if not models.exists():
        subprocess.run([vllm_python(), HERE / "make_models.py", models], check=True)
    known = cases(models)
    rows = []
    for case in given.cases or known:
        model, speculation = known[case]
        out = given.out / case
        if not given.compare_only:
            print(f"{case}: recording", flush=True)
            record(out, model, speculation)
        found = compare(out, model)
        rows += [summary(case, run, report, out) for run, report in found.items()]
    print_table(rows)
    middle = median(row["mean_abs_error"] for row in rows)
    spread = median(row["mean_spread"] for row in rows)
    print(f"\nmedian over {len(rows)} runs: |error| {middle:.2%}, real spread {spread:.2%}")
    (given.out / "result.json").write_text(json.dumps(rows, indent=1) + "\n")
    apart = 2 * spread  # of the two runs, not of each from their mean
    expect(
        middle < max(TARGET, apart),
        f"the median error {middle:.2%} is neither below {TARGET:.0%} nor below the {apart:.2%} by "
        "which the real runs differ from each other",
    )


if __name__ == "__main__":
    main()
