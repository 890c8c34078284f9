"""Replicas in turn."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Literal, final

from specsim.routing.base import PromptView, ReplicaView, Router


@final
class RoundRobin(Router):
    """Request i goes to replica i modulo the number of replicas, whatever they are doing.

    Of those that are up, if some have failed.
    """

    kind: Literal["round_robin"] = "round_robin"
    looks_at_replicas = False

    def start(self, seed: int) -> Iterator[int]:
        """Return a counter of requests."""
        return count()

    def choose(
        self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: Iterator[int]
    ) -> int:
        """Return the next replica in turn."""
        return next(memory) % len(replicas)
