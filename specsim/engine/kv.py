"""Who gets how many KV blocks, and when they are published, as in vLLM V1.

Sources: vLLM 0.32.0 ``v1/core/kv_cache_manager.py allocate_slots`` and
``v1/core/single_type_kv_cache_manager.py``, re-implemented from a description of their behaviour.

The arrays are laid out for models with several KV cache groups; the rules are those of one group
of full attention.
"""

from specsim.core.compiled import inner
from specsim.engine.blocks import (
    block_key,
    cached_block,
    hold,
    publish_block,
    release_block,
    take_block,
)
from specsim.engine.table import NEVER, NO_BLOCK, NO_KEY, Table


@inner
def cached_prefix(table: Table, row: int) -> int:
    """Return how many blocks of the cache a waiting sequence may use; they lie in `table.hits`.

    At least one token is left to be computed.
    """
    limits = table.limits[0]
    if not limits.enable_prefix_caching:
        return 0
    sequence = table.sequences[row]
    longest = (sequence.known_len - 1) // table.groups[0].block_size
    num = 0
    while num < longest:
        number = cached_block(table, block_key(table, sequence.request, num))
        if number == NO_BLOCK:
            break
        table.hits[num] = number
        num += 1
    return num - 1 if num and limits.drops_last_hit else num


@inner
def admit_blocks(table: Table, row: int, num_hits: int, scheduled_len: int) -> bool:
    """Give a waiting sequence a slot, the blocks of its hit and of its first piece, or nothing.

    The watermark counts only while other sequences run. Returns whether the blocks were there.
    """
    limits, state, sequence = table.limits[0], table.state[0], table.sequences[row]
    block_size = table.groups[0].block_size
    unavailable = limits.watermark_blocks if state.num_running else 0
    for place in range(num_hits):
        if table.blocks[table.hits[place]].holders == 0:
            unavailable += 1
    if limits.reserve_full_prompt:
        whole = _blocks_for(min(sequence.known_len, limits.max_model_len), block_size)
        if whole - num_hits + unavailable > state.num_free:
            return False
    end_len = num_hits * block_size + scheduled_len
    reach = min(end_len + limits.lookahead_len, limits.max_model_len)
    needed = max(0, _blocks_for(reach, block_size) - num_hits)
    if needed + unavailable > state.num_free:
        return False
    state.num_free_slots -= 1
    sequence.slot = table.slots[state.num_free_slots]
    for place in range(num_hits):
        hold(table, table.hits[place])
        table.tables[sequence.slot, place] = table.hits[place]
    holding = table.holdings[sequence.slot]
    holding.num_blocks = num_hits
    holding.published_blocks = num_hits
    _take(table, row, needed)
    if limits.enable_prefix_caching:
        sequence.next_publish_len = (num_hits + 1) * block_size
        publish(table, row, end_len)
    return True


@inner
def extend(table: Table, row: int, end_len: int) -> bool:
    """Give a running sequence the blocks that it lacks up to `end_len`, or nothing.

    `end_len` is its length after the step, drafts included, look-ahead slots not. Returns whether
    the blocks were there.
    """
    limits, sequence = table.limits[0], table.sequences[row]
    reach = min(end_len + limits.lookahead_len, limits.max_model_len)
    needed = _blocks_for(reach, table.groups[0].block_size)
    needed -= table.holdings[sequence.slot].num_blocks
    if needed <= 0:
        return True
    if needed > table.state[0].num_free:
        return False
    _take(table, row, needed)
    return True


@inner
def publish(table: Table, row: int, end_len: int) -> None:
    """Publish the full blocks up to `end_len`; drafts are not known tokens, so not them."""
    sequence = table.sequences[row]
    holding = table.holdings[sequence.slot]
    block_size = table.groups[0].block_size
    full_blocks = min(end_len, sequence.known_len) // block_size
    for place in range(holding.published_blocks, full_blocks):
        key = block_key(table, sequence.request, place)
        publish_block(table, table.tables[sequence.slot, place], key)
    holding.published_blocks = max(holding.published_blocks, full_blocks)
    sequence.next_publish_len = (holding.published_blocks + 1) * block_size


@inner
def release(table: Table, row: int) -> None:
    """Take every block, and its slot, away from a sequence that ends or is preempted.

    Published blocks go to the end of the free queue, the last one first; unpublished ones to its
    front, so that the last one is the next to be used.
    """
    state, sequence = table.state[0], table.sequences[row]
    num_blocks = table.holdings[sequence.slot].num_blocks
    for place in range(num_blocks - 1, -1, -1):
        number = table.tables[sequence.slot, place]
        if table.blocks[number].key != NO_KEY:
            release_block(table, number)
            table.tables[sequence.slot, place] = NO_BLOCK
    for place in range(num_blocks):
        number = table.tables[sequence.slot, place]
        if number != NO_BLOCK:
            release_block(table, number)
    table.slots[state.num_free_slots] = sequence.slot
    state.num_free_slots += 1
    sequence.slot = -1
    sequence.capacity_len = 0
    sequence.next_publish_len = NEVER


@inner
def _take(table: Table, row: int, count: int) -> None:
    """Give a sequence the next free blocks, of which there are enough."""
    sequence = table.sequences[row]
    holding = table.holdings[sequence.slot]
    for place in range(holding.num_blocks, holding.num_blocks + count):
        table.tables[sequence.slot, place] = take_block(table)
    holding.num_blocks += count
    sequence.capacity_len = holding.num_blocks * table.groups[0].block_size


@inner
def _blocks_for(length: int, block_size: int) -> int:
    """Return the number of blocks that hold so many tokens."""
    return -(-length // block_size)
