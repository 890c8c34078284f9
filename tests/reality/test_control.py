"""A policy in a real engine, without the engine: answers, logs, and their replay."""

import json
import resource
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from specsim.core.errors import ConfigError
from specsim.core.step import StepLoad
from specsim.policies.goodput import FOR_ALL
from specsim.reality.vllm.at_work import MOST_RUNNING, LearnedTimes, Scheduled
from specsim.reality.vllm.control import MOST, Control, Controller, Engine, replay

ENGINE = Engine(method="eagle3", num_speculative_tokens=5, max_num_seqs=8)
POLICIES = ("static:k=2", "goodput", "joint", "bandit", "ema_tiers", "q_learning", "turbospec")


def serve(controller: Controller, *, first: int = 0, most: int = 5, steps: int = 60) -> list[int]:
    """Return what was decided in a made-up server, whose requests come and go.

    They are numbered from `first` on, and `most` drafts of each are accepted at most.
    """
    size = 6
    rng = Random(0)
    lens = {first + number: 50 + number for number in range(size)}
    asked, drafted = [], 0
    for step in range(steps):
        rows = [
            Scheduled(number, 40, known - 40, 0, known - 1, 1 + drafted)
            for number, known in lens.items()
        ]
        columns = [*chain(*zip(*rows, strict=True))]
        k, number = controller.decide(columns, step * 0.01, len(rows), 1000)
        asked.append(k)
        output_lens = [1 + min(rng.randint(0, drafted), most) for _ in rows]
        controller.observe(number, k, 0.01 + 0.001 * k, output_lens)
        for row, output_len in zip(rows, output_lens, strict=True):
            lens[row.number] += output_len
        if rng.random() < 0.1:
            del lens[min(lens)]
            lens[first + size + step] = 41
        drafted = k
    return asked


