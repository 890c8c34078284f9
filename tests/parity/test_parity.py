"""Step by step what the real schedulers of vLLM 0.28.0 to 0.33.0 did.

The scenarios in ``recorded`` are our own, made by ``record.py``; a larger set, which is not part of
the project, is compared as well where it is at hand.
"""

import gzip
import json
from pathlib import Path

import pytest
from conftest import data_folder
from pydantic import ValidationError

from specsim.core.errors import TraceError
from specsim.engine.versions import RULES
from specsim.reality.parity import as_in_log, compare_logs, load_log, load_scenario, run_scenario

OWN = Path(__file__).parent / "recorded"
SHARED = data_folder().parent / "parity"
SHARED_GROUPS = data_folder().parent / "parity-kv-groups"
SHARED_STATES = data_folder().parent / "parity-states"
SCENARIOS = [
    path
    for folder in (OWN, SHARED, SHARED_GROUPS, SHARED_STATES)
    for path in sorted([*folder.glob("*.scenario.json"), *folder.glob("*.scenario.json.gz")])
]
NEWER = data_folder().parent / "parity-vllm-0.33"
"""What vLLM 0.33.0 made of the shared scenarios."""
IN_NEWER = [
    (path, log)
    for path in SCENARIOS
    if path.parent != OWN and (log := NEWER / f"{path.name.split('.')[0]}.log.json.gz").exists()
]
IN_OTHERS = sorted(OWN.glob("*/*.scenario.json"))
"""Recordings of other versions, each in a folder of its name, that other rules do not reproduce."""
WITH_GROUPS = [path for path in SCENARIOS if load_scenario(path).engine.kv_groups]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.name.split(".")[0])
def test_every_field_of_every_step_agrees(path: Path) -> None:
    log = path.with_name(path.name.replace(".scenario.", ".log."))
    ours = json.loads(json.dumps(run_scenario(load_scenario(path))))
    difference = compare_logs(ours, load_log(log))
    assert difference is None, str(difference)


@pytest.mark.parametrize(
    ("path", "log"), IN_NEWER, ids=[path.name.split(".")[0] for path, _ in IN_NEWER]
)
def test_every_field_of_every_step_agrees_with_the_newer_version(path: Path, log: Path) -> None:
    theirs = load_log(log)
    # The invariants of these scenarios are checked above, those of this version's rules below.
    ours = run_scenario(as_in_log(load_scenario(path), theirs, log), check=False)
    difference = compare_logs(json.loads(json.dumps(ours)), theirs)
    assert difference is None, str(difference)


@pytest.mark.parametrize(
    "path", IN_OTHERS, ids=[f"{path.parent.name}-{path.name.split('.')[0]}" for path in IN_OTHERS]
)
def test_other_versions_agree_with_their_own_rules_alone(path: Path) -> None:
    log = path.with_name(path.name.replace(".scenario.", ".log."))
    theirs = load_log(log)
    scenario = as_in_log(load_scenario(path), theirs, log)
    assert scenario.engine.vllm_version == path.parent.name
    difference = compare_logs(json.loads(json.dumps(run_scenario(scenario))), theirs)
    assert difference is None, str(difference)
    versions = list(RULES)
    place = versions.index(path.parent.name)
    beside = versions[place + 1 if place + 1 < len(versions) else place - 1]
    engine = scenario.engine.model_copy(update={"vllm_version": beside})
    if engine.prefill_schedule_interval:
        with pytest.raises(ValidationError, match=r"vLLM has it since 0\.33, not in vllm_version"):
            engine.to_config()
        return
    ours = run_scenario(scenario.model_copy(update={"engine": engine}))
    assert compare_logs(json.loads(json.dumps(ours)), theirs) is not None


def test_there_are_recordings_of_every_other_version() -> None:
    assert {path.parent.name for path in IN_OTHERS} == {*RULES} - {"0.32"}


def test_the_recordings_of_the_newer_version_are_at_hand() -> None:
    if not NEWER.exists():
        pytest.skip(f"{NEWER} is not here (see SPECSIM_DATA)")
    assert len(IN_NEWER) >= 50
    assert all(load_log(log)["vllm_version"] == "0.33.0" for _, log in IN_NEWER)


