"""Step by step what the real vLLM 0.32.0 scheduler did.

The scenarios in ``recorded`` are our own, made by ``record.py``; a larger set, which is not part of
the project, is compared as well where it is at hand.
"""

import json
from pathlib import Path

import pytest
from conftest import data_folder

from specsim.core.errors import TraceError
from specsim.reality.parity import compare_logs, load_log, load_scenario, run_scenario

OWN = Path(__file__).parent / "recorded"
SHARED = data_folder().parent / "parity"
SCENARIOS = sorted(OWN.glob("*.scenario.json")) + sorted(SHARED.glob("*.scenario.json"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.name.split(".")[0])
def test_every_field_of_every_step_agrees(path: Path) -> None:
    log = path.with_name(path.name.replace(".scenario.", ".log."))
    ours = json.loads(json.dumps(run_scenario(load_scenario(path))))
    difference = compare_logs(ours, load_log(log))
    assert difference is None, str(difference)


def test_the_recordings_cover_what_they_should() -> None:
    engines = [load_scenario(path).engine for path in OWN.glob("*.scenario.json")]
    methods = {engine.spec.method for engine in engines if engine.spec}
    assert methods == {"draft_model", "eagle", "ngram"}
    for name in ("async_scheduling", "enable_prefix_caching", "long_prefill_token_threshold"):
        assert len({bool(getattr(engine, name)) for engine in engines}) == 2
    assert {engine.policy for engine in engines} == {"fcfs", "priority"}
    logs = [load_log(path) for path in OWN.glob("*.log.json")]
    assert sum(bool(step["preempted"]) for log in logs for step in log["steps"]) > 20
    assert sum(row["cached"] for log in logs for row in log["requests"]) > 500


def test_the_shared_recordings_are_at_hand() -> None:
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not here (see SPECSIM_DATA)")
    assert len(list(SHARED.glob("*.scenario.json"))) >= 30


def worked() -> tuple[dict, dict]:
    path = OWN / "worked.scenario.json"
    return run_scenario(load_scenario(path)), load_log(OWN / "worked.log.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda log: log["steps"][1]["sched"][0].__setitem__(3, 99), "request A, field sched.c"),
        (lambda log: log["steps"][1].__setitem__("t1", 0), "step 1, field t1"),
        (lambda log: log["steps"][1]["s"].__setitem__(3, 0), "step 1, field s"),
        (lambda log: log["steps"].pop(), "number of steps"),
        (lambda log: log["requests"][1].__setitem__("cached", 4), "request B, field cached"),
    ],
)
def test_any_difference_is_found_and_named(change, message: str) -> None:
    ours, theirs = worked()
    change(theirs)
    assert message in str(compare_logs(ours, theirs))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}", "is missing"), ('{"name": 1, "sead": 3}', "unknown field 'sead'"), ("{", "not JSON")],
)
def test_a_bad_scenario_is_a_clear_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.scenario.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        load_scenario(path)


def test_a_bad_log_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.log.json"
    path.write_text('{"steps": 3}')
    with pytest.raises(TraceError, match="'steps' is not a list"):
        load_log(path)