@pytest.mark.parametrize("profile", [None, "h100/llama-3.1-8b"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_replay_decides_the_same(policy: str, profile: str | None, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    controller = Controller(Control(policy=policy, profile=profile, log=str(log)), ENGINE)
    assert set(serve(controller)) <= set(range(6))
    decisions, differences = replay(log)  # before it is closed: a server may be killed
    assert (not differences, 0 < 2 * (60 - decisions) < MOST) == (True, True)
    controller.rest()
    assert replay(log) == (60, [])
    controller.close()
    lines = log.read_text().splitlines()
    other = json.loads(lines[-2])
    lines[-2] = json.dumps({**other, "k": other["k"] + 1})
    log.write_text("\n".join(lines) + "\n")
    _, [found] = replay(log)
    assert (found.line, found.logged - found.replayed) == (len(lines) - 1, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_may_be_many(policy: str) -> None:
    """What a policy remembers of each grows while it serves."""
    found = [serve(Controller(Control(policy=policy), ENGINE), first=n) for n in (0, 2000, 50_000)]
    assert found[0] == found[1] == found[2]


OF_LOOPS = """
from typing import Literal
from specsim.policies.{module} import {base}

class Mine({base}):
    kind: Literal["mine"] = "mine"

    def draft_lens(self, batch, memory):
        return super().draft_lens(batch, memory)
"""


@pytest.mark.parametrize("profile", [None, "h100/llama-3.1-8b"])
@pytest.mark.parametrize("base", ["Goodput", "Joint"])
def test_loops_are_asked_without_python(base: str, profile: str | None, tmp_path: Path) -> None:
    """One of them with a method in Python decides the same, where it is shown the step by that."""
    path = tmp_path / f"mine_{base}_{profile is None}.py"
    path.write_text(OF_LOOPS.format(module=base.lower(), base=base))
    mine, own = (
        serve(Controller(Control(policy=policy, profile=profile), ENGINE), most=1, steps=200)
        for policy in (f"{path}:Mine", base.lower())
    )
    assert mine == own
    assert len(set(own)) > 1


def test_who_always_decides_the_same_is_told_nothing(tmp_path: Path) -> None:
    def constant(policy: str) -> int | None:
        return Controller(Control(policy=policy), ENGINE).constant

    assert [constant(policy) for policy in ("static:k=2", "off", "goodput")] == [2, 0, None]
    logged = Controller(Control(policy="static:k=2", log=str(tmp_path / "log")), ENGINE)
    logged.close()
    assert logged.constant is None


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("oracle", "knows the future"),
        ("draft_goodput", "before it decides"),
        ("static:k=9", "exceeds"),
        ("statik", "statik"),
    ],
)
def test_a_policy_that_cannot_is_refused(policy: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Controller(Control(policy=policy), ENGINE)


SPY = """
from typing import Literal
from specsim.api import Policy, ServerView

class Spy(Policy[ServerView]):
    kind: Literal["spy"] = "spy"
    path: str

    def draft_lens(self, batch, memory):
        return batch.load.context_tokens % 3

    def observe(self, outcome, memory):
        with open(self.path, "a") as file:
            file.write(f"{outcome.target_time} {outcome.draft_time} {max(outcome.draft_lens)}\\n")
"""


@pytest.mark.parametrize("profile", [None, "h100/llama-3.1-8b"])
def test_what_drafting_took_is_told_with_the_drafts(profile: str | None, tmp_path: Path) -> None:
    """A server tells what a step took in all; its drafts are verified by the next."""
    path, seen = tmp_path / f"spy_{profile is None}.py", tmp_path / "seen"
    path.write_text(SPY)
    spy = f"{path}:Spy:path={seen}"
    serve(Controller(Control(policy=spy, profile=profile), ENGINE))
    told = np.loadtxt(seen)
    ks = [*told[1:, 2].astype(int).tolist(), 0]
    assert {0, 1, 2} == set(ks)
    whole = [0.01 + 0.001 * k for k in ks[:-1]]
    assert (told[:-1, 0] + told[1:, 1]).tolist() == pytest.approx(whole)
    assert told[0, 1] == 0.0
    assert [time > 0 for time in told[:, 1]] == [k > 0 for k in told[:, 2]]


TELLER = """
from typing import Literal
from specsim.api import Policy, ServerView

class Teller(Policy[ServerView]):
    kind: Literal["teller"] = "teller"
    path: str

    def draft_lens(self, batch, memory):
        return 1

    def observe(self, outcome, memory):
        told = outcome.requests, outcome.draft_lens, outcome.accepted_lens
        with open(self.path, "a") as file:
            print(*[each.tolist() for each in told], *outcome.load[:4], file=file)
"""


def test_steps_that_run_at_once_are_told_apart(tmp_path: Path) -> None:
    path, seen = tmp_path / "teller.py", tmp_path / "seen"
    path.write_text(TELLER)
    controller = Controller(Control(policy=f"{path}:Teller:path={seen}"), ENGINE)
    reading = [*Scheduled(7, 30, 0, 0, 0, 20)]
    both = [*chain(*zip(Scheduled(7, 30, 1, 1, 30, 1), Scheduled(8, 5, 9, 3, 13, 3), strict=True))]
    steps = [controller.decide(columns, 0.0, 2, 9)[1] for columns in (reading, both)]
    controller.observe(steps[0], 1, 0.01, [0])
    controller.observe(steps[1], 1, 0.01, [1, 3])
    assert seen.read_text().splitlines() == ["[] [] [] 0 20 1 20", "[7, 8] [0, 2] [0, 2] 43 4 2 0"]
    for _ in range(MOST_RUNNING):
        controller.decide(both, 0.0, 2, 9)
    with pytest.raises(ConfigError, match="steps run at once"):
        controller.observe(steps[1], 1, 0.01, [1, 3])


def test_decisions_of_empty_steps_are_written_too(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    controller = Controller(Control(policy="goodput", log=str(log)), ENGINE)
    for step in range(10 * MOST):
        controller.decide([], step * 0.01, 0, 1000)
    assert len(log.read_text().splitlines()) >= 9 * MOST
    controller.close()


def test_what_loops_raise_as_python_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(both: object) -> int:
        raise IndexError("mine")

    with FOR_ALL.as_python():
        monkeypatch.setattr(FOR_ALL.loops["observe"], "function", fails)
        with pytest.raises(IndexError, match="mine"):
            Controller(Control(policy="goodput"), ENGINE)
        monkeypatch.undo()
        assert Controller(Control(policy="goodput"), ENGINE).constant is None


def test_a_log_is_not_written_over(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("mine")
    with pytest.raises(ConfigError, match="name a new file"):
        Controller(Control(policy="goodput", log=str(log)), ENGINE)
    with pytest.raises(ConfigError, match="line 1: is no event"):
        replay(log)
    log.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        replay(log)


@pytest.mark.parametrize(
    ("line", "change", "why"),
    [
        (2, {"step": 99}, "line 3: step 99 has ended before it was decided"),
        (2, {"output_lens": [1]}, "line 3: outputs of 1 rows"),
        (2, {"output_lens": [10**30] * 6}, "line 3: is no event"),
        (3, {"step": 7}, "line 4: step 7 is decided where 1 comes next"),
        (3, {"rows": [[0, 40, 10, 0, 49, 1]] * 9}, "line 4: 9 rows, but max_num_seqs is 8"),
        (3, {"rows": [[-1, 40, 10, 0, 49, 1]]}, "line 4: is no event"),
        (3, {"event": "start"}, "line 4: "),
    ],
)
def test_a_log_that_no_server_wrote(
    line: int, change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    controller = Controller(Control(policy="goodput", log=str(log)), ENGINE)
    serve(controller, steps=3)
    controller.close()
    lines = log.read_text().splitlines()
    lines[line] = json.dumps({**json.loads(lines[line]), **change})
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match=why):
        replay(log)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    controller = Controller(Control(policy="goodput", log=str(log)), ENGINE)
    serve(controller, steps=MOST // 2)
    written = log.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (written + 100, hard))
    try:
        serve(controller, steps=MOST // 2 - 1)
        with pytest.raises(OSError, match="File too large"):
            controller.rest()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        left = log.stat().st_size
        controller.close()  # now there is room
    assert left == written
    assert replay(log) == (MOST - 1, [])


def test_step_times_are_learned() -> None:
    """Of a linear server with 5 % of noise, to a twentieth."""
    rng, times = np.random.default_rng(3), LearnedTimes()

    def truth(load: StepLoad, k: int) -> float:
        return 0.008 + 3e-5 * load.batched_tokens + 2e-8 * load.context_tokens + 0.002 * k

    for _ in range(2000):
        size, k = int(rng.integers(1, 200)), int(rng.integers(0, 6))
        load = StepLoad(size * int(rng.integers(100, 3000)), size * (k + 1), size)
        measured = truth(load, k) * rng.normal(1, 0.05)
        times.row[1:] = load.batched_tokens, load.context_tokens, k > 0, k, measured
        times.learn()
    for size, k in ((1, 0), (1, 5), (100, 3)):
        load = StepLoad(size * 1000, size * (k + 1), size)
        assert times.step_time(load, k) == pytest.approx(truth(load, k), rel=0.05)
        many = times.step_times(load, np.array([load.batched_tokens]), k)
        assert many[0] == pytest.approx(times.step_time(load, k))
        asked = times.answers.fit(8)  # by a loop
        asked.load[:5], asked.asked[1] = (*load[:4], k), load.batched_tokens
        asked.ask()
        assert asked.answer[0] == times.step_time(load, k)


def started(monkeypatch: pytest.MonkeyPatch, control: dict[str, str], *, form: str = "{}") -> None:
    """Do what vLLM does with its plug-ins when it starts, told so on its command line."""
    typed = ["--additional-config", json.dumps({"specsim": control})]
    if form == "=":
        typed = [f"--additional_config={typed[1]}"]
    elif form == "variable":
        monkeypatch.setenv("SPECSIM_CONTROL", json.dumps(control))
        typed = []
    words = ["vllm", "serve", "m", "--scheduler-cls", "specsim.vllm.AsyncScheduler", *typed]
    monkeypatch.setattr("sys.argv", words)
    [plugin] = entry_points(group="vllm.general_plugins", name="specsim")
    plugin.load()()


@pytest.mark.parametrize("form", ["{}", "=", "variable"])
@pytest.mark.parametrize(
    ("control", "said"),
    [
        ({"policy": "godput"}, "--additional-config specsim.policy = godput: no kind 'godput'"),
        ({"policy": "static:kk=2"}, "--additional-config specsim.policy = static:kk=2: unknown"),
        ({"policy": "eagle2_tree"}, "drafts trees"),
        ({"policy": "static:k=2", "profile": "h100/nothing"}, "specsim.profile = h100/nothing: no"),
        ({"policy": "static:k=2", "log": "."}, "name a new file"),
        ({"policy": "static:k=2", "log": "missing/log"}, "name a new file"),
        ({"policy": "static:k=2", "profil": "h100"}, "profil"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(
    control: dict[str, str],
    said: str,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        started(monkeypatch, control, form=form)
    printed = capsys.readouterr().err
    assert (ended.value.code, printed.count("\n"), said in printed) == (2, 1, True)


def test_a_start_that_is_right_goes_on_and_leaves_no_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    started(monkeypatch, {"policy": "goodput", "log": "decisions.jsonl"})
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("sys.argv", ["vllm", "serve", "m", "--additional-config", "{"])
    [plugin] = entry_points(group="vllm.general_plugins", name="specsim")
    plugin.load()()


def test_a_misspelt_key_is_said_unless_more_comes_in_dotted_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["vllm", "--scheduler-cls=specsim.vllm.Scheduler", '--additional-config={"spec": 1}']
    [plugin] = entry_points(group="vllm.general_plugins", name="specsim")
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit, match="2"):
        plugin.load()()
    assert capsys.readouterr().err.startswith("error: no policy is named; add --additional-config")
    monkeypatch.setattr("sys.argv", [*words, "--additional-config.specsim.policy=off"])
    plugin.load()()
