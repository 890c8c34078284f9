"""Block pool and KV cache, against a plain model of vLLM's single free queue."""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from oracle.block_pool import BlockPool
from oracle.kv_cache import KVCache, KVLimits
from oracle.sequence import Sequence
from specsim.core.errors import InvariantError
from specsim.core.request import Request

NUM_BLOCKS = 12


class PoolMachine(RuleBasedStateMachine):
    """Random use of a pool, mirrored by one deque as vLLM has it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.queue = deque(range(1, NUM_BLOCKS))
        self.keys: dict[int, int] = {}
        self.holders: dict[int, int] = {}
        self.published: list[int] = []  # in order of publication
        self.held: list[list[int]] = []

    @rule(count=st.integers(0, 5))
    def allocate(self, count: int) -> None:
        blocks = self.pool.allocate(count)
        if count > len(self.queue):
            assert blocks is None
            return
        expected = [self.queue.popleft() for _ in range(count)]
        assert blocks == expected
        for block in expected:
            self.holders[block] = 1
            self.keys.pop(block, None)
            if block in self.published:
                self.published.remove(block)
        self.held.append(expected)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=st.integers(0, 3))
    def publish(self, data: st.DataObject, key: int) -> None:
        blocks = data.draw(st.sampled_from(self.held))
        fresh = [block for block in blocks if block not in self.keys]
        if fresh:
            self.pool.publish(fresh[:1], [key])
            self.keys[fresh[0]] = key
            self.published.append(fresh[0])

    @rule(keys=st.lists(st.integers(0, 3), max_size=3))
    def hit(self, keys: list[int]) -> None:
        expected = []
        for key in keys:
            found = [block for block in self.published if self.keys[block] == key]
            if not found:
                break
            expected.append(found[0])
        assert self.pool.cached(keys, len(keys)) == expected
        blocks = list(dict.fromkeys(expected))
        if blocks:
            self.pool.share(blocks)
            for block in blocks:
                self.holders[block] += 1
                if block in self.queue:
                    self.queue.remove(block)
            self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.release(list(blocks))
        front = []
        for block in reversed(blocks):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                (self.queue if block in self.keys else front).append(block)
        self.queue.extendleft(reversed(front))

    @invariant()
    def agrees(self) -> None:
        assert self.pool.free_order() == list(self.queue)
        assert self.pool.num_free == len(self.queue)
        self.pool.check_held(self.held)
        self.pool.check_free(self.held)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40)


def test_integrity_check_finds_a_leak() -> None:
    pool = BlockPool(8)
    held = [pool.allocate(3) or []]
    held[0].pop()
    with pytest.raises(InvariantError, match="total"):
        pool.check_held(held)


def test_integrity_check_finds_a_block_in_two_places() -> None:
    pool = BlockPool(8)
    blocks = pool.allocate(3) or []
    with pytest.raises(InvariantError, match="sequences hold it"):
        pool.check_held([blocks, blocks[:1]])
    pool.release(blocks[:1])
    with pytest.raises(InvariantError, match="used and free"):
        pool.check_free([blocks])


def make_cache(**limits: object) -> KVCache:
    return KVCache(KVLimits(**{"num_blocks": 10, "block_size": 4, "max_model_len": 30, **limits}))


def make_sequence(prompt_len: int, index: int = 0) -> Sequence:
    return Sequence(Request(index=index, prompt_len=prompt_len, output_len=8), 0.0, 30)


def test_lookahead_counts_but_not_beyond_the_model_length() -> None:
    cache = make_cache(lookahead_len=3)
    sequence = make_sequence(6)
    assert cache.admit(sequence, [], 6, is_busy=False)
    assert len(sequence.blocks) == 3  # 6 tokens and 3 look-ahead slots
    assert cache.extend(sequence, 29)
    assert len(sequence.blocks) == 8  # 30 tokens, not 32


def test_admission_needs_the_whole_prompt_but_takes_the_first_piece() -> None:
    cache = make_cache()
    assert cache.admit(make_sequence(28), [], 8, is_busy=False)
    assert cache.num_free == 7
    assert not cache.admit(make_sequence(29), [], 4, is_busy=True)
    assert cache.num_free == 7


def test_watermark_holds_only_while_others_run() -> None:
    cache = make_cache(watermark_blocks=3)
    sequence = make_sequence(28)
    assert not cache.admit(sequence, [], 28, is_busy=True)
    assert cache.admit(sequence, [], 28, is_busy=False)


def test_a_preempted_sequence_hits_its_own_blocks_again() -> None:
    cache = make_cache(enable_prefix_caching=True)
    sequence = make_sequence(9)
    assert cache.cached_prefix(sequence) == []
    cache.admit(sequence, [], 9, is_busy=False)
    blocks = list(sequence.blocks)
    cache.release(sequence)
    assert cache.cached_prefix(sequence) == blocks[:2]  # the third is not full


def test_at_least_one_token_is_always_computed() -> None:
    cache = make_cache(enable_prefix_caching=True)
    sequence = make_sequence(8)
    cache.cached_prefix(sequence)
    cache.admit(sequence, [], 8, is_busy=False)
    cache.release(sequence)
    assert len(cache.cached_prefix(sequence)) == 1


def test_eagle_recomputes_the_last_block_of_a_hit() -> None:
    cache = make_cache(enable_prefix_caching=True, drops_last_hit=True)
    sequence = make_sequence(12)
    cache.cached_prefix(sequence)
    cache.admit(sequence, [], 12, is_busy=False)
    cache.release(sequence)
    assert len(cache.cached_prefix(sequence)) == 1
