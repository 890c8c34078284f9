"""Policies of the user's remember requests as they like: slots are used again, numbers not."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from conftest import tiny_config
from serving import serving
from test_server import benchmark, logged

from specsim.api import BatchView, Policy, ServerView, StepOutcome
from specsim.core.desk import PerRequest
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.serve import ServeOptions


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
def test_a_policy_of_the_users_knows_nothing_of_who_had_a_slot_before(
    memory: str, tmp_path: Path
) -> None:
    """It decides what it decides in a simulation of the same requests, where none has a slot."""
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
