"""The recorder on vLLM's own schedulers, synchronous and asynchronous, over recorded scenarios.

Runs in vLLM's Python::

    python tests/vllm/check_recorder.py

The scenarios and their logs are those of tests/parity that the version at hand has recorded: the
recorder must not change what vLLM decides, and must write what the logs say: every step, every
request.
"""

import json
import logging
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from specsim.reality.vllm.scheduler import (
    FOLDER_VARIABLE,
    RecordingAsyncScheduler,
    RecordingScheduler,
    recording_scheduler,
)

PARITY = Path(__file__).parents[1] / "parity"
PLAIN = {"quantization": None, "kv_cache_dtype": "auto"}
FIRST = "0.32"  # which recorded what lies in no folder of a version


def load_drivers() -> dict[str, Any]:
    """Return the drivers of scenarios, by how their names begin; all others have the last."""
    sys.path.insert(0, str(PARITY))  # as if they were run from there
    record, loads = import_module("record"), import_module("record_loads")
    record.Scheduler, record.AsyncScheduler = RecordingScheduler, RecordingAsyncScheduler
    return {"loads": loads.LoadsDriver, "host": loads.HostDriver, "": record.Driver}


def recorded(version: str) -> list[Path]:
    """Return the scenarios whose logs a version has recorded."""
    folder = PARITY / "recorded"
    paths = folder.glob("*.scenario.json" if version == FIRST else f"{version}/*.scenario.json")
    return sorted(
        path for path in {*paths, *folder.glob("host-*.scenario.json")}
        if json.loads(path.read_text())["engine"].get("vllm_version", version) == version
    )  # fmt: skip


def check(make_driver: Any, path: Path, folder: Path) -> str:
    os.environ[FOLDER_VARIABLE] = str(folder)
    scenario = json.loads(path.read_text())
    driver = make_driver(scenario)
    log = json.loads(json.dumps(driver.log()))
    driver.scheduler.shutdown()
    expected = json.loads(path.with_name(path.name.replace("scenario", "log")).read_text())
    expect(log["steps"] == expected["steps"], path, "the recorder changed vLLM's decisions")
    rows = [json.loads(line) for line in (folder / "steps.jsonl").open()]
    steps = log["steps"]
    if path.name.startswith("host"):  # whose log leaves out the empty step after the last request
        rows = [row for row in rows if row["scheduled"]]
        steps = [step for step in steps if step["sched"]]
    expect(len(rows) == len(steps), path, f"{len(rows)} of {len(steps)} steps recorded")
    for row, step in zip(rows, steps, strict=True):
        expect(summary(row) == wanted(step), path, f"step {step['i']}: {row} is not {step}")
    requests = [json.loads(line) for line in (folder / "requests.jsonl").open()]
    found = {
        row["request_id"]: (row["output_toks"], row["preemptions"])
        for row in requests
        if "error" not in row  # whose client has not gone away
    }
    ended = {row["id"]: (row["out"], row["preemptions"]) for row in expected["requests"]}
    expect(found == ended, path, f"requests are {found}, not {ended}")
    meta = json.loads((folder / "meta.json").read_text())
    expect(meta["complete"], path, "the run is not complete")
    told = {**PLAIN, "enable_lora": bool(scenario["engine"].get("max_loras"))}
    options = {name: meta["engine_kwargs"].get(name, "") for name in told}
    expect(options == told, path, f"the engine is said to have {options}")
    return f"{path.name}: {len(rows)} steps, {len(requests)} requests"


def summary(row: dict[str, Any]) -> list[Any]:
    names = ("scheduled", "context_tokens", "draft_tokens", "free_blocks", "num_waiting")
    return [row[name] for name in names]


def wanted(step: dict[str, Any]) -> list[Any]:
    _, waiting, free, _ = step["s"]
    rows = step["sched"]
    columns = [sum(row[place] for row in rows) for place in (3, 2)]
    return [[row[1] for row in rows], *columns, free, waiting]


def expect(condition: bool, path: Path, otherwise: str) -> None:
    if not condition:
        sys.exit(f"FAILED: {path.name}: {otherwise}")


def main() -> None:
    logging.disable(logging.WARNING)  # vLLM says much about engines as small as these
    os.environ.pop(FOLDER_VARIABLE, None)
    drivers = load_drivers()
    try:
        recording_scheduler(sys.modules["record"].VllmConfig())
    except ValueError as error:
        print(error)
    else:
        sys.exit(f"FAILED: nothing was said where {FOLDER_VARIABLE} is not set")
    paths = recorded(".".join(map(str, sys.modules["record"].VERSION)))
    expect(bool(paths), PARITY, "nothing was recorded by this version")
    with tempfile.TemporaryDirectory() as scratch:
        for number, path in enumerate(paths):
            own = next(each for begin, each in drivers.items() if path.name.startswith(begin))
            print(check(own, path, Path(scratch) / str(number)), flush=True)


if __name__ == "__main__":
    main()
