"""KVCache: who gets how many KV blocks, and when they are published, as in vLLM V1.

Sources: vLLM 0.32.0 ``v1/core/kv_cache_manager.py allocate_slots`` and
``v1/core/single_type_kv_cache_manager.py``, re-implemented from a description of their behaviour.
"""

from dataclasses import dataclass

from oracle.block_pool import BlockPool
from oracle.sequence import NEVER, Sequence

__all__ = ["KVCache", "KVLimits"]


@dataclass(frozen=True, slots=True)
class KVLimits:
    """What decides how many blocks a sequence needs."""

    num_blocks: int
    block_size: int
    max_model_len: int
    lookahead_len: int = 0
    """Extra slots per sequence that the drafting method writes to."""
    enable_prefix_caching: bool = False
    drops_last_hit: bool = False
    """EAGLE-type drafters recompute the last block of a hit to have its hidden states."""
    watermark_blocks: int = 0
    reserve_full_prompt: bool = True


class KVCache:
    """Block rules of one engine: who gets how many blocks, and when they are published.

    Parameters
    ----------
    limits : KVLimits
    """

    def __init__(self, limits: KVLimits) -> None:
        self.pool = BlockPool(limits.num_blocks)
        self._limits = limits
        self._block_size = limits.block_size
        self._max_model_len = limits.max_model_len
        self._lookahead_len = limits.lookahead_len

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return self.pool.num_free

    def room_for_drafts(self, num_sequences: int) -> int:
        """Return how many draft tokens fit into free blocks and the sequences' look-ahead slots."""
        return self.pool.num_free * self._block_size + self._lookahead_len * num_sequences

    def blocks_for(self, length: int) -> int:
        """Return the number of blocks that hold this many tokens."""
        return -(-length // self._block_size)

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Return the blocks of the longest cached prefix that the sequence may use.

        At least one token is always computed, so that there are logits to sample from.

        Parameters
        ----------
        sequence : Sequence

        Returns
        -------
        list of int
            Block ids, none taken yet.
        """
        if not self._limits.enable_prefix_caching:
            return []
        if not sequence.block_keys:
            sequence.block_keys = sequence.request.block_keys(self._block_size)
        hit = self.pool.cached(sequence.block_keys, (sequence.known_len - 1) // self._block_size)
        if hit and self._limits.drops_last_hit:
            hit.pop()
        return hit

    def hit_len(self, hit: list[int]) -> int:
        """Return the tokens of a hit."""
        return len(hit) * self._block_size

    def blocks_of(self, sequence: Sequence) -> list[int]:
        """Return what a sequence holds."""
        return sequence.blocks

    def admit(
        self, sequence: Sequence, hit: list[int], scheduled_len: int, *, is_busy: bool
    ) -> bool:
        """Give a waiting sequence the blocks of its hit and of its first piece, or nothing.

        Parameters
        ----------
        sequence : Sequence
            Holds no blocks.
        hit : list of int
            From `cached_prefix`.
        scheduled_len : int, tokens
            First piece, after the hit.
        is_busy : bool
            Whether other sequences run; only then the watermark counts.

        Returns
        -------
        bool
            Whether the blocks were there.
        """
        limits = self._limits
        unavailable = self.pool.count_unheld(hit)
        if is_busy:
            unavailable += limits.watermark_blocks
        if limits.reserve_full_prompt:
            full_blocks = self.blocks_for(min(sequence.known_len, limits.max_model_len))
            if full_blocks - len(hit) + unavailable > self.num_free:
                return False
        end_len = len(hit) * self._block_size + scheduled_len
        slots = min(end_len + limits.lookahead_len, limits.max_model_len)
        needed = max(0, self.blocks_for(slots) - len(hit))
        if needed + unavailable > self.num_free:
            return False
        self.pool.share(hit)
        sequence.blocks = [*hit, *(self.pool.allocate(needed) or ())]
        sequence.capacity_len = len(sequence.blocks) * self._block_size
        if limits.enable_prefix_caching:
            sequence.published_blocks = len(hit)
            sequence.next_publish_len = (len(hit) + 1) * self._block_size
            self.publish(sequence, end_len)
        return True

    def extend(self, sequence: Sequence, end_len: int) -> bool:
        """Give a running sequence the blocks that it lacks up to `end_len`, or nothing.

        Parameters
        ----------
        sequence : Sequence
        end_len : int, tokens
            Length after the step, drafts included, look-ahead slots not.

        Returns
        -------
        bool
            Whether the blocks were there.
        """
        slots = min(end_len + self._lookahead_len, self._max_model_len)
        needed = -(-slots // self._block_size) - len(sequence.blocks)
        if needed <= 0:
            return True
        blocks = self.pool.allocate(needed)
        if blocks is None:
            return False
        sequence.blocks += blocks
        sequence.capacity_len = len(sequence.blocks) * self._block_size
        return True

    def publish(self, sequence: Sequence, end_len: int) -> None:
        """Publish the full blocks up to `end_len`; drafts are not known tokens, so not them.

        Parameters
        ----------
        sequence : Sequence
        end_len : int, tokens
        """
        full_blocks = min(end_len, sequence.known_len) // self._block_size
        new = slice(sequence.published_blocks, full_blocks)
        self.pool.publish(sequence.blocks[new], sequence.block_keys[new])
        sequence.published_blocks = max(sequence.published_blocks, full_blocks)
        sequence.next_publish_len = (sequence.published_blocks + 1) * self._block_size

    def release(self, sequence: Sequence) -> None:
        """Take every block away from a sequence that ends or is preempted."""
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.capacity_len = 0
        sequence.published_blocks = 0
        sequence.next_publish_len = NEVER
