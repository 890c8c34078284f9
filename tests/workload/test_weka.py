"""Agents that start sub-agents, and wait for them: recorded conversations, and runs of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsim.core.errors import TraceError
from specsim.core.request import Request
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.workload.readers import read_trace


def call(t: float, prompt_len: int = 130, **fields: Any) -> dict[str, Any]:
    ids = [*range(1, prompt_len // 64 + 1)]
    return {"t": t, "in": prompt_len, "out": 8, "hash_ids": ids, "api_time": 1.0, **fields}


def agent(t: float, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "status": "completed", "requests": list(requests)}


def read(path: Path, *conversations: list[dict[str, Any]]) -> list[Request]:
    lines = [json.dumps({"id": str(n), "requests": each}) for n, each in enumerate(conversations)]
    path.write_text("\n".join(lines))
    return list(read_trace(path).requests())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.jsonl"


def test_a_call_waits_for_the_sub_agents_that_had_ended(path: Path) -> None:
    requests = read(
        path,
        [
            call(0.0),
            agent(2.0, call(0.0), call(1.5)),
            agent(2.5, call(0.0, api_time=9.0)),  # ends at 11.5, after the next call
            call(8.0),
            call(20.0),
        ],
    )
    assert [each.after_turns for each in requests] == [(), (1,), (2,), (1,), (1, 3), (4, 5)]
    # After the call that ended at 1: a sub-agent from 2, whose second call is 0.5 s after its
    # first, and one from 2.5; a call at 8, and one 8.5 s after what had ended at 11.5.
    assert [each.think_time for each in requests] == [0.0, 1.0, 0.5, 1.5, 3.5, 8.5]
    assert [each.turn for each in requests] == [1, 2, 3, 4, 5, 6]


def test_without_sub_agents_turns_wait_for_the_one_before(path: Path) -> None:
    requests = read(path, [call(0.0), call(3.0)], [call(0.0), call(1.5)])
    assert [each.after_turns for each in requests] == [None] * 4
    assert [each.think_time for each in requests] == [0.0, 2.0, 0.0, 0.5]
    assert [each.session for each in requests] == [0, 0, 1, 1]


def test_a_think_time_tells_the_end_of_a_call_that_was_not_timed(path: Path) -> None:
    first = call(0.0) | {"api_time": None}
    assert read(path, [first, call(10.0, think_time=4.0)])[1].think_time == 4.0
    assert read(path, [first, call(10.0)])[1].think_time == 10.0
    late = [first, agent(1.0, call(0.0, api_time=8.0)), call(10.0, think_time=4.0)]
    assert read(path, late)[2].think_time == 1.0  # after the sub-agent that ended at 9


def test_rows_of_one_call_each_may_be_in_any_order(path: Path) -> None:
    rows = [{"id": name, **call(t, 130 + int(t))} for t in (9.0, 0.0, 4.0) for name in "ab"]
    path.write_text("\n".join(map(json.dumps, rows)))
    requests = list(read_trace(path).requests())
    assert [(each.session, each.turn, each.prompt_len) for each in requests] == [
        (0, 1, 130), (0, 2, 134), (0, 3, 139), (1, 1, 130), (1, 2, 134), (1, 3, 139)
    ]  # fmt: skip
    assert [each.think_time for each in requests[:3]] == [0.0, 3.0, 4.0]


def test_ids_are_of_one_agent_of_one_conversation(path: Path) -> None:
    requests = read(path, [call(0.0), agent(2.0, call(0.0)), call(9.0, 200)], [call(0.0)])
    parent, child, later, other = (each.shared_block_keys(64) for each in requests)
    assert later[:2] == parent
    assert len(later) == 3
    assert not {*parent} & {*child}
    assert not {*later} & {*other}


def test_a_call_that_failed_is_left_out_and_nobody_waits_for_it(path: Path) -> None:
    requests = read(path, [call(0.0), call(3.0, out=0, api_time=2.0), call(6.0)])
    assert [each.turn for each in requests] == [1, 2]
    assert requests[1].think_time == 1.0


def test_a_sub_agent_before_any_call_begins_the_conversation(path: Path) -> None:
    requests = read(path, [agent(0.0, call(0.0)), agent(0.5, call(0.0)), call(4.0)])
    assert [each.after_turns for each in requests] == [(), (1,), (1, 2)]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_agents_run_as_they_wait(
    tiny: Callable[..., Experiment], path: Path, concurrency: int
) -> None:
    talks = [
        [call(0.0), agent(2.0, call(0.0), call(1.5)), agent(2.0, call(0.0, 70)), call(8.0, 200)]
        for _ in range(5)
    ]
    read(path, *talks)
    arrivals = {"kind": "closed_loop", "concurrency": concurrency}
    workload = {"arrivals": arrivals, "lengths": {"kind": "trace", "path": str(path)}}
    run = simulate(tiny(workload=workload, engine={"max_model_len": 512}))
    rows = Summary(run).tables.requests
    assert len(rows) == 25
    begun = []
    for session in range(5):
        mine = rows[5 * session : 5 * session + 5]
        first, child, second, other, last = mine
        assert child["arrived_at"] == pytest.approx(first["ended_at"] + 1.0)
        assert other["arrived_at"] == child["arrived_at"]  # both at work at the same time
        assert second["arrived_at"] == pytest.approx(child["ended_at"] + 0.5)
        waited = max(second["ended_at"], other["ended_at"])
        assert last["arrived_at"] == pytest.approx(waited + 8.0 - 4.5)
        begun.append(first["arrived_at"])
    ends = np.sort(rows["ended_at"][4::5])
    assert begun[concurrency:] == pytest.approx(ends[: 5 - concurrency])  # who ends lets one begin


@pytest.mark.parametrize(
    ("requests", "what"),
    [
        ([call(0.0, api_time=-1)], "line 1, request 0: api_time = -1 must be at least 0 s"),
        ([call(0.0), {"t": 1.0, "type": "subagent"}], "line 1, request 1: no value for 'requests'"),
        ([call("soon")], "request 0: t = 'soon' is not a finite number"),
        ([agent(0.0, call(0.0, hash_ids=[1.5]))], r"request 0, request 0: hash_ids\[0\] = 1.5"),
        ("none", "line 1: requests is not a list of objects"),
        ([3], "line 1: requests is not a list of objects"),
    ],
)
def test_what_makes_no_sense_is_refused(path: Path, requests: Any, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        read(path, requests)


@pytest.mark.parametrize(
    ("after", "what"),
    [
        ([[], [2]], r"after_turns = \[2\] of turn 2 of its session must name at least one turn"),
        ([[], []], r"after_turns = \[\] of turn 2"),
        ([[1], [1]], r"after_turns = \[1\] of turn 1 of its session must name none"),
        ([[], [0]], r"after_turns = \[0\] of turn 2"),
    ],
)
def test_native_rows_wait_for_earlier_turns(path: Path, after: list[Any], what: str) -> None:
    rows = [{"prompt_len": 5, "output_len": 5, "session": 1, "after_turns": each} for each in after]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(TraceError, match=what):
        list(read_trace(path).requests())
