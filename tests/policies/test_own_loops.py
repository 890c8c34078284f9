"""A policy of one's own in the compilable style is asked by the engine's loop, and checked."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import yaml
from conftest import ROOT, Run, tiny_config

from specsim.core.errors import PluginError, SpecsimError
from specsim.engine.speculation import Speculation
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study.policy_check import worlds_of

PAGE = (ROOT / "docs" / "tutorial" / "own-policy.md").read_text()


def block(title: str) -> str:
    """Return a file that the tutorial shows."""
    found = re.search(rf'```python title="{title}"\n(.*?)```', PAGE, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write the tutorial's policy with a line of `decide` replaced; return how it is named."""

    def write(name: str, lens: str = "", before: str = "") -> str:
        text = block("following.py").replace("from specsim", "import numpy as np\nfrom specsim", 1)
        old = next(line for line in text.splitlines() if "view.lens[row]" in line).strip()
        text = text.replace(old, lens or old).replace("    for row", f"{before}\n    for row", 1)
        (tmp_path / f"{name}.py").write_text(text)
        return f"{name}:FollowInLoop"

    monkeypatch.syspath_prepend(tmp_path)
    return write


def tables(experiment: Experiment) -> tuple[bytes, bytes]:
    found = Summary(simulate(experiment, check=True)).tables
    return found.requests.tobytes(), found.steps.tobytes()


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("", ""),
        ("    some = [1, 2]; some.append(3)", "it makes a list, a set or a dictionary"),
        ("    np.eye(2) @ np.eye(2)", r"it calls numba_\w+, which only numba has"),
        ("    np.ones((2, 3)).max(axis=1)", "unexpected keyword argument 'axis'"),
        ("    np.ones((2, 3)).T.reshape(-1)", "an array that is transposed"),
        ("    some = vars()", r"Untyped global name 'vars'.*does_not_compile\w*\.py, line \d+\)"),
    ],
)
def test_the_tutorials_two_ways_to_follow_are_the_same(
    before: str, why: str, written: Callable[..., str], tiny: Callable[..., Experiment],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "learning_by_itself.py").write_text(block("learning.py"))
    in_python = tables(tiny(policy="learning_by_itself:Follow"))
    for verb in ("_decide", "_observe"):
        monkeypatch.delattr(Speculation, verb)  # as it is asked in Python
    name = f"does_not_compile_{crc32(before.encode())}" if before else "compiles"
    assert tables(tiny(policy=written(name, before=before))) == in_python
    said = capfd.readouterr().err
    assert (f"running its policies-{name} as Python" in said) == bool(before)
    assert re.search(why, said)


def test_what_a_policy_in_numpy_decides_is_the_same_in_python(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "in_numpy.py").write_text(block("in_batch.py"))
    monkeypatch.syspath_prepend(tmp_path)
    experiment = tiny(policy="in_numpy:InBatch")
    compiled = tables(experiment)
    assert "as Python" not in capfd.readouterr().err
    with experiment.policy.loops.as_python():
        assert tables(experiment) == compiled


WHOLE = """
from typing import Literal, NamedTuple
import numpy as np
from specsim.api import Ints, LoopMemory, LoopPolicy, Loops, PerRequest, ServerView, View

class Memory(NamedTuple):
    seen: Ints

def decide(view: View, memory: Memory) -> None:
    num, longest = view.step[0].num_rows, view.step[0].max_draft_len
    mine = view.requests[:num]
    memory.seen[mine] += 1
    table = (np.arange(num * longest) % 5).reshape(num, -1) < memory.seen[mine].reshape(-1, 1)
    middle = np.percentile(memory.seen[mine], 50)
    view.lens[:num] = np.where(memory.seen[mine] > middle, table.sum(axis=1), 1)

def verify(view: View, memory: Memory) -> None:
    num = view.step[0].num_rows
    most = np.percentile(memory.seen[view.requests[:num]], 90)
    view.lens[:num] = np.minimum(view.draft_lens[:num], most)

def observe(view: View, memory: Memory) -> None:
    pass

class Whole(LoopPolicy):
    kind: Literal["whole"] = "whole"
    loops = Loops(Memory, decide=decide, verify=verify, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        return self.remember(server, seen=PerRequest(0))
"""
FORGETFUL = WHOLE.replace("    seen: Ints", "    pass").replace(", seen=PerRequest(0)", "")
FORGETFUL = FORGETFUL.replace("verify=verify, ", "")
FORGETFUL = re.sub(r"(def (\w+)\(view.*?:\n).*?(?=\n\n)", r"\1    pass", FORGETFUL, flags=re.DOTALL)


