"""Cases of commands that read files: a valid set of files, of which one has been changed.

Files are changed as what they are (a value, a row, a key), in their bytes, or as files: a link to
itself, a folder, another encoding. Options are changed now and then, too.
"""

import csv
import io
import json
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from fuzz_catalogue import catalogue
from fuzz_changes import mutated, nudged, odd_file, torn
from fuzz_values import NASTY

USERS = ("keep", "mine.json", "own", "own/summary.json")
"""What belongs to the user; outputs are sometimes given these names."""
NEW = ("new", "new.json", "new.yaml", "new.jsonl.gz")
MINE = {"notes": [{"specsim_version": "0.1.0"}], "text": '"specsim_version": "0.1.0"'}


def written(name: str, value: Any) -> bytes:
    """Return what a file of a name holds, or what comes nearest to it."""
    import yaml

    kind = Path(name).suffix
    try:
        if kind == ".yaml":
            return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode(
                "utf-8", "replace"
            )
        if kind == ".json":
            return json.dumps(value).encode()
        if kind == ".jsonl":
            return b"".join(json.dumps(row).encode() + b"\n" for row in value)
        return _table(value) if kind == ".csv" else _columns(value)
    except Exception:  # no such value has this form
        return repr(value)[:100_000].encode("utf-8", "replace")


def _table(rows: list[Any]) -> bytes:
    stream = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(stream, names)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode("utf-8", "replace")


def _columns(rows: list[Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[str(name)] = pa.array(values)
        except (pa.ArrowException, OverflowError):
            columns[str(name)] = pa.array([repr(value)[:50] for value in values])
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def _fit_quickly() -> None:
    """Let `acceptance fit` look at less: of every trace, however short, it takes 20 s else."""
    from specsim.reality import acceptance_fit
    from specsim.reality.acceptance_fit import fits

    _change(acceptance_fit, POSITIONS=2000)
    _change(fits, POSITIONS=2000, MAX_TRIALS=5)


def _search_quickly() -> None:
    """Let `capacity` begin with shorter runs: of two pools, 0.2 ms a request, 15 s else."""
    from specsim.study import capacity

    _change(capacity, _REQUESTS=500)


def _plan_quickly() -> None:
    """Let `plan` simulate fewer requests: it takes half a minute else."""
    from specsim.study import plan
    from specsim.study.plan import candidates

    _change(candidates, SHORT_REQUESTS=40)
    _change(plan, REQUESTS=40, _REPLICATIONS=2, LONGEST=100)


def _change(module: ModuleType, **numbers: int) -> None:
    """Set what the module has: under a name of yesterday it would change nothing, unnoticed."""
    for name, number in numbers.items():
        patch.object(module, name, number).start()


def a_case_of_files(kind: str, rng: random.Random, experiment: dict[str, Any]) -> list[str]:
    """Write the files of a case, one of them changed, and return its command."""
    valid, commands = catalogue()[kind]
    files, command = dict(valid), list(rng.choice(commands))
    if kind == "tokens":
        _fit_quickly()
    if command[0] == "capacity":
        _search_quickly()
    if command[0] == "plan":
        _plan_quickly()
    if kind in ("studies", "sweeps", "gates"):
        base = {**experiment, "workload": {**experiment["workload"], "num_requests": 6}}
        name, changes = next(
            (name, value) for name, value in files.items() if Path(name).suffix == ".yaml"
        )
        files[name] = {**changes, "base": base} if "base" in changes else base
    read = [name for name in files if any(name in word or word == "run" for word in command)]
    changed = rng.choice(read or list(files)) if rng.random() < 0.9 else None
    for name, value in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(written(name, value))
        action = rng.random()
        if name != changed:
            continue
        if action < 0.35:
            path.write_bytes(written(name, nudged(value, rng)))
        elif action < 0.75:
            path.write_bytes(written(name, mutated(value, rng)))
        elif action < 0.9:
            path.write_bytes(torn(path.read_bytes(), rng))
        else:
            odd_file(path, rng)
    return odd_options(command, rng)


def odd_options(command: list[str], rng: random.Random) -> list[str]:
    """Return a command with outputs, and at times an option changed or a field set."""
    Path("mine.json").write_text(json.dumps(MINE))
    Path("own").mkdir()
    Path("own/summary.json").write_text(json.dumps(MINE))
    out = rng.choice(NEW if rng.random() < 0.8 else USERS)
    command = [word.replace("OUT", out) if out in NEW else word for word in command]
    command = [out if word.startswith("OUT") else word for word in command]
    command = ["bernoulli:alpha=0.5" if word == "ACCEPTANCE" else word for word in command]
    if rng.random() < 0.1 and len(command) > 3:
        word = str(rng.choice(NASTY[:9] + NASTY[15:]))[:300].replace("\x00", "")
        command[rng.randrange(2, len(command))] = word
    if command[0] in ("run", "compare", "tune", "capacity", "split") and rng.random() < 0.25:
        place = rng.choice(SETTABLE)
        value = json.dumps(rng.choice(NASTY), default=str)[:300] if rng.random() < 0.8 else "{"
        command += ["--set", f"{place}={value}"]
    if command[0] in ("compare", "tune", "capacity", "split", "sweep", "gate", "plan"):
        command += ["--workers", "1"]
    return command


SETTABLE = (
    "seed",
    "replicas",
    "policy",
    "policy.k",
    "acceptance",
    "acceptance.alpha",
    "profile",
    "slo",
    "slo.ttft_ms",
    "workload",
    "workload.num_requests",
    "workload.duration",
    "workload.arrivals",
    "workload.arrivals.rate",
    "workload.lengths.prompt",
    "workload.lengths",
    "engine",
    "routing",
    "engine.max_num_seqs",
    "engine.max_num_batched_tokens",
    "engine.max_model_len",
    "engine.num_gpu_blocks",
    "engine.block_size",
    "engine.speculative_config",
    "pools",
    "engine.speculative_config.num_speculative_tokens",
    "engine.kv_offload",
    "autoscaling",
    "incidents",
    "engine.speculative_config.method",
    "profile.target",
    "profile.gpu",
    "x",
    "engine.x",
    "",
    ".",
    "a..b",
)


def a_study_folder(rng: random.Random) -> list[str]:
    """Change a file of what a study wrote, and look at it."""
    folders = Path(os.environ["FUZZ_RESULTS"]).parent / "studies"
    shutil.copytree(folders / rng.choice(("compare", "sweep", "capacity", "capacity")), "run")
    path = rng.choice(sorted(path for path in Path("run").rglob("*") if path.is_file()))
    if path.suffix in (".json", ".yaml") and rng.random() < 0.6:
        import yaml

        value = yaml.safe_load(path.read_text()) if path.suffix == ".yaml" else None
        value = json.loads(path.read_text()) if value is None else value
        path.write_bytes(written(path.name, mutated(value, rng)))
    elif rng.random() < 0.8:
        path.write_bytes(torn(path.read_bytes(), rng))
    else:
        with suppress(OSError):
            odd_file(path, rng)
    return odd_options(
        list(
            rng.choice(
                (
                    ["report", "run", "--out", "OUT.html"],
                    ["report", "run"],
                    ["plot", "run", "--out", "new"],
                    ["plot", "run", "--metric", "p99_ttft_ms", "--format", "svg"],
                    ["timeline", "run/off"],
                    ["breakdown", "run/off"],
                    ["sweep", "run/sweep.yaml", "--resume", "--out", "run"],
                )
            )
        ),
        rng,
    )
