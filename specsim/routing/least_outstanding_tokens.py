"""The replica that has least text to serve."""

from collections.abc import Sequence
from typing import Any, Literal, final

from specsim.routing.base import PromptView, ReplicaView, Router


@final
class LeastOutstandingTokens(Router):
    """The replica whose unfinished requests have the fewest tokens, of equals the first.

    Prompts, whether they have been read or not, and the answers so far of what runs: where lengths
    differ much, requests are a poor measure of work and of KV cache.
    """

    kind: Literal["least_outstanding_tokens"] = "least_outstanding_tokens"

    def choose(self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: Any) -> int:
        """Return the replica with the least to serve."""
        loads = [replica.outstanding_tokens for replica in replicas]
        return loads.index(min(loads))
