"""The replica that has seen the beginning of the prompt before."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, final

from pydantic import Field

from specsim.routing._sent import Sent, known_len, remember
from specsim.routing.base import PromptView, ReplicaView, Router


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

    def start(self, seed: int) -> dict[ReplicaView, Sent]:
        """Return a memory of what each replica was sent: nothing."""
        return {}

    def choose(
        self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: dict[ReplicaView, Sent]
    ) -> int:
        """Return the replica that knows most of the prompt, or the one with the fewest requests."""
        keys = prompt.block_keys(self.block_size)
        loads = [replica.num_running + replica.num_waiting for replica in replicas]
        place = loads.index(min(loads))
        excess = max(loads) - loads[place]
        if excess <= self.balance_abs or max(loads) <= self.balance_rel * loads[place]:
            known_lens = [known_len(keys, memory.get(replica)) for replica in replicas]
            best = max(known_lens)
            if best and best >= self.threshold * len(keys):
                tied = [i for i, length in enumerate(known_lens) if length == best]
                place = min(tied, key=loads.__getitem__)
        remember(keys, memory.setdefault(replicas[place], OrderedDict()), self.max_blocks)
        return place
