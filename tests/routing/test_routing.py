"""Who serves a request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from conftest import tiny_config

from specsim.core.request import PrefixIds, Request
from specsim.engine.roster import VisibleReplica
from specsim.routing import ROUTING, PromptView
from specsim.routing.simple import LeastOutstanding, RankBalancer
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary


@dataclass(eq=False)
class Replica:
    num_running: int = 3
    num_waiting: int = 0
    outstanding_tokens: int = 0
    kv_use: float = 0.0
    cached: int = 0

    def cached_len(self, prompt: PromptView) -> int:
        return min(self.cached, prompt.prompt_len)


def prompt(index: int = 0, *pieces: int) -> PromptView:
    """A prompt of 16 tokens per piece; a number stands for the text up to there."""
    ids = PrefixIds(pieces, 16) if pieces else None
    length = 16 * len(pieces) or 40
    request = Request(index=index, prompt_len=length, output_len=9, prefix_ids=ids)
    return PromptView(index, {index: request})


@pytest.mark.parametrize("kind", ROUTING.members)
def test_routers_choose_a_replica_that_exists(kind: str) -> None:
    router = ROUTING.parse(kind)
    memory = router.start(0)
    for count in (3, 1):
        replicas = [Replica() for _ in range(count)]
        chosen = [router.choose(prompt(i), replicas, memory) for i in range(20)]
        assert all(0 <= place < count for place in chosen)


@pytest.mark.parametrize("kind", ROUTING.members)
def test_every_request_is_served_once(kind: str, tiny: Callable[..., Experiment]) -> None:
    run = simulate(tiny(replicas=3, routing=kind), check=True)
    served = sorted(row["request"] for records in run.replicas for row in records.requests)
    assert served == list(range(30))


@pytest.mark.parametrize("kind", ROUTING.members)
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_first_step_waits_for_all_that_arrive_when_the_run_begins(
    kind: str, replicas: int, tiny: Callable[..., Experiment]
) -> None:
    requests = [Request(index, 2, 3) for index in range(600)]
    engine = {"max_num_seqs": 600, "max_num_batched_tokens": 4096}
    run = simulate(tiny(replicas=replicas, routing=kind, engine=engine), requests=requests)
    first = [records.steps["num_requests"][0] for records in run.replicas if len(records.steps)]
    assert sum(first) == 600


def test_round_robin_takes_turns() -> None:
    router = ROUTING.parse("round_robin")
    memory = router.start(0)
    chosen = [router.choose(prompt(i), [Replica()] * 3, memory) for i in range(7)]
    assert chosen == [0, 1, 2, 0, 1, 2, 0]


def test_random_uses_all_alike_and_goes_by_the_request() -> None:
    router = ROUTING.parse("random")
    replicas = [Replica()] * 4
    memory = router.start(5)
    chosen = [router.choose(prompt(i), replicas, memory) for i in range(4000)]
    assert np.bincount(chosen) == pytest.approx([1000] * 4, abs=110)  # four standard deviations
    backwards = [router.choose(prompt(i), replicas, memory) for i in reversed(range(4000))]
    assert backwards[::-1] == chosen
    other = router.start(6)
    assert chosen != [router.choose(prompt(i), replicas, other) for i in range(4000)]


def test_the_replica_with_the_fewest_requests_is_chosen() -> None:
    loads = [Replica(3, 0), Replica(1, 1)]
    assert LeastOutstanding().choose(prompt(), loads, None) == 1
    assert LeastOutstanding(waiting_weight=4).choose(prompt(), loads, None) == 0


def test_the_replica_with_the_fewest_tokens_is_chosen() -> None:
    loads = [Replica(1, 0, 900), Replica(9, 0, 100), Replica(2, 0, 100)]
    assert ROUTING.parse("least_outstanding_tokens").choose(prompt(), loads, None) == 1


def test_ranks_with_equally_many_requests_take_turns() -> None:
    router, ranks = RankBalancer(), [Replica(1, 0)] * 3
    memory = router.start(0)
    assert [router.choose(prompt(), ranks, memory) for _ in range(5)] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(("kv_use", "chosen"), [(0.5, 0), (0.7, 0), (0.9, 1), (1.0, 1)])
def test_requests_that_wait_at_a_rank_with_full_memory_count_more(
    kv_use: float, chosen: int
) -> None:
    ranks = [Replica(1, 1, kv_use=kv_use), Replica(4, 0)]
    router = RankBalancer()
    assert router.choose(prompt(), ranks, router.start(0)) == chosen


def test_of_equals_the_first() -> None:
    assert LeastOutstanding().choose(prompt(), [Replica(1, 0)] * 3, None) == 0


def affinity(**fields: Any) -> tuple[Any, Any]:
    router = ROUTING.parse({"kind": "prefix_affinity", **fields})
    return router, router.start(0)


def test_a_prefix_goes_where_it_went_before() -> None:
    router, memory = affinity()
    replicas = [Replica(0), Replica(1), Replica(2)]
    assert router.choose(prompt(0, 1, 2, 3), replicas, memory) == 0  # unknown: the fewest requests
    replicas[0].num_running = 9
    assert router.choose(prompt(1, 1, 2, 4), replicas, memory) == 0  # two of three blocks
    assert router.choose(prompt(2, 1, 5, 6, 7), replicas, memory) == 1  # one of four: below 0.3
    assert router.choose(prompt(3, 1, 5, 6, 7), replicas, memory) == 1


def test_an_uneven_load_beats_a_prefix() -> None:
    router, memory = affinity(balance_abs=4)
    replicas = [Replica(0), Replica(1)]
    assert router.choose(prompt(0, 1, 2), replicas, memory) == 0
    replicas[0].num_running = 5
    assert router.choose(prompt(1, 1, 2), replicas, memory) == 0  # 4 more, and that is allowed
    replicas[0].num_running = 6
    assert router.choose(prompt(2, 1, 2), replicas, memory) == 1


def test_old_prefixes_are_forgotten_from_their_ends() -> None:
    router, memory = affinity(max_blocks=3, threshold=1.0)
    replicas = [Replica(0), Replica(1)]
    assert router.choose(prompt(0, 1, 2), replicas, memory) == 0
    assert router.choose(prompt(1, 3, 4), replicas, memory) == 0  # forgets block 2, not block 1
    replicas[0].num_running = 5
    assert router.choose(prompt(2, 1), replicas, memory) == 0
    assert router.choose(prompt(3, 1, 2), replicas, memory) == 1


def test_prompts_of_which_nothing_is_known_agree_with_none() -> None:
    router, memory = affinity()
    replicas = [Replica(0), Replica(1)]
    assert router.choose(prompt(0), replicas, memory) == 0
    replicas[0].num_running = 2
    assert router.choose(prompt(1), replicas, memory) == 1


def test_affinity_hits_the_prefix_cache_more_often(tiny: Callable[..., Experiment]) -> None:
    # Six conversations in turn: round robin over four replicas tears each of them apart.
    requests = [
        Request(
            index=i,
            prompt_len=64,
            output_len=8,
            arrived_at=0.5 * i,
            prefix_ids=PrefixIds([10 * (i % 6) + piece for piece in range(3)] + [1000 + i], 16),
        )
        for i in range(60)
    ]
    hits = {
        kind: Summary(simulate(tiny(replicas=4, routing=kind), requests=requests)).data["specsim"][
            "prefix_hit_tokens"
        ]
        for kind in ("round_robin", "prefix_affinity")
    }
    # Twelve (conversation, replica) pairs meet for the first time under round robin, else six.
    # EAGLE recomputes the last of three blocks.
    assert hits == {"round_robin": (60 - 12) * 32, "prefix_affinity": (60 - 6) * 32}


def test_tokens_outstanding_are_those_of_unfinished_requests(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    router = ROUTING.find("least_outstanding_tokens")
    seen: list[list[int]] = []
    choose = router.choose

    def watched(self: Any, view: PromptView, replicas: Any, memory: Any) -> int:
        seen.append([replica.outstanding_tokens for replica in replicas])
        return choose(self, view, replicas, memory)

    monkeypatch.setattr(router, "choose", watched)
    rows = [(0.0, 100, 20), (0.0, 50, 20), (0.0, 10, 20), (0.03, 30, 20), (1000.0, 5, 5)]
    requests = [
        Request(index=i, arrived_at=at, prompt_len=prompt_len, output_len=output_len)
        for i, (at, prompt_len, output_len) in enumerate(rows)
    ]
    simulate(tiny(replicas=2, routing="least_outstanding_tokens"), requests=requests)
    assert seen[:3] == [[0, 0], [100, 0], [100, 50]]
    first, second = seen[3]
    assert 100 <= first < 120
    assert 60 <= second < 100
    assert seen[4] == [0, 0]  # all have been answered


@pytest.mark.parametrize("engine", [{}, {"async_scheduling": False, "num_gpu_blocks": 70}])
def test_tokens_outstanding_in_a_column_are_those_of_each(
    engine: dict[str, Any], tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    router = ROUTING.find("least_outstanding_tokens")
    choose = router.choose
    seen: list[tuple[list[int], list[int]]] = []

    def watched(self: Any, view: PromptView, replicas: Any, memory: Any) -> int:
        each = [replica.outstanding_tokens for replica in replicas]
        seen.append((replicas.outstanding_tokens.tolist(), each))
        return choose(self, view, replicas, memory)

    monkeypatch.setattr(router, "choose", watched)
    requests = [
        Request(index=i, arrived_at=0.004 * i, prompt_len=20 + 7 * i % 90, output_len=1 + i % 40)
        for i in range(300)
    ]
    incidents = [{"kind": "failure", "replica": 1, "at": 0.3, "until": 0.6}]
    limits = {**tiny_config()["engine"], **engine}
    experiment = tiny(
        replicas=3, incidents=incidents, routing="least_outstanding_tokens", engine=limits
    )
    simulate(experiment, requests=requests)
    assert len({tuple(column) for column, _ in seen}) > 250
    assert {len(column) for column, _ in seen} == {2, 3}
    assert all(column == each for column, each in seen)


def test_few_replicas_are_counted_anew_when_a_request_arrives(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    count: property = vars(VisibleReplica)["outstanding_tokens"]
    counted: list[VisibleReplica] = []

    def watched(replica: VisibleReplica) -> Any:
        counted.append(replica)
        return count.__get__(replica)

    monkeypatch.setattr(VisibleReplica, "outstanding_tokens", property(watched))
    requests = [Request(index=i, arrived_at=0.1 * i, prompt_len=9, output_len=2) for i in range(50)]
    simulate(tiny(replicas=200, routing="least_outstanding_tokens"), requests=requests)
    assert len(counted) < 200 + 4 * 50  # not 200 * 50
