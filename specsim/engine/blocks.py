"""The KV blocks themselves: the free queue and the index of prefixes, as in vLLM V1.

Source: vLLM 0.32.0 ``v1/core/block_pool.py``, re-implemented from a description of its behaviour.

Blocks whose content is published keep it while they wait in the free queue: a later request with
the same prefix takes them out again, and only handing them out for something else evicts them.
Released blocks without published content return to the front of the queue, published ones to its
end; it is a circle that begins and ends with the null block. Equal content may live in several
blocks; the one published first is found.
"""

from typing import Any

from specsim.core.compiled import inlined, inner
from specsim.engine.table import NO_BLOCK, NO_KEY, Table

_LOW = (1 << 32) - 1
_SPREAD = 40503  # odd; keys of one request lie side by side, those of two far apart
_SHARED_GROUP, _OWN_GROUP = 40, 24  # bits of a key at which the group begins


@inner
def take_block(table: Table) -> int:
    """Return the first block of the free queue, which has one; it loses what it held."""
    number = table.blocks[NO_BLOCK].following
    block = table.blocks[number]
    unlink(table.blocks, number)
    state = table.state[0]
    state.num_free -= 1
    state.blocks_used = max(state.blocks_used, number + 1)
    if block.key != NO_KEY:
        forget(table.chains, table.blocks, number)
        block.key = NO_KEY
    return number


@inner
def hold(table: Table, number: int) -> None:
    """Hold a published block; if nobody held it, it leaves the free queue."""
    block = table.blocks[number]
    if block.holders == 0:
        unlink(table.blocks, number)
        table.state[0].num_free -= 1
    block.holders += 1


@inner
def release_block(table: Table, number: int) -> None:
    """Give back one holder of a published block, or an unpublished block."""
    block = table.blocks[number]
    is_published = block.key != NO_KEY
    if is_published:
        block.holders -= 1
        if block.holders:
            return
    link(table.blocks, number, table.blocks[NO_BLOCK].preceding if is_published else NO_BLOCK)
    table.state[0].num_free += 1


@inlined
def link(rows: Any, place: int, before: int) -> None:
    """Let a place of a circle of rows come after another."""
    behind = rows[before].following
    rows[place].preceding, rows[place].following = before, behind
    rows[before].following = rows[behind].preceding = place


@inlined
def unlink(rows: Any, place: int) -> None:
    """Take a place out of its circle of rows."""
    rows[rows[place].preceding].following = rows[place].following
    rows[rows[place].following].preceding = rows[place].preceding


@inlined
def prefix_key(table: Table, request: int, group: int, number: int) -> int:
    """Return the identity of a block: equal keys hold the same tokens, for the same layers.

    Shared keys are negative; what no other request can share is numbered by request and prefix.

    Args:
        number: Of the prefix up to the block's end, in units of `Limits.hash_block_size`, from 0.
    """
    fact = table.facts[request]
    if number < fact.num_keys:
        return int(table.keys[fact.key_at + number]) - (group << _SHARED_GROUP)
    return (request << 32) | (group << _OWN_GROUP) | number


@inner
def cached_block(table: Table, key: int) -> int:
    """Return the block that was published first with a key; the null block if there is none."""
    return first_alike(table.chains, table.blocks, key)


@inner
def publish_block(table: Table, number: int, key: int) -> None:
    """Let later requests find a full block, which one sequence holds, by its key."""
    block = table.blocks[number]
    if block.key != NO_KEY:  # it was published before it was full
        forget(table.chains, table.blocks, number)
    block.key = key
    block.holders = 1
    block.next_alike = NO_BLOCK
    place = place_of(table.chains, key)
    last = int(table.chains[place])
    if last == NO_BLOCK:
        table.chains[place] = number
        return
    while table.blocks[last].next_alike != NO_BLOCK:
        last = table.blocks[last].next_alike
    table.blocks[last].next_alike = number


@inner
def mark_alike(table: Table, key: int, step: int) -> None:
    """Note of all blocks with a key the step in which it was published, counted from 1."""
    number = int(table.chains[place_of(table.chains, key)])
    while number != NO_BLOCK:
        if table.blocks[number].key == key:
            table.block_notes[number].published_in = step
        number = table.blocks[number].next_alike


@inlined
def first_alike(chains: Any, rows: Any, key: int) -> int:
    """Return the first row with a key in the index that begins with `chains`; else the null one."""
    number = int(chains[place_of(chains, key)])
    while number != NO_BLOCK and rows[number].key != key:
        number = int(rows[number].next_alike)
    return number


@inlined
def forget(chains: Any, rows: Any, number: int) -> None:
    """Take a row out of an index."""
    place = place_of(chains, rows[number].key)
    before = int(chains[place])
    if before == number:
        chains[place] = rows[number].next_alike
        return
    while rows[before].next_alike != number:
        before = int(rows[before].next_alike)
    rows[before].next_alike = rows[number].next_alike


@inlined
def place_of(chains: Any, key: int) -> int:
    """Return the place of a key in an index, whose size is a power of two."""
    group = (key >> _OWN_GROUP) & 255  # the same of all shared keys
    return int(((key >> 32) * _SPREAD + (key & _LOW) + group * _SPREAD) & (len(chains) - 1))
