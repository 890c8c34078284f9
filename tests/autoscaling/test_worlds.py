"""Random worlds: replicas come, drain, fail and return, and no request is lost or doubled."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specsim.autoscaling import Autoscaler
from specsim.engine.fleet import Scaling
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

KINDS: list[dict[str, Any]] = [
    {"kind": "target_queue", "target": 0.5},
    {"kind": "target_kv_use", "target": 0.1},
    {"kind": "target_concurrency", "target": 3.0, "window_s": 0.5},
    {"kind": "target_slo", "target": 0.9, "window_s": 1.0},
]
SESSIONS: dict[str, Any] = {
    "kind": "sessions",
    "turns": {"mean": 3, "sigma": 0.5},
    "first_prompt": {"mean": 60, "sigma": 0.5},
    "new_input": {"mean": 20, "sigma": 0.5},
    "output": {"mean": 15, "sigma": 0.5},
    "shared_prompt": 48,
    "think_time": {"mean": 0.1, "sigma": 0.5},
    "max_len": 700,
}
UNIFORM: dict[str, Any] = {"kind": "uniform", "prompt": [1, 200], "output": [1, 40]}


def incident(rng: random.Random, replica: int) -> dict[str, Any]:
    at = rng.uniform(0, 3)
    found = {"kind": "failure", "replica": replica, "at": at, "until": at + rng.uniform(0.05, 2)}
    return found if rng.random() < 0.7 else {**found, "kind": "slowdown", "factor": 3.0}


def world(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    most = rng.randint(1, 4)
    least = rng.randint(0, min(2, most))
    arrivals: dict[str, Any] = {"kind": "poisson", "rate": rng.choice([20.0, 60.0])}
    if rng.random() < 0.4:
        arrivals = {"kind": "closed_loop", "concurrency": rng.randint(1, 12), "think_time": 0.02}
    scaler = {
        **rng.choice(KINDS),
        "min_replicas": least,
        "max_replicas": most,
        "interval_s": rng.choice([0.1, 0.4]),
        "start_up_s": rng.choice([0.0, 0.3]),
        "scale_in_delay_s": rng.choice([0.0, 0.5]),
    }
    refreshed = {"kind": "least_outstanding", "refresh_ms": 100}
    return {
        "workload": {
            "arrivals": arrivals,
            "lengths": rng.choice([SESSIONS, UNIFORM]),
            "num_requests": 60,
        },
        "replicas": max(1, least),
        "autoscaling": scaler,
        "routing": rng.choice(["round_robin", "scored", "prefix_affinity", refreshed]),
        "incidents": [incident(rng, slot) for slot in range(most) if rng.random() < 0.6],
        "slo": {"ttft_ms": 200, "tpot_ms": 20},
        "seed": number,
    }


@pytest.mark.parametrize("number", range(40))
def test_nothing_is_lost(number: int, tiny: Callable[..., Experiment]) -> None:
    fields = world(number)
    engine = {"num_gpu_blocks": 150, "max_model_len": 1024, "max_num_seqs": 4}
    run = simulate(tiny(**fields, engine=engine, acceptance=None), check=True)
    check_requests(run)
    assert run.experiment.autoscaling is not None
    end = float(Summary(run).tables.requests["ended_at"].max())
    check_counts(run.scalings[None], run.experiment.autoscaling, end)


def check_requests(run: Run) -> None:
    """Every request ends once, in turn, and with all its tokens."""
    rows = Summary(run).tables.requests
    assert sorted(rows["request"].tolist()) == list(range(len(run.requests)))
    assert rows["output_len"].tolist() == [each.output_len for each in run.requests]
    ended: dict[int, float] = {}
    for request in run.requests:
        if request.session is None:
            continue
        arrived_at = rows["arrived_at"][request.index]
        if request.session in ended:
            assert arrived_at >= ended[request.session] + request.think_time - 1e-9
        ended[request.session] = rows["ended_at"][request.index]


def check_counts(scaling: Scaling, scaler: Autoscaler, end: float) -> None:
    """The time series is that of the spans, and within the bounds."""
    counts, spans = scaling.counts, scaling.spans
    for count in counts:
        assert count.up + count.starting + count.draining + count.failed <= scaler.max_replicas
        assert scaler.min_replicas <= count.wanted <= scaler.max_replicas
    # A replica that drains is noticed to be gone at the next look; up and starting are exact.
    known = [count for count in counts if count.at < end]
    times = np.array([*(count.at for count in known), end])
    held = sum((c.up + c.starting) * t for c, t in zip(known, np.diff(times), strict=True))
    most = held + sum(c.draining * t for c, t in zip(known, np.diff(times), strict=True))
    assert held - 1e-6 <= scaling.replica_seconds(end) <= most + 1e-6
    assert all(start <= until for start, until in spans)
