"""Any replica."""

from collections.abc import Sequence
from typing import Literal, final

from specsim.core.rng import indexed_hash, stream_id
from specsim.routing.base import PromptView, ReplicaView, Router

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
