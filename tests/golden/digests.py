"""Digests of many whole runs: whether another engine gives the very same tables.

``digests.py record OUT.json [--arrays DIR]`` runs every case of `digest_cases` and keeps a digest
of each column of its tables, and the numbers of its summary. ``digests.py compare OUT.json
[--arrays DIR]`` runs them again, names what differs, and exits with 1 if anything does; with the
recorded arrays it says where. ``--only PATTERN`` (a part of a name, or a glob) takes some of them.
Both need specsim and tests/ on PYTHONPATH.
"""

import argparse
import json
import math
import re
import sys
import tempfile
import time
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from digest_cases import Case, all_cases

from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

REQUEST_COLUMNS = (
    "request", "replica", "arrived_at", "scheduled_at", "first_token_at", "ended_at", "prompt_len",
    "output_len", "cached_len", "preemptions", "requeues", "deliveries", "drafts", "draft_tokens",
    "accepted_tokens",
)  # fmt: skip
STEP_COLUMNS = (
    "scheduled_at", "started_at", "ended_at", "target_time", "draft_time", "overhead_time",
    "context_tokens", "batched_tokens", "prefill_tokens", "num_requests", "num_running",
    "num_waiting", "free_blocks", "preemptions", "drafts", "draft_tokens", "accepted_tokens",
    "output_tokens", "deliveries", "asked_draft_len", "alpha_estimate",
)  # fmt: skip
TOLERANCE = 1e-9

Arrays = dict[str, np.ndarray[Any, Any]]
Record = dict[str, Any]


def run(case: Case, folder: str) -> tuple[Record, Arrays]:
    """Return the record of one run, and its columns; of a run that fails, the message."""
    try:
        experiment = Experiment.parse(case.config, case.name)
        requests = case.requests() if case.requests else None
        summary = Summary(simulate(experiment, requests=requests))
        tables = summary.tables
    except Exception as error:  # the other cases are to be run all the same
        message = str(error).replace(folder, "")
        return {"error": f"{type(error).__name__}: {message}"}, {}
    arrays = {f"requests.{name}": tables.requests[name].copy() for name in REQUEST_COLUMNS}
    arrays |= {f"steps.{name}": tables.steps[name].copy() for name in STEP_COLUMNS}
    arrays |= {"step_replicas": tables.step_replicas, "outcomes": tables.outcomes}
    digests = {name: sha256(column.tobytes()).hexdigest() for name, column in arrays.items()}
    return {"digests": digests, "summary": numbers(summary.data)}, arrays


def rounded(arrays: Arrays) -> dict[str, str]:
    """Return a digest of each column to nine digits: the same on processors that round otherwise.

    It does not tell whole numbers from floats.
    """
    return {
        name: sha256(" ".join(f"{v:.9g}" for v in column.ravel().tolist()).encode()).hexdigest()[:8]
        for name, column in arrays.items()
    }


