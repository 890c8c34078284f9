"""Random scenarios: the engine against the oracle, every field of every step.

The recordings are few and vLLM's; these are many, small and crowded: ties, preemptions, shared
prompts and tight budgets in every combination.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import data_folder
from oracle import DoesNotEnd, random_scenarios
from oracle import run_scenario as run_oracle

from specsim.engine.config import EngineConfig
from specsim.engine.view import StepView
from specsim.reality import parity
from specsim.reality.parity import (
    EngineScript,
    Scenario,
    compare_logs,
    load_log,
    load_scenario,
    run_scenario,
)
from specsim.reality.parity.log import LogWriter

TESTS = Path(__file__).parents[1]
SHARED = [data_folder().parent / name for name in ("parity", "parity-kv-groups")]
FOLDERS = [TESTS / "parity" / "recorded", *SHARED]


class V0Script(EngineScript):
    """An engine of vLLM V0, which the recordings know nothing of."""

    def to_config(self) -> EngineConfig:
        return super().to_config().model_copy(update={"scheduler": "prefill_first"})


def random_scenario(number: int, *, prefill_first: bool, has_groups: bool) -> Scenario:
    scenario = random_scenarios.random_scenario(
        number, prefill_first=prefill_first, has_groups=has_groups
    )
    if not prefill_first:
        return scenario
    engine = V0Script(**dict(scenario.engine))
    return scenario.model_copy(update={"engine": engine})


def differing(
    numbers: Iterable[int], *, prefill_first: bool = False, has_groups: bool = False
) -> tuple[list[str], Counter]:
    """Return what differs, and how often things happened that the scenarios are to cover."""
    found: list[str] = []
    seen: Counter[str] = Counter()
    for number in numbers:
        scenario = random_scenario(number, prefill_first=prefill_first, has_groups=has_groups)
        try:
            theirs = run_oracle(scenario, prefill_first=prefill_first)
        except DoesNotEnd:
            seen["endless"] += 1
            continue
        # Checking every invariant takes longer than the run.
        ours = run_scenario(scenario, check=number % 10 == 0)
        difference = compare_logs(ours, theirs)
        if difference is None and ours != theirs:  # fields that only one of them has
            found.append(f"{scenario.name}: the logs are not the same")
        if difference is not None:
            found.append(f"{scenario.name}: {difference}")
        seen += happened(theirs)
    return found, seen


def happened(log: dict[str, Any]) -> Counter[str]:
    steps, requests = log["steps"], log["requests"]
    return Counter(
        preempted=sum(len(step["preempted"]) for step in steps),
        resumed=sum(len(step["resumed"]) for step in steps),
        accepted=sum(accepted for step in steps for _, _, accepted in step["out"]),
        drafts=sum(drafts for step in steps for _, _, drafts, _, _ in step["sched"]),
        hits=sum(request["cached"] > 0 for request in requests),
        hits_again=sum(any(request["recomputed_hits"]) for request in requests),
        empty=sum(not step["sched"] for step in steps),
    )


@pytest.mark.parametrize("part", range(6))
def test_every_field_of_every_step_agrees(part: int) -> None:
    found, seen = differing(range(100 * part, 100 * part + 100))
    assert not found, "\n".join(found)
    assert min(seen[name] for name in ("preempted", "resumed", "hits")) >= 20, seen
    assert seen["hits_again"] >= 5, seen
    assert seen["drafts"] > seen["accepted"] > 200, seen
    assert seen["empty"] > 0, seen
    assert seen["endless"] < 5, seen


@pytest.mark.parametrize("part", range(3))
def test_prefill_first_agrees(part: int) -> None:
    found, seen = differing(range(100 * part, 100 * part + 100), prefill_first=True)
    assert not found, "\n".join(found)
    assert min(seen[name] for name in ("preempted", "resumed", "hits")) >= 20, seen
    assert seen["drafts"] > seen["accepted"] > 200, seen


@pytest.mark.parametrize("part", range(3))
def test_engines_with_groups_agree(part: int) -> None:
    found, seen = differing(range(100 * part, 100 * part + 100), has_groups=True)
    assert not found, "\n".join(found)
    assert min(seen[name] for name in ("preempted", "resumed", "hits")) >= 5, seen
    assert seen["drafts"] > seen["accepted"] > 200, seen
    assert seen["endless"] < 5, seen


def in_python(*args: str) -> str:
    """Run this file in a process that compiles nothing; return what it says."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *sys.path])
    command = [sys.executable, __file__, *args]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
def test_uncompiled_loops_agree() -> None:
    assert in_python("random") == "compared 60\n"


@pytest.mark.slow
def test_uncompiled_loops_do_what_vllm_did() -> None:
    count = sum(len(list(folder.glob("*.scenario.json"))) for folder in FOLDERS)
    assert in_python("recorded") == f"compared {count}\n"


STEPS = 30  # of a recording, by which nearly all that it has to show has happened


class Enough(Exception):
    """As many steps have been taken as are compared."""


class FirstSteps(LogWriter):
    """Writes the first steps, and then ends the run."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        made.append(self)

    def scheduled(self, step: StepView) -> None:
        if len(self.steps) == STEPS:
            raise Enough
        super().scheduled(step)


made: list[FirstSteps] = []


def first_steps(scenario: Scenario) -> list[dict[str, Any]]:
    with contextlib.suppress(Enough):
        run_scenario(scenario, check=False)
    steps = json.loads(json.dumps(made.pop().steps))
    return [step for step in steps if step["t1"] is not None]  # those that have come back


def main() -> None:
    """Compare without compiled code, and print the differences and how many were compared."""
    if sys.argv[1] == "random":
        compared = 60
        found = differing(range(1000, 1030))[0]
        found += differing(range(1000, 1015), prefill_first=True)[0]
        found += differing(range(1000, 1015), has_groups=True)[0]
    else:
        found = []
        parity.LogWriter = FirstSteps
        paths = [path for folder in FOLDERS for path in sorted(folder.glob("*.scenario.json"))]
        compared = len(paths)
        for path in paths:
            steps = load_log(path.with_name(path.name.replace(".scenario.", ".log.")))["steps"]
            mine = first_steps(load_scenario(path))
            if len(mine) < min(STEPS, len(steps)) - 5:  # as many as may not have come back
                found.append(f"{path.name}: {len(mine)} steps of {len(steps)}")
            theirs = {"steps": steps[: len(mine)], "requests": []}
            if difference := compare_logs({"steps": mine, "requests": []}, theirs):
                found.append(f"{path.name}: {difference}")
    print(*found, f"compared {compared}", sep="\n")


if __name__ == "__main__":
    main()
