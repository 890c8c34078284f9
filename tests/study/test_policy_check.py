"""Policies of the user's are held to their contract."""

import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from textwrap import dedent, indent
from time import sleep
from typing import Any
from zlib import crc32

import pytest
from conftest import Run

from specsim.core import machine_code
from specsim.core.errors import PluginError
from specsim.policies import POLICIES
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study import policy_check
from specsim.study.policy_check import PolicyCheck, worlds_of


@pytest.fixture
def three_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run few worlds where what is wrong with a policy is so in every one."""
    every = policy_check.worlds_of
    monkeypatch.setattr(policy_check, "worlds_of", lambda *given: islice(every(*given), 3))


SOURCE = """import numpy as np

from specsim.decisions.policy import Policy


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
        ("exit(4)", "SystemExit: 4 .* line 10, in draft_lens"),
        (
            "setattr(self, 'kind', 'x')",
            "kind = 'x': instance is frozen: an object does not change while it is used; put what",
        ),
    ],
)
def test_a_wrong_answer_names_policy_step_and_value(
    answer: str, message: str, tiny: Callable[..., Experiment], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    name = f"policy_{crc32(answer.encode())}"
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


@pytest.mark.slow
def test_a_policy_that_breaks_nothing_holds_in_every_world(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "holding.py").write_text(SOURCE.format(answer="[1] * batch.size"))
    code, out, _ = cli("policy", "check", f"{tmp_path}/holding.py:Mine")
    assert code == 0
    assert "holds: 106 worlds" in out


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["-1", "1 // 0"])
@pytest.mark.usefixtures("three_worlds")
def test_the_check_tells_what_a_policy_breaks(answer: str, cli: Run, tmp_path: Path) -> None:
    name = f"checked_{abs(hash(answer))}"
    (tmp_path / f"{name}.py").write_text(SOURCE.format(answer=answer))
    code, out, _ = cli("policy", "check", f"{tmp_path / name}.py:Mine")
    assert code == 1
    assert "holds" not in out


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
    monkeypatch.setattr(policy_check, "LONGEST", 0.02)
    compiler: dict[str, Any] = {"__name__": machine_code.__name__, "sleep": sleep}
    exec("def compile_all():\n    sleep(0.1)", compiler)
    with policy_check.time_limit(POLICIES.parse("off")):
        compiler["compile_all"]()
    with (
        pytest.raises(PluginError, match=r"a world was not done after 0\.02 s"),
        policy_check.time_limit(POLICIES.parse("off")),
    ):
        sleep(1)


def _check(cli: Run, folder: Path, body: str) -> tuple[int, str, str]:
    name = f"checked_{abs(hash(body))}"
    text = SOURCE.partition("    def draft_lens")[0] + indent(dedent(body), "    ")
    (folder / f"{name}.py").write_text(text)
    return cli("policy", "check", f"{folder / name}.py:Mine")


DRAFTS = "def draft_lens(self, batch, memory):\n    return 1\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("draft_len", "has no method draft_lens; its 'draft_len' may be meant for it"),
        ("x", "has no method draft_lens; write it"),
    ],
)
def test_a_policy_without_draft_lens_is_one_line(
    name: str, message: str, cli: Run, tmp_path: Path
) -> None:
    code, _, err = _check(cli, tmp_path, f"def {name}(self, batch, memory):\n    return 1")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mine.py:Yours", "no 'Yours'; choose from Mine, Other\n"),
        (
            "./mine_2.py",
            "no kind './mine_2.py'; name a class of mine_2.py, too: ./mine_2.py:Mine\n",
        ),
        ("mine_3", "no kind 'mine_3'; name a class of mine_3.py, too: mine_3:Mine\n"),
        ("mine_4.Mine", "no kind 'mine_4.Mine'; a class of yours is mine_4:Mine\n"),
        ("mean.py", "no kind 'mean.py'; a class of yours is mean.py:CLASS\n"),
        ("none", "there is none.py, but it has no class that is a Policy\n"),
    ],
)
def test_a_class_is_chosen_of_those_that_the_file_defines(
    cli: Run, tmp_path: Path, name: str, why: str
) -> None:
    file = f"{re.findall('[a-z_0-9]+', name)[0]}.py"  # a name has one module in a process
    if file.startswith("mine"):
        (tmp_path / file).write_text(
            "from specsim.api import BatchView, Policy\n"
            "class Mine(Policy): pass\nclass Other: pass\n"
        )
    (tmp_path / "none.py").write_text("from specsim.api import Policy\n")
    code, _, errors = cli("policy", "check", name)
    assert code == 2
    assert errors.endswith(why)


def test_a_file_that_ends_the_program_is_one_line(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)\n")
    code, _, errors = cli("policy", "check", f"{tmp_path}/leaves.py:Mine")
    assert code == 2
    assert "SystemExit: 3 (" in errors
    assert "leaves.py, line 1" in errors


@pytest.mark.usefixtures("three_worlds")
def test_misspelt_names_are_found(cli: Run, tmp_path: Path) -> None:
    meant = {"obsserve": "observe", "drop": "drops", "need_sync": "needs_sync"}
    body = (
        "def draft_lens(self, batch, memory): return -1\n"
        "def obsserve(self, outcome, memory): pass\n"
        "def drop(self, batch, memory): pass\n"
        "need_sync: bool = True\n"
        "@property\ndef is_dynamics(self): return 1"
    )
    code, out, _ = _check(cli, tmp_path, body)
    assert code == 1
    for name, hook in {**meant, "is_dynamics": "is_dynamic"}.items():
        assert f"'{name}'; did you mean '{hook}'?" in out


@pytest.mark.usefixtures("three_worlds")
def test_helpers_and_fields_that_are_used_are_no_misspelt_names(cli: Run, tmp_path: Path) -> None:
    body = (
        "draft_len: int = 1\n"
        "def observed(self):\n    return [-self.draft_len for _ in range(1)][0]\n"
        "def draft_lens(self, batch, memory):\n    return self.observed()"
    )
    assert "nothing uses" not in _check(cli, tmp_path, body)[1]


CAUGHT = "while True:\n        try: 1 // 0\n        except: pass"


@pytest.mark.parametrize(
    ("method", "loop"),
    [("draft_lens", CAUGHT), ("max_draft_len", "while True: pass"), ("start", "while True: pass")],
)
def test_a_loop_without_end_is_one_line(
    method: str, loop: str, cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_check, "LONGEST", 1.0)
    body = f"def {method}(self, *given):\n    {loop}\n"
    body = body if method == "draft_lens" else DRAFTS + body
    code, out, err = _check(cli, tmp_path, body)
    assert code in (1, 2)
    assert "a world was not done after 1 s (" in out + err
    assert len((out + err).splitlines()) == code % 2 + 1


def test_no_more_worlds_are_broken_than_there_are() -> None:
    broken = {"misspelt": ["every world"], "an exception": ["a", "b", "c"], "again": ["b"]}
    assert PolicyCheck("p", 3, broken, 0.1, "Python").num_broken == 3
    assert PolicyCheck("p", 9, {"again": ["b", "c"], "more": ["c"]}, 0.1, "Python").num_broken == 2
