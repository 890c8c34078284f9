"""KV blocks and who gets them, against a plain model of vLLM's single free queue."""

from collections import deque
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from specsim.core.compiled import as_records
from specsim.core.errors import InvariantError
from specsim.core.request import Request
from specsim.engine.blocks import cached_block, hold, publish_block, release_block, take_block
from specsim.engine.integrity import check_integrity, free_order
from specsim.engine.kv import admit_blocks, extend, release
from specsim.engine.prefix import cached_prefix, publish
from specsim.engine.setup import Facts, Setup
from specsim.engine.table import NO_BLOCK, NO_KEY, RUNNING, WAITING, Table
from specsim.engine.waiting import begin, enqueue, leave_queue
from specsim.hardware.kv_groups import one_group

NUM_BLOCKS = 12
BLOCK_SIZE = 4
MAX_MODEL_LEN = 30
TOKENS = [[1] * 30, [1] * 9 + [2] * 21, [1] * 16 + [3] * 14, [1] * 30, list(range(30))]
"""Prompt and answer of each request; some begin alike."""
PROMPT_LENS = [20, 22, 17, 8, 28]
LIMITS = {
    "max_num_running": len(TOKENS),
    "num_blocks": NUM_BLOCKS,
    "max_model_len": MAX_MODEL_LEN,
    "max_draft_len": 100,  # how far a sequence may be ahead is not what is tested here
    "reserve_full_prompt": 1,
}


def make_table(limits: Mapping[str, int], requests: list[Request] | None = None) -> Table:
    """Return the table of an engine without a clock, as uncompiled functions see it."""
    facts = Facts.of(requests or [], BLOCK_SIZE, with_keys=bool(limits["enable_prefix_caching"]))
    setup = Setup("synchronous", {**LIMITS, **limits}, one_group(BLOCK_SIZE))
    return Table(*map(as_records, setup.table(facts=facts.rows, keys=facts.keys)))