@pytest.mark.parametrize("text", [WHOLE, FORGETFUL], ids=["whole", "forgetful"])
def test_what_numba_has_in_c_and_what_does_nothing_is_machine_code(
    text: str, tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name = f"whole_{crc32(text.encode())}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    experiment = tiny(policy=f"{name}:Whole")
    compiled = tables(experiment)
    # numba 0.62, the oldest that is admitted, makes a list for a percentile; 0.68 does not.
    if text != WHOLE or int(version("numba").split(".")[1]) >= 68:
        assert "as Python" not in capfd.readouterr().err
    with experiment.policy.loops.as_python():
        assert tables(experiment) == compiled


def test_two_functions_of_one_name_are_two(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    second = FORGETFUL[FORGETFUL.index("def decide") :].replace("Whole", "Second")
    (tmp_path / "twice_the_name.py").write_text(
        FORGETFUL + second.replace("pass", "view.lens[:] = 3")
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = [tables(tiny(policy=f"twice_the_name:{name}")) for name in ("Second", "Whole")]
    assert found[0] != found[1]
    assert "as Python" not in capfd.readouterr().err


NOTHING = "-> None:\n    pass"
TAKES = """
import numpy as np
from given import WIDE, longest
TABLE = np.loadtxt("table.txt").astype(int)
"""
TAKES += FORGETFUL.replace(
    NOTHING, "-> None:\n    view.lens[:] = min(TABLE[1], WIDE, longest())", 1
)
GIVEN = "from specsim.api import inner\nWIDE = {}\n@inner\ndef longest():\n    return {}\n"


def test_what_functions_take_from_elsewhere_is_what_it_is_now(tmp_path: Path) -> None:
    (tmp_path / "takes.py").write_text(TAKES)
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({**tiny_config(), "policy": "takes:Whole"}))
    command = [sys.executable, "-m", "specsim", "run", "one.yaml", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # Else Python takes a file of the same second and size for the one whose bytecode it has.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    found = []
    for numbers in ((3, 3, 3), (1, 3, 3), (3, 2, 3), (3, 3, 0)):
        (tmp_path / "table.txt").write_text(f"0\n{numbers[0]}\n")
        (tmp_path / "given.py").write_text(GIVEN.format(*numbers[1:]))
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment
        )
        assert "as Python" not in done.stderr
        found.append(
            json.loads((tmp_path / "out/summary.json").read_text())["specsim"]["tokens_per_step"]
        )
    assert len(set(found)) == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seen=PerRequest(0)", "sene=PerRequest(0)", "no field 'sene'; did you mean 'seen'"),
        ("PerRequest(0)", "PerRequest(0.5)", "'seen' is of float64 and 1 axes; it must"),
        ("PerRequest(0)", "PerRequest(0, 4)", "'seen' is of int64 and 2 axes"),
        ("PerRequest(0)", "np.zeros(3)", "'seen' is of float64"),
        ("PerRequest(0)", "(3, 3)", "must have 1 axes"),
        ("seen: Ints", "seen: list[int]", "field 'seen' of Memory is list"),
        ("Memory(NamedTuple)", "Memory", "no NamedTuple"),
        ("observe=observe", "observes=observe", "no loop 'observes'; did you mean 'observe'"),
    ],
)
def test_a_memory_that_cannot_be_is_refused_in_one_line(
    old: str, new: str, message: str, tiny: Callable[..., Experiment], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    name = f"wrong_memory_{crc32((new + message).encode())}"
    (tmp_path / f"{name}.py").write_text(WHOLE.replace(old, new))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecsimError, match=message):
        simulate(tiny(policy=f"{name}:Whole"))


@pytest.mark.parametrize(
    ("verb", "wrong", "message"),
    [
        ("decide", "view.lens[:9] = np.zeros(7)", "ValueError: could not broadcast"),
        ("observe", "view.lens[:9] = np.zeros(7)", "ValueError: could not broadcast"),
        ("decide", "view.lens[10**6] = 1", r"IndexError: index 1000000 .*_decide\w*\.py, line \d+"),
        ("decide", "view.lens[0] = np.nan", "cannot convert float NaN"),
        (
            "decide",
            "view.lens[0] = max(0, round(np.nan * view.step[0].now))",
            "cannot convert float NaN",
        ),
        ("decide", "view.lens[0] = 2.0**64", "OverflowError: Python int too large"),
        (
            "decide",
            "view.lens[:1] = np.array([np.nan]).astype(np.int64) * 0",
            "invalid value .* in cast",
        ),
    ],
)
def test_machine_code_that_raises_ends_the_run_in_one_line(
    verb: str, wrong: str, message: str, tiny: Callable[..., Experiment], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    name = f"raises_{verb}_{crc32(wrong.encode())}"
    head = f"def {verb}(view: View, memory: Memory) -> None:\n"
    text = block("in_batch.py").replace(head, f"{head}    {wrong}\n")
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match=f"InBatch 'raises_.*({message})"):
        simulate(tiny(policy=f"{name}:InBatch"))


@pytest.mark.parametrize(
    ("lens", "message"),
    [
        ("view.lens[row] = 4", r"draft_lens returned .* \(place 0: 4\) in step 0"),
        ("view.lens[row] = -1", "from 0 to 3, the longest draft"),
        ("view.lens[row] = step.nothing", "nothing"),
    ],
)
def test_what_nobody_can_draft_is_refused(
    lens: str, message: str, written: Callable[..., str], tiny: Callable[..., Experiment]
) -> None:
    name = f"wrong_{crc32(lens.encode())}"  # the same every time, so that it is compiled once
    with pytest.raises(PluginError, match=f"FollowInLoop.*{message}"):
        simulate(tiny(policy=written(name, lens)))


