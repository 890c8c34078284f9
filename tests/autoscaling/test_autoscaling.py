"""How many replicas there are, when, and what they cost."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsim.autoscaling import AUTOSCALING, PoolView
from specsim.core.errors import CapacityError, ConfigError
from specsim.results.folder import ResultsFolder
from specsim.results.timeline import over_time
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

Tiny = Callable[..., Experiment]


@dataclass
class Replica:
    num_running: int = 0
    num_waiting: int = 0
    outstanding_tokens: int = 0
    kv_use: float = 0.0

    def cached_len(self, prompt: object) -> int:
        return 0


def enough(scaler: dict[str, Any], replicas: list[Replica], **fields: Any) -> float:
    policy = AUTOSCALING.parse({"max_replicas": 99, **scaler})
    return policy.enough(PoolView(0.0, replicas, **fields), policy.start())


def test_targets_are_totals_over_what_one_may_have() -> None:
    pair = [Replica(3, 4, kv_use=0.5), Replica(5, 1, kv_use=0.7)]
    assert enough({"kind": "target_queue", "target": 2}, pair) == 2.5
    assert enough({"kind": "target_queue", "target": 2}, [], num_unrouted=3) == 1.5
    assert enough({"kind": "target_kv_use", "target": 0.4}, pair) == pytest.approx(3.0)
    assert enough({"kind": "target_concurrency", "target": 4}, pair) == 3.25


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ([0.9] * 10, 2.0),
        ([0.9] * 8 + [1.5] * 2, 3.0),
        ([9.0] * 10, 4.0),
        ([0.2] * 10, 1.0),
        ([], 2),
    ],
)
def test_limits_are_kept_by_the_quantile(uses: list[float], expected: float) -> None:
    scaler = {"kind": "target_slo", "target": 0.9}
    found = enough(scaler, [Replica(), Replica()], limit_use=np.array(uses))
    assert found == pytest.approx(expected)


def test_looks_at_which_nothing_has_ended_cost_nothing_later() -> None:
    policy = AUTOSCALING.parse({"kind": "target_slo", "target": 0.5, "max_replicas": 9})
    memory, pair = policy.start(), [Replica(), Replica()]
    for look in range(100):
        view = PoolView(look * 0.1, pair, limit_use=np.array([0.9] * (look == 7)))
        assert policy.enough(view, memory) == 2.0
    assert len(memory) == 1


def test_concurrency_is_averaged_over_a_window() -> None:
    policy = AUTOSCALING.parse(
        {"kind": "target_concurrency", "target": 1, "max_replicas": 9, "window_s": 10}
    )
    memory = policy.start()
    counts = {0.0: 2, 5.0: 4, 10.0: 6, 20.0: 0}
    found = [policy.enough(PoolView(at, [Replica(count)]), memory) for at, count in counts.items()]
    assert found == [2, 3, 4, 3]


def ran(tiny: Tiny, scaler: dict[str, Any], *, check: bool = True, **changes: Any) -> Summary:
    workload = {
        "arrivals": changes.pop("arrivals", {"kind": "constant", "rate": 10.0}),
        "lengths": changes.pop("lengths", {"kind": "constant", "prompt": 20, "output": 40}),
        "num_requests": changes.pop("num_requests", 200),
    }
    engine = {"num_gpu_blocks": 600, "max_model_len": 1024, "max_num_seqs": 8}
    usual = {"interval_s": 1.0, "start_up_s": 0.0, "scale_in_delay_s": 0.0, "max_replicas": 4}
    fields = {"workload": workload, "engine": engine, "acceptance": None, **changes}
    experiment = tiny(**fields, autoscaling={**usual, **scaler})
    return Summary(simulate(experiment, check=check))


def timeline(summary: Summary) -> dict[str, list[float]]:
    found: dict[str, list[float]] = summary.data["specsim"]["autoscaling"]["timeline"]
    return found


def test_a_fixed_load_costs_replicas_times_time(tiny: Tiny) -> None:
    scaler = {"kind": "target_queue", "target": 1, "min_replicas": 3, "max_replicas": 3}
    scaler["price_per_gpu_hour"] = 3.6
    summary = ran(tiny, scaler, num_requests=60)
    found = summary.data["specsim"]["autoscaling"]
    end = float(summary.tables.requests["ended_at"].max())
    assert found["replica_seconds"] == pytest.approx(3 * end, rel=1e-12)
    assert found["cost"] == pytest.approx(3 * end * 1e-3, rel=1e-12)
    assert found["changes"] == 0
    fixed = Summary(simulate(summary.run.experiment.replace(autoscaling=None, replicas=3)))
    assert fixed.tables.requests.tobytes() == summary.tables.requests.tobytes()


def test_there_are_as_many_as_littles_law_says(tiny: Tiny) -> None:
    # 30 requests/s that each take a time W: 30 W in the system, `target` of them per replica.
    load = {"kind": "constant", "rate": 30.0}
    scaler = {"kind": "target_concurrency", "target": 2.0, "max_replicas": 9, "window_s": 5}
    summary = ran(tiny, scaler, arrivals=load, num_requests=1500, check=False)
    rows = summary.tables.requests
    settled = rows[(rows["arrived_at"] > 15) & (rows["arrived_at"] < 45)]
    in_system = 30.0 * float((settled["ended_at"] - settled["arrived_at"]).mean())
    counts = timeline(summary)
    last = [n for at, n in zip(counts["at"], counts["wanted"], strict=True) if at < 45][-1]
    assert last == np.ceil(in_system / 2.0)
    assert last > 2


STEP = {"kind": "piecewise", "segments": [[10, 5], [20, 60], [20, 5]]}


def test_replicas_come_after_their_start_up_and_go_after_the_delay(tiny: Tiny) -> None:
    scaler = {
        "kind": "target_concurrency", "target": 6.0, "window_s": 0, "start_up_s": 4.0,
        "scale_in_delay_s": 6.0,
    }  # fmt: skip
    summary = ran(tiny, scaler, arrivals=STEP, num_requests=None, check=False)
    counts, rows = timeline(summary), summary.tables.requests
    changes = list(zip(*counts.values(), strict=True))
    first_start = next(at for at, _, starting, *_ in changes if starting)
    assert 10 < first_start < 13
    first_up = next(at for at, up, *_ in changes if up > 1)
    assert first_up == first_start + 4.0
    assert rows["arrived_at"][rows["replica"] > 0].min() >= first_up
    peak = max(counts["up"])
    falls = [at for (_, a, *_), (at, b, *_) in pairwise(changes) if b < a]
    assert falls[0] >= 30 + 6.0
    assert peak > 2
    assert counts["up"][-1] == 1
    assert changes[-1][0] < 50


def test_the_last_started_goes_first_and_finishes_what_it_has(tiny: Tiny) -> None:
    long = {"kind": "constant", "prompt": 20, "output": 300}  # longer than a second
    step = {"kind": "piecewise", "segments": [[10, 2], [20, 9], [30, 2]]}
    scaler = {"kind": "target_concurrency", "target": 6.0, "window_s": 0}
    summary = ran(tiny, scaler, arrivals=step, num_requests=None, lengths=long, check=False)
    counts = timeline(summary)
    assert max(counts["draining"]) > 0
    rows = summary.tables.requests
    assert (rows["requeues"] == 0).all()
    quiet = rows[rows["arrived_at"] > 45]
    assert set(quiet["replica"].tolist()) == {0}


def test_what_starts_is_given_up_before_what_is_up(tiny: Tiny) -> None:
    burst = {"kind": "piecewise", "segments": [[5, 2], [2, 80], [30, 2]]}
    scaler = {"kind": "target_concurrency", "target": 4.0, "window_s": 0, "start_up_s": 60}
    found = ran(tiny, scaler, arrivals=burst, num_requests=None)
    counts = timeline(found)
    assert max(counts["starting"]) > 0
    assert max(counts["up"]) == 1
    assert counts["starting"][-1] == 0
    spans = sorted(until - start for start, until in found.run.scalings[None].spans)
    assert 0 < spans[0] < 30  # what was paid for in vain


def test_replicas_that_fail_are_missed_at_once(tiny: Tiny) -> None:
    failure = {"kind": "failure", "replica": 0, "at": 5.25, "until": 9.0}
    scaler = {"kind": "target_queue", "target": 50, "min_replicas": 2, "start_up_s": 1.5}
    summary = ran(tiny, scaler, incidents=[failure])
    rows = [row for row in zip(*timeline(summary).values(), strict=True) if 5 < row[0] < 12]
    # at, up, starting, draining, failed, wanted
    assert rows == [(5.25, 1, 1, 0, 1, 2), (6.75, 2, 0, 0, 1, 2), (9.0, 2, 0, 0, 0, 2)]
    assert set(summary.tables.requests["replica"].tolist()) == {0, 1, 2}


def test_what_had_drained_is_not_paid_for_until_its_slot_fails(tiny: Tiny) -> None:
    failure = {"kind": "failure", "replica": 1, "at": 3.0}
    scaler = {"kind": "target_queue", "target": 50, "interval_s": 2.05}  # it drains from 2.05 on
    slow = {"arrivals": {"kind": "constant", "rate": 0.5}, "num_requests": 5}
    found = ran(tiny, scaler, replicas=2, incidents=[failure], **slow)
    last = found.tables.requests["ended_at"][1]
    assert found.run.scalings[None].spans[0] == (0.0, pytest.approx(last))


def test_without_a_free_slot_a_failed_one_is_waited_for(tiny: Tiny) -> None:
    failure = {"kind": "failure", "replica": 0, "at": 5.25, "until": 9.0}
    scaler = {"kind": "target_queue", "target": 50, "max_replicas": 1, "start_up_s": 1.5}
    summary = ran(tiny, scaler, incidents=[failure])
    rows = summary.tables.requests
    late = (rows["arrived_at"] > 5.25) & (rows["arrived_at"] < 10.5)
    assert rows["scheduled_at"][late].min() >= 10.5
    with pytest.raises(CapacityError, match="every replica has failed for good"):
        ran(tiny, scaler, incidents=[{**failure, "until": None}])


def test_none_is_there_while_nobody_asks(tiny: Tiny) -> None:
    gap = {"kind": "piecewise", "segments": [[5, 4], [60, 0], [5, 4]]}
    scaler = {"kind": "target_concurrency", "target": 4, "min_replicas": 0, "start_up_s": 3.0}
    summary = ran(tiny, {**scaler, "window_s": 0}, arrivals=gap, num_requests=None)
    assert 0 in timeline(summary)["up"]
    rows = summary.tables.requests
    back = rows[rows["arrived_at"] > 60]
    assert 3.0 <= float((back["scheduled_at"] - back["arrived_at"]).max()) <= 4.0 + 0.5
    assert summary.data["specsim"]["autoscaling"]["replica_seconds"] < 30


def test_what_comes_last_waits_until_the_only_slot_has_drained(tiny: Tiny) -> None:
    """Nothing is on the clock then but the look that sees the slot free."""
    long = {"kind": "constant", "prompt": 20, "output": 300}
    scaler = {"kind": "target_queue", "target": 1, "min_replicas": 0, "max_replicas": 1}
    scaler["interval_s"], load = 0.1, {"kind": "constant", "rate": 0.6}
    summary = ran(tiny, scaler, arrivals=load, lengths=long, num_requests=2)
    rows = summary.tables.requests
    assert max(timeline(summary)["draining"]) == 1
    assert rows["arrived_at"][1] < rows["ended_at"][0] <= rows["scheduled_at"][1]


def test_limits_are_kept_for_less_than_the_most(tiny: Tiny) -> None:
    slo = {"ttft_ms": 150}
    scaler = {"kind": "target_slo", "target": 0.95, "window_s": 3, "scale_in_delay_s": 5}
    load = {"kind": "piecewise", "segments": [[40, 10], [60, 90], [60, 10]]}
    fields = {"arrivals": load, "num_requests": None, "slo": slo, "check": False}
    lone, most, found = (
        ran(tiny, {**scaler, **bounds}, **fields)
        for bounds in (
            {"max_replicas": 1},
            {"min_replicas": 4, "max_replicas": 4},
            {"max_replicas": 4},
        )
    )
    kept = [s.data["request_goodput"] / s.data["request_throughput"] for s in (lone, found, most)]
    cost = [s.data["specsim"]["autoscaling"]["gpu_hours"] for s in (lone, found, most)]
    assert kept[0] < kept[1] - 0.2
    assert kept[1] > 0.8
    assert cost[0] < cost[1] < 0.8 * cost[2]


def test_closed_loops_and_their_clients(tiny: Tiny) -> None:
    loop = {"kind": "closed_loop", "concurrency": 20}
    scaler = {"kind": "target_concurrency", "target": 8, "interval_s": 0.2}
    summary = ran(tiny, scaler, arrivals=loop, num_requests=400)
    assert max(timeline(summary)["up"]) == 3  # 20 / 8
    assert summary.data["max_concurrent_requests"] == 20


def test_the_page_and_the_terminal_tell_of_it(tiny: Tiny, tmp_path: Path) -> None:
    summary = ran(tiny, {"kind": "target_concurrency", "target": 6.0}, arrivals=STEP)
    summary.save(tmp_path / "out")
    folder = ResultsFolder(tmp_path / "out")
    found = over_time(folder.steps, folder.own, folder.requests)["timeline"]
    assert len(found["replicas"]) == len(found["time_s"])
    assert max(found["replicas"]) == max(timeline(summary)["up"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"autoscaling": {"kind": "target_queue", "target": 1}}, "max_replicas' is missing"),
        ({"autoscaling": "target_queue:target=1,max_replicas=2,min_replicas=3"}, "exchange them"),
        ({"autoscaling": "target_queue:target=1,max_replicas=2", "replicas": 3}, "replicas = 3"),
        ({"autoscaling": "target_slo:target=0.9,max_replicas=2"}, "give slo"),
        ({"autoscaling": "target_queu:target=1,max_replicas=2"}, "did you mean 'target_queue'"),
        ({"autoscaling": "target_kv_use:target=60,max_replicas=2"}, "target = 60"),
        (
            {
                "autoscaling": "target_queue:target=1,max_replicas=2",
                "incidents": [{"kind": "failure", "replica": 2, "at": 1}],
            },
            "incidents.0.replica = 2",
        ),
        (
            {
                "autoscaling": "target_queue:target=1,max_replicas=2",
                "engine": {"data_parallel_size": 2},
                "acceptance": None,
            },
            "autoscaling with engine.data_parallel_size = 2",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str, tiny: Tiny) -> None:
    with pytest.raises(ConfigError) as found:
        tiny(**changes)
    assert message in str(found.value)
    assert "\n" not in str(found.value)
