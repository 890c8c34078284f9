"""Tiers: KV blocks that are kept in host memory, and on disk, beside those of the GPU.

Every block that is published is copied to all tiers. A waiting sequence looks on after its hit in
the GPU's cache, block by block; what any tier has is loaded before the sequence runs
(`specsim.engine.loading`). Each tier gives up what was used least recently; of one request the end
of its prompt goes before its beginning.

Sources: vLLM 0.32.0 ``distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py``
(`get_num_new_matched_tokens`, `_build_store_jobs`), ``v1/kv_offload/cpu/policies/lru.py`` and
``v1/kv_offload/tiering/manager.py``, re-implemented from a description of their behaviour.
"""

from specsim.core.compiled import inlined, inner
from specsim.engine.blocks import link, prefix_key, unlink
from specsim.engine.table import NO_BLOCK, NO_KEY, Table

HOST, DISK = range(2)
_SPREAD = 40503


@inner
def stored_prefix(table: Table, row: int, cached_len: int) -> int:
    """Return up to which length the tiers have what follows a sequence's hit, tokens.

    Note how many tokens of that only the disk has. At least one token is left to be computed.
    """
    sequence, size = table.sequences[row], table.limits[0].hash_block_size
    sequence.disk_len = 0
    number = cached_len // size
    while (number + 1) * size < sequence.known_len:
        key = prefix_key(table, sequence.request, 0, number)
        if _stored(table, HOST, key) == NO_BLOCK:
            if _stored(table, DISK, key) == NO_BLOCK:
                break
            sequence.disk_len += size
        number += 1
    return number * size


@inner
def store(table: Table, key: int) -> None:
    """Copy a block to all tiers, if it is not there."""
    for tier in range(table.limits[0].num_tiers):
        if _stored(table, tier, key) == NO_BLOCK:
            _add(table, tier, key)


@inner
def touch_prefix(table: Table, row: int) -> None:
    """Count all blocks that a sequence has filled as used now, its first one as the last."""
    sequence, size = table.sequences[row], table.limits[0].hash_block_size
    for number in range(min(sequence.computed_len, sequence.known_len - 1) // size - 1, -1, -1):
        key = prefix_key(table, sequence.request, 0, number)
        for tier in range(table.limits[0].num_tiers):
            place = _stored(table, tier, key)
            if place == NO_BLOCK:
                _add(table, tier, key)
            else:
                unlink(table.stored, place)
                link(table.stored, place, table.stored[tier].preceding)


@inner
def _stored(table: Table, tier: int, key: int) -> int:
    """Return where a tier has a block; the null block if nowhere."""
    if tier >= table.limits[0].num_tiers:
        return NO_BLOCK
    place = int(table.tier_chains[tier, _chain(table, key)])
    while place != NO_BLOCK and table.stored[place].key != key:
        place = table.stored[place].next_alike
    return place


@inner
def _add(table: Table, tier: int, key: int) -> None:
    """Put a block where a tier keeps what was used least recently."""
    place = table.stored[tier].following
    unlink(table.stored, place)
    _forget(table, tier, place)
    block, chain = table.stored[place], _chain(table, key)
    block.key = key
    block.next_alike = table.tier_chains[tier, chain]
    table.tier_chains[tier, chain] = place
    link(table.stored, place, table.stored[tier].preceding)


@inner
def _forget(table: Table, tier: int, place: int) -> None:
    """Take what a place holds out of the index."""
    block = table.stored[place]
    if block.key == NO_KEY:
        return
    chain = _chain(table, block.key)
    before = int(table.tier_chains[tier, chain])
    if before == place:
        table.tier_chains[tier, chain] = block.next_alike
        return
    while table.stored[before].next_alike != place:
        before = table.stored[before].next_alike
    table.stored[before].next_alike = block.next_alike


@inlined
def _chain(table: Table, key: int) -> int:
    """Return the place of a key in the index, whose size is a power of two."""
    return int(((key >> 32) * _SPREAD + key) & (table.tier_chains.shape[1] - 1))
