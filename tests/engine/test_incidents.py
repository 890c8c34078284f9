"""Replicas that fail or get slow: nothing is lost, and everybody else waits longer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import Run as Cli
from conftest import tiny_config
from deliveries import every_delivery, gaps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import engines, workloads

from specsim.core.errors import CapacityError
from specsim.core.request import Request
from specsim.policies import POLICIES, Policy, check_proposer
from specsim.proposers import PROPOSERS
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

STEP = 0.25  # seconds


@pytest.fixture
def run(constant_step: Callable[..., str]) -> Callable[..., Run]:
    """Run requests (arrival, prompt, output) on two replicas with a constant step."""

    def start(
        rows: list[tuple[float, int, int]], incidents: list[dict[str, Any]], **changes: Any
    ) -> Run:
        engine = {"num_gpu_blocks": 100, "max_model_len": 64, "max_num_batched_tokens": 64,
                  "max_num_seqs": 8, "async_scheduling": False,
                  "enable_prefix_caching": False, **changes.pop("engine", {})}  # fmt: skip
        config = tiny_config(
            engine=engine,
            profile=constant_step(delta_ms=STEP * 1e3, **changes.pop("costs", {})),
            incidents=incidents,
            **{"replicas": 2, **changes},
        )
        requests = [
            Request(index=i, arrived_at=at, prompt_len=prompt, output_len=output)
            for i, (at, prompt, output) in enumerate(rows)
        ]
        return simulate(
            Experiment.parse(config, "incidents"),
            requests=requests,
            check=True,
            keeps_deliveries=True,
        )

    return start


def failure(replica: int, at: float, until: float | None = None) -> dict[str, Any]:
    return {"kind": "failure", "replica": replica, "at": at, "until": until}


def slowdown(replica: int, at: float, until: float | None, factor: float) -> dict[str, Any]:
    return {**failure(replica, at, until), "kind": "slowdown", "factor": factor}


def timeline(result: Run) -> list[tuple[float, ...]]:
    rows = Summary(result).tables.requests
    return [(r["scheduled_at"], r["first_token_at"], r["ended_at"]) for r in rows]


def steps(result: Run, replica: int) -> list[tuple[float, ...]]:
    names = ("scheduled_at", "ended_at", "prefill_tokens", "num_requests")
    return [tuple(row[name] for name in names) for row in result.replicas[replica].steps]


def test_requests_of_a_failed_replica_go_on_elsewhere(run: Callable[..., Run]) -> None:
    # Requests 0 and 2 are replica 0's, request 1 is replica 1's. At 0.625 replica 0 is half way
    # through its third step, which is lost: 0 and 2 have two tokens each.
    rows = [(0.0, 10, 4), (0.0, 20, 4), (0.0, 30, 4)]
    result = run(rows, [failure(0, at=0.625)])
    assert steps(result, 0) == [(0.0, 0.25, 40, 2), (0.25, 0.5, 0, 2)]
    # Replica 1 takes them when its own third step ends, at 0.75: prompts and two tokens each.
    assert steps(result, 1)[2:] == [
        (0.5, 0.75, 0, 1), (0.75, 1.0, 12 + 32, 3), (1.0, 1.25, 0, 2),
    ]  # fmt: skip
    assert timeline(result) == [(0.0, 0.25, 1.25), (0.0, 0.25, 1.0), (0.0, 0.25, 1.25)]
    tables = Summary(result).tables
    assert tables.requests["requeues"].tolist() == [1, 0, 1]
    assert tables.requests["replica"].tolist() == [1, 1, 1]
    assert tables.requests["preemptions"].tolist() == [0, 0, 0]
    # The gaps of a request that moved lead from one replica to the other.
    assert gaps(result) == [[0.25, 0.5, 0.25], [0.25, 0.25, 0.25], [0.25, 0.5, 0.25]]
    assert np.repeat(tables.gaps["value"], tables.gaps["count"]).tolist() == [0.25] * 7 + [0.5] * 2
    assert Summary(result).data["specsim"]["num_requeues"] == 2


def test_a_step_that_ends_when_the_replica_fails_is_lost(run: Callable[..., Run]) -> None:
    result = run([(0.0, 10, 2)], [failure(0, at=0.5)])
    assert steps(result, 0) == [(0.0, 0.25, 10, 1)]
    assert steps(result, 1) == [(0.5, 0.75, 11, 1)]


def test_a_request_that_arrives_when_a_replica_fails_goes_elsewhere(
    run: Callable[..., Run],
) -> None:
    result = run([(0.0, 1, 1), (0.0, 1, 1), (1.0, 1, 1)], [failure(0, at=1.0)])
    assert Summary(result).tables.requests["replica"].tolist() == [0, 1, 1]


def test_a_replica_that_is_back_is_used_again_and_remembers_nothing(
    run: Callable[..., Run],
) -> None:
    engine = {"enable_prefix_caching": True, "block_size": 4}
    rows = [(0.0, 16, 9), (1.0, 1, 1), (2.0, 1, 1), (2.0, 1, 1)]
    result = run(rows, [failure(0, at=0.5, until=2.0)], engine=engine)
    tables = Summary(result).tables
    # Request 1 would be replica 1's turn of two, and is its turn of one; then turns go on.
    assert tables.requests["replica"].tolist() == [1, 1, 1, 0]
    assert steps(result, 0)[-1] == (2.0, 2.25, 1, 1)


def test_without_any_replica_requests_wait_for_one(run: Callable[..., Run]) -> None:
    incidents = [failure(0, at=0.5, until=3.0), failure(1, at=0.5, until=4.0)]
    result = run([(0.0, 10, 3), (1.0, 5, 1)], incidents)
    # Replica 0 is back first and gets both, in order; the first prefills prompt and one token.
    assert timeline(result) == [(0.0, 0.25, 3.5), (3.0, 3.25, 3.25)]
    assert steps(result, 0)[1:] == [(3.0, 3.25, 16, 2), (3.25, 3.5, 0, 1)]
    assert steps(result, 1) == []


@pytest.mark.parametrize("arrivals", ["burst", {"kind": "closed_loop", "concurrency": 2}])
def test_replicas_that_never_come_back_leave_requests_unanswered(
    arrivals: Any, run: Callable[..., Run]
) -> None:
    workload = {**tiny_config()["workload"], "arrivals": arrivals}
    with pytest.raises(CapacityError, match="every replica has failed for good and 2 requests"):
        run([(0.0, 10, 9)] * 2, [failure(0, at=1.0), failure(1, at=0.5)], workload=workload)


def test_all_waiting_ones_move_behind_those_that_ran(run: Callable[..., Run]) -> None:
    engine = {"max_num_seqs": 1, "max_num_batched_tokens": 64}
    rows = [(0.0, 1, 4), (0.0, 1, 2), (0.0, 1, 1), (0.0, 1, 1), (0.0, 1, 1)]
    result = run(rows, [failure(0, at=0.25)], engine=engine)
    # Replica 1 has 1 and 3; then come 0, which ran, and 2 and 4, which waited.
    ends = Summary(result).tables.requests["ended_at"]
    assert np.argsort(ends).tolist() == [1, 3, 0, 2, 4]


def test_a_slow_replica_takes_longer_for_what_it_schedules_meanwhile(
    run: Callable[..., Run],
) -> None:
    # The step from 0.25 to 0.5 was scheduled before; the one at 1.5 after it.
    result = run([(0.0, 10, 6)], [slowdown(0, at=0.375, until=1.5, factor=2.0)])
    ends = [row[1] for row in steps(result, 0)]
    assert ends == [0.25, 0.5, 1.0, 1.5, 1.75, 2.0]


def test_all_parts_of_a_slow_step_take_longer(run: Callable[..., Run]) -> None:
    spec = {"method": "eagle3", "num_speculative_tokens": 2}
    costs = {"drafts": {"eagle3": {"target_share": 0.25}}, "overhead": {"step_ms": 125}}
    engine = {"speculative_config": spec}
    rows = [(0.0, 10, 9)]
    result = run(rows, [slowdown(0, 0.0, None, 4.0)], costs=costs, engine=engine)
    names = ("target_time", "draft_time", "overhead_time")
    usual = run(rows, [], costs=costs, engine=engine)
    for name in names:
        takes = usual.replicas[0].steps[name][:-1]  # after the last step nothing is drafted
        assert len(takes) > 1
        assert takes.all()
        assert result.replicas[0].steps[name][:-1].tolist() == (4.0 * takes).tolist()


def test_a_replica_can_fail_after_it_has_been_slow(run: Callable[..., Run]) -> None:
    incidents = [slowdown(0, 0.0, 1.0, 2.0), failure(0, 1.0, 1.5), slowdown(0, 1.5, 9.0, 3.0)]
    result = run([(0.0, 1, 9), (2.0, 1, 1)], incidents, routing="least_outstanding")
    assert steps(result, 0) == [(0.0, 0.5, 1, 1), (2.0, 2.75, 1, 1)]


def test_incidents_after_the_end_are_said(run: Callable[..., Run]) -> None:
    result = run([(0.0, 1, 2)], [slowdown(1, 99.0, None, 2.0)])
    message = "incidents.0: the slowdown at 99 s came after the run had ended, at 0.5 s"
    assert Summary(result).warnings == [message]


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    engine=engines(),
    workload=workloads(),
    times=st.lists(st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6]), min_size=6,
                   max_size=6),
    replicas=st.integers(2, 3),
    routing=st.sampled_from(["round_robin", "least_outstanding_tokens", "prefix_affinity"]),
)  # fmt: skip
def test_whatever_happens_every_request_ends_once_and_whole(
    every_method: str, engine: dict[str, Any], workload: dict[str, Any], times: list[float],
    replicas: int, routing: str,
) -> None:  # fmt: skip
    incidents = []
    for number in range(replicas):
        first, second = sorted(times[2 * number : 2 * number + 2])
        if first < second:
            incidents.append(failure(number, first, second))
        incidents.append(slowdown(number, second, second + 0.3, 3.0))
    config = tiny_config(
        engine=engine, workload=workload, profile=every_method,
        replicas=replicas, routing=routing, incidents=incidents,
    )  # fmt: skip
    result = simulate(Experiment.parse(config, "random"), check=True, keeps_deliveries=True)
    tables = Summary(result).tables
    ended = np.sort(np.concatenate([records.requests["request"] for records in result.replicas]))
    assert ended.tolist() == list(range(len(result.requests)))
    rows = tables.requests
    assert rows["output_len"].tolist() == [
        min(r.output_len, engine["max_model_len"] - r.prompt_len) for r in result.requests
    ]
    assert tables.steps["output_tokens"].sum() == rows["output_len"].sum()
    assert (rows["scheduled_at"] < rows["first_token_at"]).all()
    assert (rows["first_token_at"] <= rows["ended_at"]).all()
    assert (tables.gaps["value"] > 0).all()
    spans = [sum(mine) for mine in gaps(result)]
    assert spans == pytest.approx((rows["ended_at"] - rows["first_token_at"]).tolist())
    spelt_out = np.repeat(tables.gaps["value"], tables.gaps["count"])
    assert sorted(spelt_out) == sorted(gap for mine in gaps(result) for gap in mine)
    for records, number in zip(result.replicas, range(replicas), strict=True):
        down = [i for i in incidents if i["kind"] == "failure" and i["replica"] == number]
        for incident in down:
            ends = records.steps["ended_at"]
            assert not ((ends >= incident["at"]) & (ends <= incident["until"])).any()


def fits(policy: Policy) -> bool:
    """Return whether a policy takes the proposer of `tiny_config`, and no texts."""
    try:
        check_proposer(policy, PROPOSERS.parse(tiny_config()["engine"]["speculative_config"]))
    except ValueError:
        return False
    return not policy.uses_tokens


EACH = [
    POLICIES.parse({"kind": kind, **member.examples[0]})
    for kind, member in POLICIES.members.items()
]


@pytest.mark.parametrize("policy", [*filter(fits, EACH)], ids=lambda policy: policy.kind)
def test_every_policy_survives_a_failure(policy: Policy, tiny: Callable[..., Experiment]) -> None:
    incidents = [failure(0, 0.05, 0.2), failure(1, 0.1, 0.15)]
    workload = {**tiny_config()["workload"], "arrivals": {"kind": "burst"}}
    experiment = tiny(policy=policy, replicas=2, incidents=incidents, workload=workload)
    summaries = [Summary(simulate(experiment, check=check)) for check in (True, False)]
    assert summaries[0].data == summaries[1].data
    assert summaries[0].data["specsim"]["num_requeues"] > 0


def test_luck_survives_a_failure(run: Callable[..., Run]) -> None:
    # Drafts at a given output position meet the same fate wherever they are made.
    spec = {"method": "eagle3", "num_speculative_tokens": 1}
    options: dict[str, Any] = {
        "engine": {"speculative_config": spec}, "costs": {"drafts": {"eagle3": {}}},
    }  # fmt: skip
    rows = [(0.0, 5, 40)]
    usual = run(rows, [], **options)
    moved = run(rows, [failure(0, 1.125)], **options)
    lens = [every_delivery(result).lens.tolist() for result in (usual, moved)]
    assert sum(lens[0]) == sum(lens[1]) == 40
    before = int(moved.replicas[0].steps["deliveries"].sum())
    assert lens[1][:before] == lens[0][:before]
    # After the move one step has no draft to verify; then positions are met in another rhythm,
    # but from the first common position on all is as it was.
    positions = [np.cumsum(each).tolist() for each in lens]
    common = next(p for p in positions[1][before:] if p in positions[0])
    tails = [each[each.index(common) :] for each in positions]
    assert tails[0] == tails[1]


@pytest.mark.parametrize(
    ("incident", "message"),
    [
        ({"kind": "fire", "replica": 0, "at": 1}, "with kind: failure or"),
        ({"replica": 0, "at": 1}, "with kind: failure or"),
        ("failure", "with kind: failure or"),
        ({"kind": "failure", "replica": 2, "at": 1}, "their numbers are 0 to 1"),
        ({"kind": "failure", "replica": -1, "at": 1}, "greater than or equal to 0"),
        ({"kind": "failure", "replica": 0, "at": -1}, "greater than or equal to 0"),
        ({"kind": "failure", "replica": 0, "at": 1, "until": 1}, "until = 1.0 must be after at"),
        ({"kind": "failure", "replica": 0, "at": 1, "factor": 2}, "unknown field 'factor'"),
        ({"kind": "failure", "replica": 0, "at": float("nan")}, "finite number"),
        ({"kind": "slowdown", "replica": 0, "at": 1}, "factor' is missing"),
        ({"kind": "slowdown", "replica": 0, "at": 1, "factor": 0}, "greater than 0"),
        ({"kind": "slowdown", "replica": 0, "at": 1, "factor": 1e99}, "less than or equal to"),
        ({"kind": "slowdown", "replica": 1, "at": 3, "factor": 2}, "replica 1 overlap: failure"),
    ],
)
def test_what_cannot_happen_is_refused(
    incident: Any, message: str, cli: Cli, tmp_path: Any
) -> None:
    incidents = [{"kind": "failure", "replica": 1, "at": 2, "until": 4}, incident]
    path = tmp_path / "exp.yaml"
    path.write_text(yaml.safe_dump(tiny_config(replicas=2, incidents=incidents)))
    code, out, err = cli("run", path, "--out", "r")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_an_experiment_with_incidents_survives_a_round_trip(tmp_path: Any) -> None:
    incidents = [failure(0, 1.0), slowdown(1, 2.0, 3.0, 1.5)]
    experiment = Experiment.parse(tiny_config(replicas=2, incidents=incidents), "test")
    experiment.save(tmp_path / "saved.yaml")
    assert Experiment.load(tmp_path / "saved.yaml") == experiment


def test_incidents_left_out_change_no_hash(tiny: Callable[..., Experiment]) -> None:
    assert "incidents" not in tiny().to_dict()
    assert tiny().hash != tiny(incidents=[failure(0, 1.0)]).hash
