"""Policies of the user's remember requests as they like: indices are used again, numbers not."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from conftest import tiny_config
from serving import serving
from test_server import benchmark, logged

from specsim.api import Acceptance, BatchView, Policy, Request, ServerView, StepOutcome
from specsim.core.desk import PerRequest
from specsim.core.rng import Luck
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.serve import ServeOptions
from specsim.serve.live_drafting import LiveDrafting


class Pair(NamedTuple):
    """Counts in an array of specsim's, in a tuple of the user's."""

    counts: PerRequest

    def of(self, request: int) -> int:
        return int(self.counts.of(np.array([request]))[0])

    def add(self, request: int, number: int) -> None:
        self.counts.up_to(np.array([request]))[request] += number


@dataclass
class Holder:
    """The same, in an object of the user's."""

    pair: Pair

    def of(self, request: int) -> int:
        return self.pair.of(request)

    def add(self, request: int, number: int) -> None:
        self.pair.add(request, number)


@dataclass
class Known:
    """Counts in a dictionary, in an object."""

    counts: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def of(self, request: int) -> int:
        return self.counts[request]

    def add(self, request: int, number: int) -> None:
        self.counts[request] += number


class Row(list[int]):
    """Counts in a list."""

    def of(self, request: int) -> int:
        self.extend([0] * (request + 1 - len(self)))
        return self[request]

    def add(self, request: int, number: int) -> None:
        self[request] = self.of(request) + number


MEMORIES: dict[str, Any] = {
    "tuple": lambda: Pair(PerRequest(0, dtype=np.int64)),
    "holder": lambda: Holder(Pair(PerRequest(0, dtype=np.int64))),
    "mapping": Known,
    "list": Row,
}


class ByItself(Policy):
    """Drafts for each request as many tokens as it has had accepted, modulo the longest draft."""

    kind: Literal["by_itself"] = "by_itself"
    memory: Literal["tuple", "holder", "mapping", "list"] = "tuple"
    needs_sync = True

    def start(self, server: ServerView) -> Any:
        return server.max_draft_len, MEMORIES[self.memory]()

    def draft_lens(self, batch: BatchView, memory: Any) -> list[int]:
        longest, known = memory
        return [1 + known.of(request) % longest for request in batch.requests.tolist()]

    def observe(self, outcome: StepOutcome, memory: Any) -> None:
        for request, number in zip(
            outcome.requests.tolist(), outcome.accepted_lens.tolist(), strict=True
        ):
            memory[1].add(request, number)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_policy_of_the_users_knows_nothing_of_who_had_its_index_before(
    memory: str, tmp_path: Path
) -> None:
    """It decides what it decides in a simulation of the same requests, where each has its own."""
    config = tiny_config(policy={"kind": f"{__name__}:ByItself", "memory": memory})
    options = ServeOptions(port=0, speed=20.0, grace=5.0, log=tmp_path / "log")
    with serving(options, **config) as served:
        for number in range(8):
            asked = {"prompt": "x", "max_tokens": 20 + number, "ignore_eos": True, "n": 2}
            assert served.ask("/v1/completions", asked)[0] == 200
    rows = logged(tmp_path)
    requests = benchmark().requests_of(rows)
    run = simulate(Experiment.parse(config, "test"), requests=requests)
    found = np.sort(run.replicas[0].requests, order="request")
    assert found["draft_tokens"].tolist() == [
        sum(drafted for _, drafted, _ in row["accepted"]) for row in rows
    ]
    assert found["ended_at"] == pytest.approx([row["last_token_ts"] for row in rows], abs=1e-6)


class Coin(Acceptance):
    """Accepts each token with chance 0.8, and says nothing of how sure a drafter may be."""

    kind: Literal["coin"] = "coin"

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        counts = [request.output_len for request in requests]
        drawn = luck.uniforms([request.index for request in requests], counts)
        lens = np.minimum(np.log(drawn) / np.log(0.8), max_draft_len).astype(np.uint8)
        return [part.tobytes() for part in np.split(lens, np.cumsum(counts)[:-1])]


def test_an_answers_confidences_are_not_counted_in_that_answer_alone() -> None:
    """Of one token, a drafter that knows nothing says how often drafts are right."""
    coin = {"kind": f"{__name__}:Coin", "confidence_concentration": 1e6}
    fields = {"policy": "confidence", "acceptance": coin}
    experiment = Experiment.parse(tiny_config(**fields), "test")
    drafting = LiveDrafting(experiment, Deployment.of(experiment), 64)
    for number in range(64):
        drafting.take(Request(number, prompt_len=5, output_len=1))
    speculation, firsts = drafting.start(0), np.arange(64)
    assert speculation.source is not None
    stated = speculation.source.confidences(firsts, np.zeros_like(firsts), np.ones_like(firsts))
    is_right = drafting.survival_lens[:: drafting.facts.rows["output_at"][1]] > 0
    assert 5 < is_right.sum() < 60
    assert stated[is_right].mean() == pytest.approx(stated[~is_right].mean(), abs=0.05)
    assert stated.mean() == pytest.approx(0.8, abs=0.05)
