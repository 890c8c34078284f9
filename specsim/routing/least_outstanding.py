"""The replica that has least to do."""

from collections.abc import Sequence
from typing import Any, Literal, final

from pydantic import Field

from specsim.routing.base import PromptView, ReplicaView, Router


@final
class LeastOutstanding(Router):
    """The replica with the fewest requests, of equals the first.

    vLLM's balancer between data-parallel replicas counts a waiting request four times
    (``v1/engine/core_client.py``): ``waiting_weight: 4``.
    """

    kind: Literal["least_outstanding"] = "least_outstanding"
    waiting_weight: float = Field(default=1.0, ge=0)
    """How often a waiting request counts, against once for a running one."""

    def choose(self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: Any) -> int:
        """Return the least loaded replica."""
        loads = [self.waiting_weight * each.num_waiting + each.num_running for each in replicas]
        return loads.index(min(loads))