def test_the_recordings_cover_what_they_should() -> None:
    engines = [load_scenario(path).engine for path in OWN.glob("*.scenario.json")]
    methods = {engine.spec.method for engine in engines if engine.spec}
    drafters = {"draft_model", "eagle", "mtp", "dflash", "dspark"}
    assert methods == drafters | {"ngram", "ngram_gpu"}
    for name in ("async_scheduling", "enable_prefix_caching", "long_prefill_token_threshold"):
        assert len({bool(getattr(engine, name)) for engine in engines}) == 2
    assert {engine.policy for engine in engines} == {"fcfs", "priority"}
    logs = [load_log(path) for path in OWN.glob("*.log.json")]
    assert sum(bool(step["preempted"]) for log in logs for step in log["steps"]) > 20
    assert sum(row["cached"] for log in logs for row in log["requests"]) > 500


@pytest.mark.parametrize(
    ("folder", "count"), [(SHARED, 30), (SHARED_GROUPS, 13), (SHARED_STATES, 7)]
)
def test_the_shared_recordings_are_at_hand(folder: Path, count: int) -> None:
    if not folder.exists():
        pytest.skip(f"{folder} is not here (see SPECSIM_DATA)")
    assert len(list(folder.glob("*.scenario.json*"))) >= count


@pytest.mark.parametrize("path", WITH_GROUPS, ids=lambda path: path.name.split(".")[0])
def test_groups_are_those_that_vllm_formed(path: Path) -> None:
    engine = load_scenario(path).engine
    spec = engine.spec
    proposer = spec.proposer if spec else None
    setup = engine.to_config().setup(
        proposer, spec.k if spec else 0, is_dynamic=False, is_async=engine.async_scheduling
    )
    rows = zip(setup.kv.groups, setup.table().groups, strict=True)
    ours = [
        {
            "kind": group.kind,
            "window": group.span_len if group.kind == "sliding_window" else None,
            "chunk": group.span_len if group.kind == "chunked_local_attention" else None,
            "block_size": int(row["block_size"]),
            "layers": group.num_layers,
            "drops_last_hit": bool(row["drops"]),
            "max_admission_blocks": int(row["most_admitted"]),
        }
        for group, row in rows
    ]
    theirs = load_log(path.with_name(path.name.replace(".scenario.", ".log.")))
    known = theirs["derived"]["kv_groups"]
    if not engine.enable_prefix_caching:  # there are no hits
        known = [{k: v for k, v in row.items() if k != "drops_last_hit"} for row in known]
    assert [{name: row[name] for name in told} for row, told in zip(ours, known, strict=True)] == (
        known
    )


def test_the_recordings_with_groups_cover_what_they_should() -> None:
    engines = [load_scenario(path).engine for path in WITH_GROUPS if path.parent == OWN]
    logs = [load_log(path.with_name(path.name.replace(".scenario.", ".log.")))
            for path in WITH_GROUPS if path.parent == OWN]  # fmt: skip
    groups = [group for log in logs for group in log["derived"]["kv_groups"]]
    kinds = {"full_attention", "sliding_window", "chunked_local_attention", "state"}
    assert {group["kind"] for group in groups} == kinds
    assert {len(log["derived"]["kv_groups"]) for log in logs} >= {1, 2, 3}
    sizes = [{group["block_size"] for group in log["derived"]["kv_groups"]} for log in logs]
    assert max(map(len, sizes)) > 1
    assert {bool(engine.async_scheduling) for engine in engines} == {True, False}
    assert {engine.spec.method for engine in engines if engine.spec} >= {"eagle", "mtp"}
    assert sum(bool(step["preempted"]) for log in logs for step in log["steps"]) > 20
    assert sum(row["cached"] for log in logs for row in log["requests"]) > 500


def test_the_recordings_with_loads_cover_what_they_should() -> None:
    scenarios = [load_scenario(path) for path in OWN.glob("loads-*.scenario.json")]
    logs = [load_log(path) for path in OWN.glob("loads-*.log.json")]
    assert {bool(scenario.engine.async_scheduling) for scenario in scenarios} == {True, False}
    assert {scenario.engine.policy for scenario in scenarios} == {"fcfs", "priority"}
    assert {scenario.loads.held_ns is None for scenario in scenarios} == {True, False}
    parts = [row.external_len / row.prompt_len for each in scenarios for row in each.requests]
    assert sum(part == 1 for part in parts) > 20
    assert sum(0 < part < 1 for part in parts) > 10
    rows = [row for each in scenarios for row in each.requests]
    assert sum(row.abort_ns is not None for row in rows) > 10
    assert sum(row.lora > 0 and row.prompt_len == row.external_len == 1 for row in rows) > 5
    assert sum(bool(step["preempted"]) for log in logs for step in log["steps"]) > 20
    assert sum(not step["sched"] for log in logs for step in log["steps"]) > 20