def numbers(data: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Return all numbers of nested mappings, by dotted name."""
    found: dict[str, float] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[prefix + name] = float(value)
    return found


def is_close(old: float, new: float) -> bool:
    """Return whether two numbers agree to the tolerance; NaN agrees with NaN."""
    both_nan = math.isnan(old) and math.isnan(new)
    return both_nan or math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=0.0)


def file_of(folder: Path, name: str) -> Path:
    return folder / (re.sub(r"[^\w.-]+", "_", name) + ".npz")


def load_arrays(path: Path | None) -> Arrays:
    """Return the columns that were kept; none if there is no such file."""
    if path is None or not path.exists():
        return {}
    with np.load(path) as kept:
        return dict(kept)


def differences(old: Record, new: Record, before: Arrays, after: Arrays) -> list[str]:
    """Return lines that say what differs in one run, the first place first."""
    if "error" in old or "error" in new:
        pair = old.get("error", "ran"), new.get("error", "ran")
        return [] if pair[0] == pair[1] else [f"before: {pair[0]}", f"now:    {pair[1]}"]
    differing = [name for name in old["digests"] if old["digests"][name] != new["digests"][name]]
    lines = [f"{len(differing)} columns differ: {', '.join(differing)}"] if differing else []
    if differing and before:
        lines += place_of(differing, before, after)
    for name in sorted(old["summary"].keys() | new["summary"].keys()):
        was, now = old["summary"].get(name), new["summary"].get(name)
        if was is None or now is None or not is_close(was, now):
            lines.append(f"summary {name}: {was!r} -> {now!r}")
    return lines


def bits(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the bytes of each value as one number, so that NaN equals NaN, and 0.0 not -0.0."""
    return column.view(f"u{column.dtype.itemsize}")


def place_of(differing: list[str], before: Arrays, after: Arrays) -> list[str]:
    """Return where tables part, and whether they do so by more than rounding.

    The first place is that of the earliest row, of steps before requests: what is wrong there
    comes before what follows from it.
    """
    lines, places, all_close = [], [], True
    for order, name in enumerate(differing):
        old, new = before[name], after[name]
        if old.dtype != new.dtype:
            lines.append(f"{name}: {old.dtype} -> {new.dtype}")
        if old.shape != new.shape:
            lines.append(f"{name}: shape {old.shape} -> {new.shape}")
            all_close = False
        if old.ndim > 1:
            old, new = old.ravel(), new.ravel()
        size = min(len(old), len(new))
        old, new = old[:size], new[:size]
        rows = np.flatnonzero(bits(old) != bits(new))
        if len(rows):
            row = int(rows[0])
            near = np.allclose(old, new, rtol=TOLERANCE, atol=0.0, equal_nan=True)
            all_close = all_close and near
            pair = f"{old[row].item()!r} -> {new[row].item()!r}"
            where = f"{name}[{row}]: {pair} ({len(rows)} of {size} rows)"
            places.append((not name.startswith("steps."), row, order, where))
    if places:
        lines.insert(0, f"first: {min(places)[-1]}")
    return [*lines, f"all within {TOLERANCE:g} relative: {'yes' if all_close else 'NO'}"]


def main() -> int:
    """Record or compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--arrays", type=Path, help="folder of the columns, one file per case")
    parser.add_argument("--only", default="*", help="part of a case's name, or a glob")
    parser.add_argument("--times", action="store_true", help="print the seconds of every case")
    args = parser.parse_args()
    is_new = args.what == "record"
    old: dict[str, Record] = {} if is_new else json.loads(args.file.read_text())
    records, num_different, start = {}, 0, time.perf_counter()
    if is_new and args.arrays:
        args.arrays.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        chosen = [each for each in all_cases(Path(folder)) if fnmatch(each.name, f"*{args.only}*")]
        for case in chosen:
            began = time.perf_counter()
            record, arrays = run(case, folder)
            records[case.name] = record
            if args.times:
                print(f"{time.perf_counter() - began:7.2f} s  {case.name}  "
                      f"{record.get('error', '')}", flush=True)  # fmt: skip
            path = file_of(args.arrays, case.name) if args.arrays else None
            if is_new:
                if path:
                    np.savez(path, **arrays)
                continue
            if case.name not in old:
                print(f"{case.name}: not recorded")
                num_different += 1
                continue
            if lines := differences(old[case.name], record, load_arrays(path), arrays):
                num_different += 1
                print(f"{case.name}:", *lines, sep="\n    ", flush=True)
    if is_new:
        args.file.parent.mkdir(parents=True, exist_ok=True)
        args.file.write_text(json.dumps(records, indent=1) + "\n")
    else:
        wanted = {name for name in old if fnmatch(name, f"*{args.only}*")}
        if missing := sorted(wanted - records.keys()):
            print(f"recorded, but not run: {', '.join(missing)}")
            num_different += len(missing)
    seconds = time.perf_counter() - start
    end = "recorded" if is_new else f"compared, {num_different} differ"
    print(f"{len(records)} cases {end}, {seconds:.0f} s")
    return int(num_different > 0 or not records)


if __name__ == "__main__":
    sys.exit(main())
