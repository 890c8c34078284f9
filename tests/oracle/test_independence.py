"""The oracle shares no engine with what it judges, and agrees with the real vLLM by itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import data_folder

from oracle import run_scenario
from specsim.reality.parity import compare_logs, load_log, load_scenario

RECORDED = Path(__file__).parents[1] / "parity" / "recorded"
SHARED = data_folder().parent / "parity"
GROUPS = data_folder().parent / "parity-kv-groups"
FOLDERS = (RECORDED, SHARED, GROUPS)
SCENARIOS = [
    path
    for folder in FOLDERS
    for path in sorted(folder.glob("*.scenario.json"))
    # It knows no connectors, states, stages, ranks, several MTP modules or clients that go away.
    if not path.name.startswith(
        (
            "loads-",
            "host-",
            "states-",
            "pipeline-",
            "stages-",
            "ranks-",
            "modules-",
            "aborts-",
            "mixed-loads-",
            "mixed-host-",
        )
    )
]


def test_it_imports_nothing_of_the_engine() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); import oracle; "
        "print([name for name in sys.modules if name.startswith('specsim.engine')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.name.split(".")[0])
def test_it_does_what_vllm_did(path: Path) -> None:
    log = path.with_name(path.name.replace(".scenario.", ".log."))
    ours = json.loads(json.dumps(run_scenario(load_scenario(path))))
    difference = compare_logs(ours, load_log(log))
    assert difference is None, str(difference)
