"""Policies of the user's are held to their contract."""

from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from conftest import Run

from specsim.core import machine_code
from specsim.core.errors import PluginError
from specsim.policies import POLICIES
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study import policy_check
from specsim.study.policy_check import worlds_of

SOURCE = """import numpy as np

from specsim.policies.base import Policy


class Mine(Policy):
    kind: str = "mine"

    def draft_lens(self, batch, memory):
        return {answer}
"""


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("-1", "draft_lens returned -1 in step 0 .* must be from 0 to 3"),
        ("[1] * (batch.size + 1)", "must be 1 whole numbers, one per sequence"),
        ("[1] if batch.size > 1 else 0", "draft_lens returned .1. in step"),
        ("99", "draft_lens returned 99 in step 0"),
        ("None", "draft_lens returned None"),
        ("1.5", "draft_lens returned 1.5"),
        ("True", "draft_lens returned True"),
        ("[-1] * batch.size", "place 0: -1"),
        ("[2**70] * batch.size", "whole numbers"),
        ("1 // 0", "ZeroDivisionError: .* line 10, in draft_lens"),
        ("batch.nothing", "AttributeError: .* line 10, in draft_lens"),
    ],
)
def test_a_wrong_answer_names_policy_step_and_value(
    answer: str, message: str, tiny: Callable[..., Experiment], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    name = f"policy_{abs(hash(answer))}"
    (tmp_path / f"{name}.py").write_text(SOURCE.format(answer=answer))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match=f"Mine '{name}:Mine': .*{message}") as caught:
        simulate(tiny(policy=f"{name}:Mine"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "answer", ["np.int64(3)", "np.array(2)", "[1] * batch.size", "(0,) * batch.size"]
)
def test_right_answers_are_taken(
    answer: str, tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"right_{abs(hash(answer))}"
    (tmp_path / f"{name}.py").write_text(SOURCE.format(answer=answer))
    monkeypatch.syspath_prepend(tmp_path)
    run = simulate(tiny(policy=f"{name}:Mine"))
    assert len(Summary(run).tables.requests) == run.experiment.workload.num_requests


@pytest.mark.parametrize(("answer", "code"), [("[1] * batch.size", 0), ("-1", 1), ("1 // 0", 1)])
def test_the_check_tells_what_a_policy_breaks(
    answer: str, code: int, cli: Run, tmp_path: Path
) -> None:
    name = f"checked_{abs(hash(answer))}"
    (tmp_path / f"{name}.py").write_text(SOURCE.format(answer=answer))
    found, out, _ = cli("policy", "check", f"{tmp_path / name}.py:Mine")
    assert found == code
    assert ("holds: 106 worlds" in out) is (code == 0)


def test_a_policy_is_not_blamed_for_drafts_shorter_than_its_own() -> None:
    method = {"method": "eagle3", "num_speculative_tokens": 5}
    names = {
        k: [world.name for world in worlds_of(POLICIES.parse(f"static:k={k}"), "off", method)]
        for k in (1, 3)
    }
    assert set(names[1]) - set(names[3]) == {
        f"k up to 1, alpha {alpha}, {mode}" for alpha in (0, 1) for mode in ("sync", "async")
    }
    assert any(name.startswith("k up to 8") for name in names[3])


def test_compiling_is_not_held_against_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_check, "_LONGEST", 0.02)
    compiler: dict[str, Any] = {"__name__": machine_code.__name__, "sleep": sleep}
    exec("def compile_all():\n    sleep(0.1)", compiler)
    with policy_check._time_limit(POLICIES.parse("off")):
        compiler["compile_all"]()
    with (
        pytest.raises(PluginError, match=r"a world was not done after 0\.02 s"),
        policy_check._time_limit(POLICIES.parse("off")),
    ):
        sleep(1)
