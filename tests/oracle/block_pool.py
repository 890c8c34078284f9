"""BlockPool: the KV blocks themselves, with prefix caching and LRU eviction, as in vLLM V1.

Source: vLLM 0.32.0 ``v1/core/block_pool.py``, re-implemented from a description of its behaviour.

Blocks whose content is published keep it while they wait in the free queue: a later request with
the same prefix takes them out again, and only handing them out for something else evicts them.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Indexable

from specsim.core.errors import InvariantError
from specsim.core.request import BlockKey

__all__ = ["BlockPool"]


class BlockPool:
    """The blocks themselves: which are free, who shares them, what they hold.

    Block 0 is a permanent null block, as in vLLM, so `num_blocks - 1` are usable.

    vLLM keeps one free queue. Blocks without published content return to its front, published ones
    to its end, and neither changes its kind while it waits, so the queue always is a stack of
    unpublished blocks followed by the published ones in order of release. Here it is those two.

    Parameters
    ----------
    num_blocks : int
        Ids, the null block included.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._stack = list(range(num_blocks - 1, 0, -1))
        """Free unpublished blocks; the next to be handed out is the last."""
        self._evictable: OrderedDict[int, None] = OrderedDict()
        """Free published blocks; the next to be evicted is the first."""
        self._key_of: list[BlockKey | None] = [None] * num_blocks
        """Key of each block, free or held; None if it is not published."""
        self._holders: list[int] = [0] * num_blocks
        """How many sequences hold each published block; not kept for unpublished ones."""
        self._oldest: dict[BlockKey, int] = {}
        """Per key the block published first."""
        self._younger: dict[BlockKey, list[int]] = {}
        """Per key the other blocks, in order of publication; only keys that have some."""

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, published ones included."""
        return len(self._stack) + len(self._evictable)

    def free_order(self) -> list[int]:
        """Return the free queue, the next to be handed out first."""
        return self._stack[::-1] + list(self._evictable)

    def allocate(self, count: int) -> list[int] | None:
        """Take the first blocks of the free queue; published ones lose their identity.

        Parameters
        ----------
        count : int

        Returns
        -------
        list of int or None
            Block ids; None, and nothing taken, if fewer are free.
        """
        stack = self._stack
        if count == 1 and stack:
            return [stack.pop()]
        if count > self.num_free:
            return None
        kept = max(0, len(stack) - count)
        blocks = stack[kept:]
        del stack[kept:]
        blocks.reverse()
        while len(blocks) < count:
            block = self._evictable.popitem(last=False)[0]
            blocks.append(block)
            key = self._key_of[block]
            assert key is not None
            self._key_of[block] = None
            if self._younger:
                self._forget_one_of_several(block, key)
            else:
                del self._oldest[key]
        return blocks

    def cached(self, keys: Indexable[BlockKey], limit: int) -> list[int]:
        """Return the longest run of leading published blocks, without taking them.

        Parameters
        ----------
        keys : sequence of BlockKey
        limit : int
            Look at no more than this many.

        Returns
        -------
        list of int
            Block ids; for equal content the one published first.
        """
        hit: list[int] = []
        oldest = self._oldest
        for number in range(limit):
            block = oldest.get(keys[number])
            if block is None:
                break
            hit.append(block)
        return hit

    def find(self, key: BlockKey) -> int | None:
        """Return the block that was published first with a key, without taking it."""
        return self._oldest.get(key)

    def is_published(self, block: int) -> bool:
        """Return whether a block can be found by some key."""
        return self._key_of[block] is not None

    def forget(self, block: int) -> None:
        """Let no key lead to a block that is held."""
        key = self._key_of[block]
        if key is not None:
            self._key_of[block] = None
            self._forget_one_of_several(block, key)

    def count_unheld(self, blocks: Iterable[int]) -> int:
        """Return how many of these published blocks sit in the free queue."""
        return sum(not self._holders[block] for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Hold published blocks; those that nobody held leave the free queue."""
        for block in blocks:
            if not self._holders[block]:
                del self._evictable[block]
            self._holders[block] += 1

    def publish(self, blocks: Iterable[int], keys: Iterable[BlockKey]) -> None:
        """Let later requests find blocks by their keys.

        There is no de-duplication, as in vLLM: equal content may live in several blocks.

        Parameters
        ----------
        blocks : iterable of int
            Full, each with one holder.
        keys : iterable of BlockKey
            One per block.
        """
        key_of, holders, oldest = self._key_of, self._holders, self._oldest
        for block, key in zip(blocks, keys, strict=True):
            key_of[block] = key
            holders[block] = 1
            if oldest.setdefault(key, block) != block:
                self._younger.setdefault(key, []).append(block)

    def release(self, blocks: list[int]) -> None:
        """Give back one holder of each block.

        Blocks that nobody holds any more go to the free queue: unpublished ones to its front,
        published ones to its end, each time with the last block of the list first.

        Parameters
        ----------
        blocks : list of int
            In the order of the tokens that they hold.
        """
        if not self._oldest:
            self._stack += blocks
            return
        key_of, holders = self._key_of, self._holders
        for block in reversed(blocks):
            if key_of[block] is not None:
                holders[block] -= 1
                if not holders[block]:
                    self._evictable[block] = None
        self._stack += [block for block in blocks if key_of[block] is None]

    def _forget_one_of_several(self, block: int, key: BlockKey) -> None:
        """Let a key no longer lead to this block, but to the next one of equal content."""
        younger = self._younger.get(key, [])
        if self._oldest[key] != block:
            younger.remove(block)
        elif younger:
            self._oldest[key] = younger.pop(0)
        else:
            del self._oldest[key]
        if not younger:
            self._younger.pop(key, None)

    def check_held(self, held: Iterable[list[int]]) -> None:
        """Raise unless the blocks in use and the free ones add up, and holders are counted right.

        Parameters
        ----------
        held : iterable of list of int
            The blocks of every running sequence.

        Raises
        ------
        InvariantError
        """
        holders = Counter(block for blocks in held for block in blocks)
        used, free = len(holders), self.num_free
        if used + free + 1 != self.num_blocks:
            raise InvariantError(
                f"blocks used ({used}) + free ({free}) + null (1) != total ({self.num_blocks})"
            )
        for block, count in holders.items():
            if count != (self._holders[block] if self._key_of[block] is not None else 1):
                raise InvariantError(f"block {block}: {count} sequences hold it, kept is another")

    def check_free(self, held: Iterable[list[int]]) -> None:
        """Raise unless no block is in two places, and every key leads to its blocks.

        Looks at every block of the pool, which `check_held` does not.

        Parameters
        ----------
        held : iterable of list of int
            The blocks of every running sequence.

        Raises
        ------
        InvariantError
        """
        used, free = {block for blocks in held for block in blocks}, set(self.free_order())
        if used & free or len(used) + len(free) + 1 != self.num_blocks:
            raise InvariantError("a block is used and free, or twice in the free queue")
        published = [block for block, key in enumerate(self._key_of) if key is not None]
        if set(self._evictable) != {block for block in published if not self._holders[block]}:
            raise InvariantError("evictable blocks != published blocks that nobody holds")
        found = len(self._oldest) + sum(map(len, self._younger.values()))
        if len(published) != found:
            raise InvariantError(
                f"published blocks ({len(published)}) != blocks found by key ({found})"
            )
