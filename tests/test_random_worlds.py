"""Random worlds: some of those of `make fuzz`, those that were once broken, and planted faults."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import worlds
from world_checks import covered
from world_making import World
from world_parts import PythonGoodput, PythonJoint, Uncompiled
from world_relations import RELATIONS
from worlds import KEPT, look_at, problem_of

from specsim.engine.cluster import Cluster
from specsim.engine.front import Front
from specsim.engine.integrity import IntegrityCheck
from specsim.engine.pools import PoolCluster
from specsim.engine.transfer import Link
from specsim.latency.measured import Tabulated
from specsim.profile.costs import Overhead
from specsim.results.records import ReplicaRecords
from specsim.routing.simple import LeastOutstanding
from specsim.run.deployment import Deployment


@pytest.mark.parametrize("number", range(24))
def test_what_holds_in_every_world(number: int) -> None:
    assert look_at(number)[1] is None


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_worlds_that_were_once_broken(path: Path) -> None:
    assert problem_of(json.loads(path.read_text())) is None


def test_what_is_compared_with_loops_is_asked_in_python() -> None:
    assert not PythonGoodput().is_asked_in_loops
    assert not PythonJoint().is_asked_in_loops


def plain_world(relation: str) -> World:
    """Three replicas, tokenization, five requests at once."""
    linear = {"kind": "linear", "alpha_ns": 100.0, "gamma_us": 20.0, "delta_ms": 5.0}
    provenance = {"engine": "none", "source": "made up", "date": "2026-01-01"}
    return {
        "config": {
            "workload": {
                "arrivals": "burst",
                "lengths": {"kind": "constant", "prompt": 9, "output": 3},
                "num_requests": 5,
            },
            "engine": {
                "block_size": 4,
                "num_gpu_blocks": 30,
                "max_model_len": 24,
                "max_num_seqs": 2,
                "max_num_batched_tokens": 24,
                "enable_prefix_caching": False,
                "async_scheduling": False,
            },
            "profile": "profile.yaml",
            "replicas": 3,
        },
        "profile": {
            "model": "llama-3.1-8b",
            "gpu": "h100",
            "provenance": provenance,
            "target": linear,
            "overhead": {"front_ms": 1.0, "front_token_us": 100.0},
            "valid_range": {"context_tokens": 1000, "batched_tokens": 1000},
        },
        "rows": None,
        "relations": [relation],
    }


def pools_world(relation: str) -> World:
    """Prompts here, answers there, with room for all."""
    world = plain_world(relation)
    del world["config"]["replicas"]
    world["config"]["engine"]["num_gpu_blocks"] = 900
    slow = {"bandwidth_gb_s": 1.0, "latency_ms": 2.0}
    world["config"]["pools"] = {"prefill": {"replicas": 2}, "transfer": slow}
    return world


def wrapped(owner: Any, name: str, change: Callable[..., Any]) -> tuple[Any, str, Any]:
    """Return what to put in place of a function: one that is given the old one first."""
    old = getattr(owner, name)
    return owner, name, lambda *args, **fields: change(old, *args, **fields)


def _late(old: Any, front: Front, sent_at: float, index: int, prompt_len: int) -> float:
    instant: float = old(front, sent_at, index, prompt_len) + 0.01
    front.delays[index] += 0.01
    return instant


def _watched(old: Any, check: IntegrityCheck, step: Any) -> None:
    old(check, step)
    step.table.state["slowness"] = 2.0


def _more(old: Any, overhead: Overhead, **fields: Any) -> Overhead:
    mine: Overhead = old(overhead, **fields)
    return mine.model_copy(update={"step_ms": mine.step_ms + 0.25})


def _shared(old: Any, deployment: Deployment, num_engines: int, num_requests: int) -> Front:
    front: Front = old(deployment, num_engines, num_requests)
    if num_engines == 4:
        front.front_time *= 2
    return front


def _too_early(old: Any, records: ReplicaRecords, rows: Any) -> None:
    rows = rows.copy()
    rows["arrived_at"] -= 0.001
    old(records, rows)


def _shorter(old: Any, records: ReplicaRecords, rows: Any) -> None:
    rows = rows.copy()
    rows["ended_at"] -= 0.002
    old(records, rows)


def _told_late(old: Any, cluster: PoolCluster, replica: Any, kind: int, *place: int) -> None:
    cluster.clock.call_after(0.01, lambda: old(cluster, replica, kind, *place))


def _dearer(old: Any, latency: Tabulated) -> Any:
    times = tuple(tuple(2 * time for time in row) for row in latency.decode.times_ms)
    decode = latency.decode.model_copy(update={"times_ms": times})
    return old(latency.model_copy(update={"decode": decode}))


FAULTS: dict[str, Any] = {
    "tokenizers": wrapped(Front, "reaches_at", _late),
    "arrivals": wrapped(ReplicaRecords, "add_requests", _too_early),
    "replica": wrapped(ReplicaRecords, "add_steps", _shorter),
    "link": wrapped(Link, "book", lambda old, link, now, *rest: old(link, now + 0.01, *rest)),
    "loaded": wrapped(PoolCluster, "tell", _told_late),
    "again": wrapped(IntegrityCheck, "delivered", _watched),
    "doubled": wrapped(Overhead, "of_engine", _more),
    "cut": wrapped(Cluster, "slow_down", lambda old, its, number, by: old(its, number, 1.5 * by)),
    "python": wrapped(Uncompiled, "forward_time", lambda old, its, load: 1.1 * old(its, load)),
    "alone": wrapped(Deployment, "front", _shared),
    "room": wrapped(LeastOutstanding, "choose", lambda old, *given: 0),
    "table": wrapped(Tabulated, "form", _dearer),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_oracle_and_relation_can_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = pools_world if name in ("link", "loaded") else plain_world
    world = kind(name if name in RELATIONS else "again")
    assert problem_of(world) is None
    monkeypatch.setattr(*FAULTS[name])
    assert str(problem_of(world)).startswith(f"Broken {name}")


def test_a_world_is_shrunk_to_what_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def problem_of(world: World) -> str | None:
        config = world["config"]
        is_broken = config.get("workload", {}).get("num_requests", 0) > 2 and "engine" in config
        return "Broken thing: 5 != 6" if is_broken else None

    monkeypatch.setattr(worlds, "problem_of", problem_of)
    small = worlds.shrunk(plain_world("again"), "Broken thing: 1 != 2")
    assert small["config"] == {"workload": {"num_requests": 5}, "engine": {}}
    assert small["relations"] == ["again"]


def test_time_in_which_all_servers_are_busy() -> None:
    begins, ends = np.array([0.0, 1.0, 5.0]), np.array([3.0, 4.0, 6.0])
    at = np.array([0.0, 2.0, 3.5, 10.0])
    assert covered(begins, ends, at, 1).tolist() == [0.0, 2.0, 3.5, 5.0]
    assert covered(begins, ends, at, 2).tolist() == [0.0, 1.0, 2.0, 2.0]
