"""Scores, and what a router knows of replicas whose metrics it reads now and then."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from specsim.core.errors import ConfigError
from specsim.core.request import PrefixIds, Request
from specsim.routing import ROUTING, PromptView
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary


@dataclass(eq=False)
class Replica:
    num_running: int = 0
    num_waiting: int = 0
    outstanding_tokens: int = 0
    kv_use: float = 0.0
    cached: int = 0

    def cached_len(self, prompt: PromptView) -> int:
        return self.cached


def prompt(index: int, *pieces: int, session: int | None = None) -> PromptView:
    ids = PrefixIds(pieces, 16) if pieces else None
    length = 16 * len(pieces) or 160
    request = Request(index, length, 9, prefix_ids=ids, session=session)
    return PromptView(index, {index: request})


def scored(**weights: float) -> tuple[Any, Any]:
    names = ("queue", "kv_use", "prefix", "running", "session")
    given = {**dict.fromkeys(names, 0.0), **weights}
    router = ROUTING.parse({"kind": "scored", "weights": given})
    return router, router.start(3)


@pytest.mark.parametrize(
    ("weight", "replicas"),
    [
        ("queue", [Replica(num_waiting=4), Replica(num_waiting=1), Replica(num_waiting=2)]),
        ("running", [Replica(num_running=4), Replica(num_running=1), Replica(num_running=2)]),
        ("kv_use", [Replica(kv_use=0.5), Replica(kv_use=0.1), Replica(kv_use=0.2)]),
    ],
)
def test_each_metric_by_itself(weight: str, replicas: list[Replica]) -> None:
    router, memory = scored(**{weight: 1.0})
    assert [router.choose(prompt(i), replicas, memory) for i in range(5)] == [1] * 5


def test_scores_are_weighed() -> None:
    # Waiting requests count from the fewest (1) to the most (0), KV use as it is.
    replicas = [Replica(num_waiting=10, kv_use=0.0), Replica(num_waiting=0, kv_use=0.6)]
    assert choice(replicas, queue=1.0, kv_use=1.6) == 1  # 1.6 against 1 + 0.64
    assert choice(replicas, queue=1.0, kv_use=1.7) == 0  # 1.7 against 1 + 0.68


def choice(replicas: list[Replica], **weights: float) -> int:
    router, memory = scored(**weights)
    return router.choose(prompt(0), replicas, memory)


def test_ties_are_broken_by_the_seed() -> None:
    router, memory = scored(queue=1.0)
    replicas = [Replica() for _ in range(4)]
    chosen = [router.choose(prompt(i), replicas, memory) for i in range(2000)]
    assert np.bincount(chosen) == pytest.approx([500] * 4, abs=80)
    assert chosen == [router.choose(prompt(i), replicas, router.start(3)) for i in range(2000)]


def test_a_prefix_goes_where_it_was_sent() -> None:
    router, memory = scored(prefix=1.0)
    replicas = [Replica(), Replica(), Replica()]
    first = router.choose(prompt(0, 1, 2, 3), replicas, memory)
    assert [router.choose(prompt(i, 1, 2, 9), replicas, memory) for i in range(1, 9)] == [first] * 8


def test_a_session_goes_where_it_was_sent() -> None:
    router, memory = scored(session=1.0)
    replicas = [Replica(), Replica(), Replica()]
    first = router.choose(prompt(0, session=7), replicas, memory)
    assert [router.choose(prompt(i, session=7), replicas, memory) for i in range(9)] == [first] * 9
    others = {router.choose(prompt(i, session=i + 20), replicas, memory) for i in range(30)}
    assert others == {0, 1, 2}
    replicas.pop(first)  # it has failed
    assert router.choose(prompt(9, session=7), replicas, memory) in (0, 1)


def test_a_precise_index_asks_the_replicas() -> None:
    router = ROUTING.parse({"kind": "scored", "index": "precise"})
    replicas = [Replica(), Replica(cached=32), Replica(cached=16)]
    assert router.choose(prompt(0), replicas, router.start(0)) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "scored", "index_delay_ms": 5}, "is of index precise"),
        ({"kind": "scored", "index": "precise", "refresh_ms": 0, "index_delay_ms": 5}, "refresh"),
        ({"kind": "round_robin", "refresh_ms": 5}, "looks at no metrics"),
        ({"kind": "scored", "weights": {"queue": 0, "kv_use": 0, "prefix": 0}}, "all weights are"),
        ({"kind": "scored", "weights": {"queu": 0}}, "did you mean 'queue'"),
        ({"kind": "least_outstanding", "refresh_ms": -1}, "refresh_ms = -1"),
    ],
)
def test_what_makes_no_sense_is_refused(
    fields: dict[str, Any], message: str, tiny: Callable[..., Experiment]
) -> None:
    with pytest.raises(ConfigError) as found:
        tiny(routing=fields, replicas=2)
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def crowded(tiny: Callable[..., Experiment], routing: Any, **changes: Any) -> Summary:
    workload = {
        "arrivals": {"kind": "poisson", "rate": 120.0},
        "lengths": {"kind": "uniform", "prompt": [1, 300], "output": [1, 60]},
        "num_requests": 600,
        **changes,
    }
    return Summary(simulate(tiny(workload=workload, routing=routing, replicas=4)))


@pytest.mark.parametrize("arrivals", ["poisson:rate=120", "closed_loop:concurrency=70"])
def test_what_is_seen_is_as_old_as_it_says(
    arrivals: str, tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "least_outstanding"
    seen: list[tuple[int, tuple[int, ...]]] = []
    choose = ROUTING.find(kind).choose

    def watched(self: Any, view: PromptView, replicas: Any, memory: Any) -> int:
        counts = tuple(each.num_running + each.num_waiting for each in replicas)
        seen.append((view.index, counts))
        return choose(self, view, replicas, memory)

    monkeypatch.setattr(ROUTING.find(kind), "choose", watched)
    summary = crowded(tiny, {"kind": kind, "refresh_ms": 250}, arrivals=arrivals)
    rows = summary.tables.requests
    assert len(seen) == 600
    for index, counts in seen:
        at = rows["arrived_at"][index]
        read_at = at // 0.25 * 0.25
        if at - read_at < 1e-9:
            continue
        was_there = (rows["arrived_at"] < read_at) & (rows["ended_at"] > read_at)
        expected = np.bincount(rows["replica"][was_there], minlength=4)
        assert counts == pytest.approx(expected.tolist(), abs=1)  # what ends just then


def test_a_stale_router_is_worse_than_a_fresh_one(tiny: Callable[..., Experiment]) -> None:
    means = [
        crowded(tiny, {"kind": "least_outstanding", "refresh_ms": ms}).data["mean_e2el_ms"]
        for ms in (0, 100, 1000)
    ]
    assert means[0] < means[1] < means[2]
    assert means[2] > 1.2 * means[0]


SESSIONS = {
    "kind": "sessions",
    "turns": 6,
    "first_prompt": {"mean": 100, "sigma": 0.5},
    "new_input": {"mean": 40, "sigma": 0.5},
    "output": 30,
    "think_time": {"mean": 1.0, "sigma": 0.5},
    "max_len": 1000,
}


def hit_share(tiny: Callable[..., Experiment], routing: Any) -> float:
    engine = {"num_gpu_blocks": 3000, "max_model_len": 1024, "enable_prefix_caching": True}
    workload = {
        "arrivals": {"kind": "poisson", "rate": 8.0},
        "lengths": SESSIONS,
        "num_requests": 300,
    }
    fields = {"workload": workload, "engine": engine, "acceptance": None, "replicas": 4}
    rows = Summary(simulate(tiny(**fields, routing=routing))).tables.requests
    return float(rows["cached_len"].sum() / rows["prompt_len"].sum())


def test_routers_that_know_of_prefixes_find_more_of_them(tiny: Callable[..., Experiment]) -> None:
    prefix = {"queue": 1, "kv_use": 0, "prefix": 3}
    session = {"queue": 1, "kv_use": 0, "prefix": 0, "session": 3}
    blind = hit_share(tiny, "round_robin")
    sent = hit_share(tiny, {"kind": "scored", "weights": prefix})
    told = hit_share(tiny, {"kind": "scored", "weights": prefix, "index": "precise"})
    late = hit_share(
        tiny, {"kind": "scored", "weights": prefix, "index": "precise", "index_delay_ms": 5000}
    )
    sticky = hit_share(tiny, {"kind": "scored", "weights": session})
    best = hit_share(tiny, {"kind": "scored", "weights": {**session, "session": 100}})
    assert blind < 0.6 * sent
    assert told == pytest.approx(sent, rel=0.1)
    assert late < told  # turns that come back sooner than the index hears of them
    assert sticky == pytest.approx(best, rel=0.05)


def test_live_and_read_caches_agree(tiny: Callable[..., Experiment]) -> None:
    kept = hit_share(tiny, {"kind": "scored", "index": "precise", "refresh_ms": 0})
    read = hit_share(tiny, {"kind": "scored", "index": "precise", "refresh_ms": 1})
    assert kept == pytest.approx(read, rel=0.02)
