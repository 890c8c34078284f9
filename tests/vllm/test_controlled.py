"""Policies of specsim in a real vLLM: it drafts what is decided, and a replay decides the same."""

import json
import os
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import ROOT
from tiny_model import NEEDS_VLLM, PYTHON

from specsim.reality.vllm.at_work import Scheduled
from specsim.reality.vllm.control import replay

CASES = [
    *(("ngram", "sync", policy) for policy in ("goodput", "bandit", "turbospec")),
    *(("draft_model", "sync", policy) for policy in ("joint", "ema_tiers")),
    *(("draft_model", "async", policy) for policy in ("goodput", "joint", "q_learning")),
]

pytestmark = NEEDS_VLLM


def in_vllm(script: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [PYTHON, str(ROOT / "tests" / "vllm" / script), *arguments]
    # Five minutes on a machine busy with ten other jobs, where loops have to be compiled first.
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    in_vllm("make_models.py", str(folder))
    return folder


@pytest.mark.parametrize(("method", "mode", "policy"), CASES)
def test_vllm_drafts_what_is_decided(
    method: str, mode: str, policy: str, models: Path, tmp_path: Path
) -> None:
    log = tmp_path / "decisions.jsonl"
    control = json.dumps({"policy": policy, "log": str(log)})
    printed = in_vllm("controlled.py", str(models), control, method, mode)
    found = json.loads(printed.splitlines()[-1])
    assert found["complete"]
    assert found["is_deciding"]
    assert found["preemptions"]
    assert found["hits"]
    decisions, disagreements = replay(log)
    assert decisions > 50
    assert not disagreements
    events = [json.loads(line) for line in log.read_text().splitlines()]
    decided = [event for event in events if event["event"] == "decide"]
    drafted: Counter[bool] = Counter()
    for before, after in pairwise(decided):
        rows = [[Scheduled(*row) for row in event["rows"]] for event in (before, after)]
        known = {row.number for row in rows[0] if not row.in_prefill}
        for row in rows[1]:
            assert row.number not in known or row.draft_len <= before["k"]
            drafted[row.draft_len == before["k"]] += row.number in known
    if method == "draft_model":  # but for the last tokens of an answer, and a full budget
        assert drafted[True] > 0.8 * drafted.total()