def test_the_recordings_with_host_memory_cover_what_they_should() -> None:
    paths = sorted(OWN.glob("host-*.scenario.json"))
    scenarios = [load_scenario(path) for path in paths]
    logs = [load_log(path.with_name(path.name.replace(".scenario.", ".log."))) for path in paths]
    assert {scenario.engine.async_scheduling for scenario in scenarios} == {True, False}
    assert {scenario.engine.policy for scenario in scenarios} == {"fcfs", "priority"}
    assert {each.engine.spec.method for each in scenarios if each.engine.spec} >= {"eagle"}
    assert {scenario.loads.offload_prompt_only for scenario in scenarios} == {True, False}
    assert min(scenario.loads.host_blocks for scenario in scenarios) <= 10
    assert sum(bool(step["preempted"]) for log in logs for step in log["steps"]) > 10
    # Without host memory they run otherwise, or they would show nothing.
    for scenario, log in zip(scenarios, logs, strict=True):
        loads = scenario.loads.model_copy(update={"host_blocks": 0})
        without = run_scenario(scenario.model_copy(update={"loads": loads}))
        assert compare_logs(json.loads(json.dumps(without)), log) is not None


def worked() -> tuple[dict, dict]:
    path = OWN / "worked.scenario.json"
    return run_scenario(load_scenario(path)), load_log(OWN / "worked.log.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda log: log["steps"][1]["sched"][0].__setitem__(3, 99), "request A, field sched.c"),
        (lambda log: log["steps"][1].__setitem__("t1", 0), "step 1, field t1"),
        (lambda log: log["steps"][1]["s"].__setitem__(3, 0), "step 1, field s"),
        (lambda log: log["steps"][1].__setitem__("skip_drafts", True), "field skip_drafts"),
        (lambda log: log["steps"].pop(), "number of steps"),
        (lambda log: log["requests"][1].__setitem__("cached", 4), "request B, field cached"),
        (lambda log: log["requests"].pop(), "field id: ours"),
        (lambda log: log["requests"][0].pop("out"), "theirs None"),
        (lambda log: log["steps"][1].pop("sched"), "step 1, field sched"),
    ],
)
def test_any_difference_is_found_and_named(change, message: str) -> None:
    ours, theirs = worked()
    change(theirs)
    assert message in str(compare_logs(ours, theirs))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "is no recorded scenario, which has engine, cost and requests"),
        ('{"requests": []}', "is missing"),
        ('{"cost": {}, "name": 1, "sead": 3}', "unknown field 'sead'"),
        ("{", "not JSON"),
    ],
)
def test_a_bad_scenario_is_a_clear_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.scenario.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        load_scenario(path)


@pytest.mark.parametrize("version", ["0.27.1", ["0.33"], None])
def test_a_log_of_an_unknown_version_is_a_clear_error(version: object) -> None:
    scenario = load_scenario(OWN / "worked.scenario.json")
    with pytest.raises(TraceError, match=r"x.json: vllm_version = .*: known are 0\.28, 0\.29, "):
        as_in_log(scenario, {"vllm_version": version}, Path("x.json"))


def test_a_bad_log_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.log.json"
    path.write_text('{"steps": 3}')
    with pytest.raises(TraceError, match="'steps' is not a list"):
        load_log(path)


def test_a_log_may_be_compressed(tmp_path: Path) -> None:
    text = (OWN / "worked.log.json").read_bytes()
    path = tmp_path / "worked.log.json.gz"
    path.write_bytes(gzip.compress(text))
    assert load_log(path) == load_log(OWN / "worked.log.json")
    for broken in (gzip.compress(text)[:-20], b"plain"):
        path.write_bytes(broken)
        with pytest.raises(TraceError, match="is not gzip, or not all of it"):
            load_log(path)