def test_what_is_shown_of_the_drafts_in_a_step_is_the_same_in_python(
    written: Callable[..., str], tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = written(
        "echoes", "view.lens[row] = (view.draft_lens[row] + step.draft_tokens + row) % 4"
    )
    usual = tiny_config()["engine"]
    engines = ({}, {"async_scheduling": False}, {"scheduler": "prefill_first"})
    usual["max_num_batched_tokens"] = 1024

    def found() -> list[tuple[bytes, bytes]]:
        return [tables(tiny(policy=name, engine={**usual, **engine})) for engine in engines]

    in_the_loop = found()
    monkeypatch.setattr(Speculation, "is_loops", False)
    assert found() == in_the_loop


STOPS = """
def stop(view: View, memory: Memory) -> None:
    view.step[0].stop_len = 1


class Stops(FollowInLoop):
    kind: Literal["stops"] = "stops"
    uses_confidences = True
    loops = Loops(Memory, decide=decide, stop=stop)
"""
SHARES = """
from specsim.api import PerRequest
from specsim.core.desk import Floats


class Wide(NamedTuple):
    unused: Floats
    known: Rows[Known]


class InWide(LoopPolicy):
    kind: Literal["in_wide"] = "in_wide"
    loops = Loops(Wide, decide=decide, observe=observe)

    def start(self, server: ServerView):
        known = row_of(Known, accepted=1.0, drafted=2.0, fading=0.99)
        return self.remember(server, known=known, unused=PerRequest(0.0))


class Again(FollowInLoop):
    kind: Literal["again"] = "again"
    loops = Loops(Memory, decide=decide, observe=observe)
"""


def test_lengths_are_looked_at_before_confidences_that_there_is_no_room_for(
    written: Callable[..., str], tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    written("stops_beyond", "view.lens[row], step.may_stop = 1_000_000, 1")
    with (tmp_path / "stops_beyond.py").open("a") as file:
        file.write(STOPS)
    with pytest.raises(PluginError, match=r"Stops.*draft_lens returned .*1000000"):
        simulate(tiny(policy="stops_beyond:Stops"))


@pytest.mark.parametrize("start", ["return server", "self.remember(server)", "return None"])
def test_what_start_forgot_to_remember_is_said(
    start: str, written: Callable[..., str], tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    name = f"forgetful_{crc32(start.encode())}"
    written(name)
    with (tmp_path / f"{name}.py").open("a") as file:
        file.write(f"class Forgets(FollowInLoop):\n    def start(self, server):\n        {start}\n")
    with pytest.raises(PluginError, match=r"Forgets .*: start returned .*what self\.remember"):
        simulate(tiny(policy=f"{name}:Forgets"))


@pytest.mark.parametrize("is_loop", [True, False])
def test_a_negative_stop_is_refused_under_its_own_name(
    *, is_loop: bool, written: Callable[..., str], tiny: Callable[..., Experiment],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    name = f"stops_early_{is_loop}"
    written(name, "view.lens[row], step.may_stop = 2, 1")
    with (tmp_path / f"{name}.py").open("a") as file:
        file.write(STOPS.replace("stop_len = 1", "stop_len = -1"))
    if not is_loop:
        monkeypatch.setattr(Speculation, "is_loops", False)
    with pytest.raises(PluginError, match=r"Stops .*: stop_len returned -1 in step .* 0 or more"):
        simulate(tiny(policy=f"{name}:Stops"))


def test_policies_may_share_functions_and_remember_other_things(
    written: Callable[..., str], tiny: Callable[..., Experiment], tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    written("sharing")
    with (tmp_path / "sharing.py").open("a") as file:
        file.write(SHARES)
    follows, *others = (
        tables(tiny(policy=f"sharing:{kind}")) for kind in ("FollowInLoop", "InWide", "Again")
    )
    assert others == [follows, follows]
    assert "as Python" not in capfd.readouterr().err


def test_a_method_of_its_own_is_asked_in_python(
    written: Callable[..., str], tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    written("its_own")
    with (tmp_path / "its_own.py").open("a") as file:
        file.write("\n    def draft_lens(self, batch, memory) -> int:\n        return 0\n")
    found = Summary(simulate(tiny(policy="its_own:FollowInLoop"))).tables
    assert not found.steps["draft_tokens"].any()


@pytest.mark.parametrize(
    ("lens", "says"), [("", "it runs as machine code"), ("view.lens[row + 99] = 1", "IndexError")]
)
def test_policy_check_says_how_it_runs_and_finds_what_machine_code_would_not(
    lens: str, says: str, written: Callable[..., str], cli: Run, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def few(*policy: Any) -> Any:  # all take half a minute
        return islice(worlds_of(*policy), 12)

    monkeypatch.setattr("specsim.study.policy_check.worlds_of", few)
    name = written("checked" if not lens else "beyond", lens)
    code, out, error = cli("policy", "check", name)
    assert says in out + error
    assert (code == 0) == (not lens)
