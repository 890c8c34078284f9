"""Predict runs of a real vLLM on an H200, under the profile as built and under one of its steps.

    python experiments/vllm-h200/run.py            # writes errors.csv, decodes.csv, replays.csv
    python experiments/vllm-h200/run.py --fit      # and profiles/h200/llama-3.1-8b-vllm.yaml

The loads named in ``FITTED`` make the second profile, by `specsim profile fit`; the others are held
out.
"""

import argparse
import csv
import gzip
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from specsim.core.step import StepLoad
from specsim.profile import Profile, load_profile
from specsim.reality.validation import (
    Prediction,
    Replaced,
    Replayer,
    compose,
    load_run,
    read_table,
    replay,
)

HERE = Path(__file__).parent
MODEL, GPU = "llama-3.1-8b", "h200"
BUILT, OF_STEPS = f"{GPU}/{MODEL}", f"{GPU}/{MODEL}-vllm"
PROFILE = HERE.parents[1] / "profiles" / f"{OF_STEPS}.yaml"
FITTED = ("clients-8", "clients-128", "long-prompts")
KNOWN = ("off", "eagle3-1", "eagle3-3", "eagle3-5")
"""Engines whose steps make the profile: the draft model had one length only, which cannot be told
from the rest of a step."""
METRICS = ("output_tok_s", "tpot_mean_ms", "itl_p50_ms", "ttft_p50_ms", "e2e_mean_ms")
SEQUENCES = (1, 4, 8, 16, 32, 64, 128, 256)
LONG = 4000  # context tokens per sequence

Row = dict[str, Any]


def measured_steps() -> list[Row]:
    with gzip.open(HERE / "steps.csv.gz", "rt", newline="") as stream:
        return [
            {key: text if key in ("engine", "load") else float(text) for key, text in row.items()}
            for row in csv.DictReader(stream)
        ]


def fit() -> None:
    """Fit a profile to the steps of some loads, as a user would to recordings of their own."""
    folders = defaultdict(list)
    for step in measured_steps():
        if step["engine"] in KNOWN and step["load"] in FITTED:
            folders[step["engine"], step["load"]].append(step)
    with TemporaryDirectory() as scratch:
        for (engine, load), steps in folders.items():
            folder = Path(scratch) / f"{engine}_{load}"
            folder.mkdir()
            lines = (json.dumps(step) + "\n" for step in steps)
            (folder / "steps.jsonl").write_text("".join(lines))
            options = {"speculative_config": _speculation(engine)} if engine != "off" else {}
            (folder / "meta.json").write_text(json.dumps({"engine_kwargs": options}))
        made = Path(scratch) / "profile.yaml"
        sources = sorted(str(path) for path in Path(scratch).iterdir() if path.is_dir())
        command = [sys.executable, "-m", "specsim", "profile", "fit", *sources]
        command += ["--model", MODEL, "--gpu", GPU, "--out", str(made)]
        subprocess.run(command, check=True)
        fields = yaml.safe_load(made.read_text())
    fields["provenance"] |= {
        "engine": "vLLM 0.22.1, asynchronous scheduling, weights made up",
        "source": f"experiments/vllm-h200, loads {', '.join(FITTED)}",
        "date": "2026-11-29",
    }
    PROFILE.write_text(yaml.safe_dump(fields, sort_keys=False, width=100))


def _speculation(engine: str) -> Row:
    method, _, k = engine.rpartition("-")
    return {"method": method, "num_speculative_tokens": int(k)}


def errors_of(predictions: list[Prediction], profile: str) -> Iterator[Row]:
    """Yield measured and predicted values; where kernels were compiled, only the median ITL."""
    for found in predictions:
        engine, _, load = found.run.run_id.partition("/")
        for metric in METRICS:
            if found.run.cells["compiled_s"] and metric != "itl_p50_ms":
                continue
            yield {
                "profile": profile,
                "engine": engine,
                "load": load,
                "metric": metric,
                "measured": found.run.measured[metric],
                "predicted": round(found.values[metric], 4),
            }


def decodes(profile: Profile) -> Iterator[Row]:
    """Yield what steps without prompts took, by the sequences in them, and what is predicted.

    A step after one with prompts is left out: launches of such a step delay the output before it.
    """
    found: dict[tuple[str, bool, int], list[Row]] = defaultdict(list)
    steps = measured_steps()
    for before, step in pairwise(steps):
        if before["prefill_tokens"] or step["prefill_tokens"]:
            continue
        size = next(size for size in SEQUENCES if step["num_requests"] <= size)
        is_long = step["context_tokens"] > LONG * step["num_requests"]
        found[step["engine"], is_long, size].append(step)
    for (engine, is_long, size), mine in sorted(found.items()):
        times = 1e3 * np.array([step["seconds"] for step in mine])
        low, middle, high = np.quantile(times, (0.1, 0.5, 0.9))
        predicted = np.median([_predicted_ms(profile, engine, step) for step in mine])
        yield {
            "engine": engine,
            "contexts": "long" if is_long else "short",
            "sequences_up_to": size,
            "steps": len(mine),
            "batched_tokens": round(float(np.mean([step["batched_tokens"] for step in mine])), 1),
            "p10_ms": round(float(low), 3),
            "p50_ms": round(float(middle), 3),
            "p90_ms": round(float(high), 3),
            "predicted_ms": round(float(predicted), 3),
        }


def _predicted_ms(profile: Profile, engine: str, step: Row) -> float:
    load = StepLoad(
        int(step["context_tokens"]), int(step["batched_tokens"]), int(step["num_requests"])
    )
    target = profile.target.forward_time(load)
    method, _, k = engine.rpartition("-")
    method = "draft_model" if method == "draft" else method
    cost = profile.drafts[method].draft_time(load, int(k), target) if method else 0.0
    overhead = profile.overhead.of_engine(is_async=method != "draft_model")
    return 1e3 * (target + cost) + overhead.step_ms


def replays() -> Iterator[Row]:
    """Yield how far recordings are replayed draft by draft, under both profiles."""
    for folder in sorted((HERE / "replayed").iterdir()):
        run, engine = load_run(folder), folder.name
        profiles = {"built": BUILT, **({"of steps": OF_STEPS} if engine in KNOWN else {})}
        for name, profile in profiles.items():
            found = replay(run, compose(run, Replaced(profile=profile)))
            errors = {f"{each.metric} {each.name}": each.error for each in found.statistics}
            yield {
                "engine": engine,
                "profile": name,
                "mean_error": round(found.mean_error, 6),
                **{of: round(errors[of], 6) for of in ("tpot mean", "latency mean")},
            }


def write(name: str, rows: list[Row]) -> None:
    with (HERE / name).open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Predict all runs, and steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--fit", action="store_true")
    if parser.parse_args().fit:
        fit()
    runs = read_table(HERE / "runs.csv")
    rows: list[Row] = []
    with Replayer(runs) as replayer:
        rows += errors_of(replayer.predict(BUILT), "built")
    known = [run for run in runs if run.run_id.partition("/")[0] in KNOWN]
    with Replayer(known) as replayer:
        rows += errors_of(replayer.predict(OF_STEPS), "of steps")
    write("errors.csv", rows)
    write("decodes.csv", list(decodes(load_profile(BUILT))))
    write("replays.csv", list(replays()))


if __name__ == "__main__":
    main()
