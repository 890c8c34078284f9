"""The replica that has seen the beginning of the prompt before."""

from collections.abc import Sequence
from typing import Literal, final

import numpy as np
from pydantic import Field

from specsim.routing._sent import SentIndex
from specsim.routing.base import PromptView, ReplicaView, Router, loads


@final
class PrefixAffinity(Router):
    """The replica that was sent most of the prompt before, unless the load is too uneven.

    Like the cache-aware router of SGLang, whose defaults these are: if a replica was sent at least
    `threshold` of the prompt, it gets the request, otherwise the one with the fewest requests does;
    and while the busiest has `balance_abs` requests more than the least busy one and
    `balance_rel` times as many, that one gets it whatever it has seen. The router goes by what it
    has sent, not by what the replicas' caches still hold. It needs a workload with token ids or
    prefix ids; without, no two prompts agree.
    """

    kind: Literal["prefix_affinity"] = "prefix_affinity"
    threshold: float = Field(default=0.3, gt=0, le=1)
    """Share of the prompt, in full blocks."""
    balance_abs: int = Field(default=64, ge=0)
    balance_rel: float = Field(default=1.5, ge=1)
    block_size: int = Field(default=16, gt=0)
    """Tokens by which prompts are compared."""
    max_blocks: int = Field(default=1 << 20, gt=0)
    """Blocks remembered per replica; the ones sent longest ago are forgotten."""

    def start(self, seed: int) -> SentIndex:
        """Return a memory of what each replica was sent: nothing."""
        return SentIndex(self.block_size, self.max_blocks)

    def choose(self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: SentIndex) -> int:
        """Return the replica that knows most of the prompt, or the one with the fewest requests."""
        busy = loads(replicas, "num_running") + loads(replicas, "num_waiting")
        place, most = int(busy.argmin()), busy.max()
        if most - busy[place] <= self.balance_abs or most <= self.balance_rel * busy[place]:
            known_lens = memory.known_lens(prompt, replicas)
            best = known_lens.max()
            if best and best >= self.threshold * memory.num_blocks(prompt):
                place = int(np.where(known_lens == best, busy, most + 1).argmin())
        memory.remember(prompt, replicas[place])
        return place
