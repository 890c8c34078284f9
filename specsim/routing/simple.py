"""Routers that need no look at the prompt: in turn, at random, and by load."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Literal, final

import numpy as np
from pydantic import Field

from specsim.core.rng import indexed_hash, stream_id
from specsim.routing import PromptView, ReplicaView, Router, loads


@final
class RoundRobin(Router):
    """Request i goes to replica i modulo the number of replicas, whatever they are doing.

    Of those that are up, if some have failed.
    """

    kind: Literal["round_robin"] = "round_robin"
    looks_at_replicas = False

    def start(self, seed: int) -> Iterator[int]:
        return count()

    def choose(
        self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: Iterator[int]
    ) -> int:
        return next(memory) % len(replicas)


_STREAM = stream_id("routing")


@final
class RandomRouter(Router):
    """Each request goes to any replica, all equally likely, whatever they are doing.

    Where it goes is settled by the seed and the request's number, so that no policy shifts it.
    """

    kind: Literal["random"] = "random"
    looks_at_replicas = False

    def choose(self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: int) -> int:
        """Return the replica that the request's own luck names; `memory` is the seed."""
        return indexed_hash(memory, _STREAM, prompt.index, 0) * len(replicas) >> 64


@final
class LeastOutstanding(Router):
    """The replica with the fewest requests, of equals the first."""

    kind: Literal["least_outstanding"] = "least_outstanding"
    waiting_weight: float = Field(default=1.0, ge=0)
    """How often a waiting request counts, against once for a running one."""

    def choose(self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: Any) -> int:
        waiting, running = loads(replicas, "num_waiting"), loads(replicas, "num_running")
        return int(np.argmin(self.waiting_weight * waiting + running))


@final
class RankBalancer(Router):
    """The rank with the fewest requests, of equals the next in turn, as vLLM 0.27 and later do.

    While a rank holds more than half of its KV blocks, each of its waiting requests counts more: at
    most four times, where all are held (0.33 ``v1/engine/core_client.py
    get_core_engine_for_request``). One client with counts of this instant; vLLM's include requests
    that have ended within the last 100 ms, and each of several API servers knows its own apart.
    """

    kind: Literal["vllm_ranks"] = "vllm_ranks"

    def start(self, seed: int) -> Iterator[int]:
        return count()

    def choose(
        self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: Iterator[int]
    ) -> int:
        waiting = loads(replicas, "num_waiting")
        scores = waiting + loads(replicas, "num_running")
        if np.count_nonzero(waiting):
            scores = scores + waiting * 6.0 * np.maximum(0.0, loads(replicas, "kv_use") - 0.5)
        first = next(memory) % len(replicas)
        of_each: list[float] = scores.tolist()
        in_turn = of_each[first:] + of_each[:first]
        return (in_turn.index(min(in_turn)) + first) % len(replicas)


@final
class LeastOutstandingTokens(Router):
    """The replica whose unfinished requests have the fewest tokens, of equals the first.

    Prompts, whether they have been read or not, and the answers so far of what runs: where lengths
    differ much, requests are a poor measure of work and of KV cache.
    """

    kind: Literal["least_outstanding_tokens"] = "least_outstanding_tokens"

    def choose(self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: Any) -> int:
        return int(np.argmin(loads(replicas, "outstanding_tokens")))
