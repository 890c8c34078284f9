"""What a router has sent to whom: an index of prefixes that nobody else has to tell it."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from specsim.core.request import BlockKey
from specsim.core.step import Ints
from specsim.routing.base import PromptView, ReplicaView


class SentIndex:
    """The blocks of prompts that each replica was sent, the ones sent longest ago forgotten first.

    The blocks that no other request can share are counted, not listed: the index of the request
    stands for all of them.

    Args:
        block_size: Tokens by which prompts are compared.
        max_blocks: Blocks remembered per replica.
        match_blocks: Leading blocks of a prompt that are looked at; None for all.
    """

    def __init__(self, block_size: int, max_blocks: int, match_blocks: int | None = None) -> None:
        self._block_size, self._max_blocks = block_size, max_blocks
        self._match_blocks = match_blocks
        self._sent: dict[ReplicaView, OrderedDict[BlockKey, int]] = {}
        """How many blocks each key stands for, the one sent longest ago first."""
        self._sizes: dict[ReplicaView, int] = {}
        self._holders: dict[BlockKey, set[ReplicaView]] = {}

    def num_blocks(self, prompt: PromptView) -> int:
        """Return how many blocks of a prompt are looked at."""
        num = prompt.prompt_len // self._block_size
        return num if self._match_blocks is None else min(num, self._match_blocks)

    def _shared(self, prompt: PromptView) -> Sequence[BlockKey]:
        return prompt.shared_block_keys(self._block_size)[: self._match_blocks]

    def known_lens(self, prompt: PromptView, replicas: Sequence[ReplicaView]) -> Ints:
        """Return how many leading blocks of a prompt each replica was sent before, shape (n,)."""
        found: dict[ReplicaView, int] = {}
        shared = self._shared(prompt)
        left = set(self._holders.get(shared[0] if shared else prompt.index, ()))
        for depth, key in enumerate(shared):
            gone = left - self._holders.get(key, set())
            found.update(dict.fromkeys(gone, depth))
            left -= gone
            if not left:
                break
        for replica in left:
            found[replica] = len(shared) + self._sent[replica].get(prompt.index, 0)
        if not found:
            return np.zeros(len(replicas), dtype=np.int64)
        return np.array([found.get(replica, 0) for replica in replicas])

    def remember(self, prompt: PromptView, replica: ReplicaView) -> None:
        """Note the blocks of a prompt that a replica is sent."""
        shared = self._shared(prompt)
        sent = self._sent.setdefault(replica, OrderedDict())
        size = self._sizes.get(replica, 0)
        # The end of a prompt first, so that it is forgotten before what leads up to it.
        own: BlockKey = prompt.index
        entries = [(own, self.num_blocks(prompt) - len(shared))]
        entries += [(key, 1) for key in reversed(shared)]
        for key, count in entries:
            if count:
                size += count - sent.pop(key, 0)
                sent[key] = count
                self._holders.setdefault(key, set()).add(replica)
        self._sizes[replica] = self._forget(replica, sent, size)

    def _forget(self, replica: ReplicaView, sent: OrderedDict[BlockKey, int], size: int) -> int:
        """Forget blocks beyond the limit; return how many are left."""
        while size > self._max_blocks:
            key, count = next(iter(sent.items()))
            cut = min(count, size - self._max_blocks)
            size -= cut
            sent[key] = count - cut
            if cut == count:
                del sent[key]
                self._holders[key].discard(replica)
                if not self._holders[key]:
                    del self._holders[key]
        return size