class BlockMachine(RuleBasedStateMachine):
    """Random use of the blocks, mirrored by one deque as vLLM has it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = make_table({"enable_prefix_caching": 1})
        self.queue = deque(range(1, NUM_BLOCKS))
        self.keys: dict[int, int] = {}
        self.holders: dict[int, int] = {}
        self.published: list[int] = []  # in order of publication
        self.held: list[list[int]] = []

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        blocks = []
        for _ in range(min(count, len(self.queue))):
            block = self.queue.popleft()
            assert take_block(self.table) == block
            blocks.append(block)
            self.holders[block] = 1
            if self.keys.pop(block, None) is not None:
                self.published.remove(block)
        self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=st.integers(-3, 2))
    def publish(self, data: st.DataObject, key: int) -> None:
        fresh = [block for block in data.draw(st.sampled_from(self.held)) if block not in self.keys]
        if fresh:
            publish_block(self.table, fresh[0], key)
            self.keys[fresh[0]] = key
            self.published.append(fresh[0])

    @rule(key=st.integers(-3, 2))
    def hit(self, key: int) -> None:
        found = [block for block in self.published if self.keys[block] == key]
        block = cached_block(self.table, key)
        assert block == (found[0] if found else NO_BLOCK)
        if found:
            hold(self.table, block)
            self.holders[block] += 1
            if block in self.queue:
                self.queue.remove(block)
            self.held.append([block])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        for block in self.held.pop(data.draw(st.integers(0, len(self.held) - 1))):
            release_block(self.table, block)
            self.holders[block] -= 1
            if block not in self.keys:
                self.queue.appendleft(block)
            elif self.holders[block] == 0:
                self.queue.append(block)

    @invariant()
    def agrees(self) -> None:
        assert free_order(self.table) == list(self.queue)
        assert self.table.state[0].num_free == len(self.queue)
        blocks = self.table.blocks
        for block in range(1, NUM_BLOCKS):
            assert blocks[block].key == self.keys.get(block, NO_KEY)
            if block in self.keys:
                assert blocks[block].holders == self.holders[block]


TestBlocks = BlockMachine.TestCase
TestBlocks.settings = settings(max_examples=100, stateful_step_count=40)


def whole_blocks(length: int) -> int:
    return -(-length // BLOCK_SIZE)


class CacheMachine(RuleBasedStateMachine):
    """Random requests that are admitted, grow and go; their blocks mirrored by plain lists."""

    caching = True
    drops_last_hit = False
    lookahead_len = 0
    watermark_blocks = 0
    reserve_full_prompt = True

    def __init__(self) -> None:
        super().__init__()
        tokens = [np.array(ids, dtype=np.int64) for ids in TOKENS]
        requests = [
            Request(
                index=index,
                prompt_len=length,
                output_len=len(ids) - length + 5,  # the answer goes on beyond what is recorded
                prompt_token_ids=ids[:length],
                output_token_ids=ids[length:],
            )
            for index, (ids, length) in enumerate(zip(tokens, PROMPT_LENS, strict=True))
        ]
        limits = {
            "enable_prefix_caching": int(self.caching),
            "drops_last_hit": int(self.drops_last_hit),
            "lookahead_len": self.lookahead_len,
            "watermark_blocks": self.watermark_blocks,
            "reserve_full_prompt": int(self.reserve_full_prompt),
        }
        self.table = make_table(limits, requests)
        for row in range(len(TOKENS)):
            begin(self.table, row, row, 0.0)
            enqueue(self.table, row)
        self.queue = deque(range(1, NUM_BLOCKS))
        self.content: dict[int, tuple[int, ...]] = {}
        """By block that is published: all tokens up to its end; oldest first."""
        self.blocks: dict[int, list[int]] = {}
        """By row that runs."""
        self.num_published: dict[int, int] = {}

    def take(self, count: int) -> list[int]:
        taken = [self.queue.popleft() for _ in range(count)]
        for block in taken:
            self.content.pop(block, None)
        return taken

    def content_of(self, row: int, place: int) -> tuple[int, ...]:
        return tuple(TOKENS[row][: (place + 1) * BLOCK_SIZE])

    def find(self, row: int, known_len: int) -> list[int]:
        found: list[int] = []
        for place in range((known_len - 1) // BLOCK_SIZE if self.caching else 0):
            block = next(
                (b for b, held in self.content.items() if held == self.content_of(row, place)), None
            )
            if block is None:
                break
            found.append(block)
        return found[:-1] if self.drops_last_hit else found

    def publish(self, row: int, end_len: int) -> None:
        full = min(end_len, int(self.table.sequences[row].known_len)) // BLOCK_SIZE
        for place in range(self.num_published[row], full if self.caching else 0):
            self.content[self.blocks[row][place]] = self.content_of(row, place)
        self.num_published[row] = max(self.num_published[row], full)

    def running(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.blocks)))

    @precondition(lambda self: len(self.blocks) < len(TOKENS))
    @rule(data=st.data(), share=st.floats(0, 1))
    def admit(self, data: st.DataObject, share: float) -> None:
        row = data.draw(st.sampled_from([r for r in range(len(TOKENS)) if r not in self.blocks]))
        sequence = self.table.sequences[row]
        known_len = int(sequence.known_len)
        hit = self.find(row, known_len)
        cached_len = len(hit) * BLOCK_SIZE
        assert cached_prefix(self.table, row) == cached_len
        assert self.table.hits[0, : len(hit)].tolist() == hit
        missing_len = known_len - cached_len
        scheduled_len = max(1, round(share * missing_len))
        end_len = cached_len + scheduled_len
        reach = min(end_len + self.lookahead_len, MAX_MODEL_LEN)
        needed = max(0, whole_blocks(reach) - len(hit))
        wanted = max(needed, whole_blocks(known_len) - len(hit) if self.reserve_full_prompt else 0)
        spare = len([block for block in self.queue if block not in hit])
        spare -= self.watermark_blocks if self.blocks else 0
        before = free_order(self.table)
        assert admit_blocks(self.table, row, cached_len, scheduled_len) == (wanted <= spare)
        if wanted > spare:
            assert free_order(self.table) == before
            assert sequence.tables_at == -1
            return
        for block in hit:
            if block in self.queue:
                self.queue.remove(block)
        self.blocks[row] = hit + self.take(needed)
        self.num_published[row] = len(hit)
        self.publish(row, end_len)
        leave_queue(self.table, row)
        sequence.status = RUNNING
        sequence.computed_len = end_len
        sequence.in_chunk = 1
        self.note_running()

    def note_running(self) -> None:
        rows = sorted(self.blocks)
        self.table.running[: len(rows)] = rows
        self.table.state[0].num_running = len(rows)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), more=st.integers(1, 12), is_drafts=st.booleans())
    def grow(self, data: st.DataObject, more: int, *, is_drafts: bool) -> None:
        row = self.running(data)
        sequence = self.table.sequences[row]
        end_len = min(int(sequence.computed_len) + more, MAX_MODEL_LEN - 1)
        reach = min(end_len + self.lookahead_len, MAX_MODEL_LEN)
        needed = max(0, whole_blocks(reach) - len(self.blocks[row]))
        before = free_order(self.table)
        assert extend(self.table, row, end_len) == (needed <= len(self.queue))
        if needed > len(before):
            assert free_order(self.table) == before
            return
        self.blocks[row] += self.take(needed)
        if not is_drafts:
            sequence.known_len = max(int(sequence.known_len), end_len)
        if end_len >= sequence.next_publish_len:
            publish(self.table, row, end_len)
        self.publish(row, end_len)
        sequence.computed_len = end_len

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        row = self.running(data)
        release(self.table, row)
        blocks = self.blocks.pop(row)
        others = {block for mine in self.blocks.values() for block in mine}
        front = []
        for block in reversed(blocks):
            if block not in self.content:
                front.append(block)
            elif block not in others:
                self.queue.append(block)
        self.queue.extendleft(reversed(front))
        self.table.sequences[row].computed_len = 0
        self.table.sequences[row].status = WAITING
        enqueue(self.table, row)
        self.note_running()

    @invariant()
    def agrees(self) -> None:
        assert free_order(self.table) == list(self.queue)
        for row, blocks in self.blocks.items():
            at = self.table.sequences[row].tables_at
            assert self.table.holdings[at].num_blocks == len(blocks)
            assert self.table.tables[at, : len(blocks)].tolist() == blocks
        check_integrity(self.table, in_step=True)


class Uncached(CacheMachine):
    caching = False
    lookahead_len = 3


class AsEagle(CacheMachine):
    drops_last_hit = True
    lookahead_len = 5


class Reserved(CacheMachine):
    watermark_blocks = 2


class Unreserved(CacheMachine):
    reserve_full_prompt = False
    watermark_blocks = 1
    lookahead_len = 2


@pytest.mark.parametrize("machine", [CacheMachine, Uncached, AsEagle, Reserved, Unreserved])
def test_cache(machine: type[CacheMachine]) -> None:
    """Its rules and invariants assert."""
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=30))


def running_table(**limits: int) -> tuple[Table, list[int]]:
    """Return a table with one running sequence, and its blocks."""
    requests = [Request(index=index, prompt_len=9, output_len=8) for index in range(2)]
    table = make_table({"enable_prefix_caching": 1, **limits}, requests)
    begin(table, 0, 0, 0.0)
    assert admit_blocks(table, 0, 0, 9)
    sequence = table.sequences[0]
    sequence.status = RUNNING
    sequence.computed_len = 9
    sequence.known_len = 10
    table.state[0].num_running = 1
    return table, table.tables[sequence.tables_at, :3].tolist()


def test_a_preempted_sequence_hits_its_own_blocks_again() -> None:
    table, blocks = running_table()
    release(table, 0)
    assert cached_prefix(table, 0) == 8  # the third block is not full
    assert table.hits[0, :2].tolist() == blocks[:2]


def test_at_least_one_token_is_always_computed() -> None:
    table, _ = running_table()
    release(table, 0)
    table.sequences[0].known_len = 8
    assert cached_prefix(table, 0) == 4


def test_nobody_else_hits_what_is_not_known_to_be_shared() -> None:
    table, _ = running_table()
    begin(table, 1, 1, 0.0)
    assert cached_prefix(table, 1) == 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (take_block, "total"),
        (lambda table: table.tables[table.sequences[0].tables_at].__setitem__(1, 1), "total"),
        (lambda table: table.blocks[1].__setattr__("holders", 2), "sequences hold"),
        (lambda table: table.blocks[7].__setattr__("following", 6), "used and free|twice"),
        (lambda table: table.chains.__setitem__(slice(None), NO_BLOCK), "found by key"),
        (lambda table: table.sequences[0].__setattr__("capacity_len", 8), "block_size"),
        (lambda table: table.sequences[0].__setattr__("computed_len", 13), "do not fit"),
        (lambda table: table.sequences[0].__setattr__("computed_len", 5), "in flight"),
        (lambda table: table.sequences[0].__setattr__("known_len", 17), "runs outside"),
        (lambda table: table.state[0].__setattr__("num_waiting", 1), "queue"),
        (lambda table: table.state[0].__setattr__("num_running", 0), "running list"),
    ],
)
def test_integrity_check_finds_what_is_wrong(damage, message: str) -> None:
    table, _ = running_table()
    check_integrity(table, in_step=False)
    damage(table)
    with pytest.raises(InvariantError, match=message):
        check_integrity(table, in_step=False)
