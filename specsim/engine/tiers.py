"""Tiers: KV blocks that are kept in host memory, and on disk, beside those of the GPU.

What a step computes is offered to all tiers when it is scheduled, and what a request has filled
last when it has ended. A waiting sequence looks on after its hit in the GPU's cache, block by
block; what any tier has is loaded before the sequence runs (`specsim.engine.loading`). While
another loads some of it, it waits: then the GPU has it, too.

Each tier gives up what was used least recently; what is being read is kept. All that a request
uses counts as used when it first used any (`Rules.ranks_requests`), and again when it has ended:
of one request the end goes before the beginning. What is offered at once is stored whole or, where
there is no room, not at all; then it is offered again with the next step.

Sources: vLLM 0.33.0 ``distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py``
(`get_num_new_matched_tokens`, `update_state_after_alloc`, `_build_store_jobs`),
``v1/kv_offload/cpu/manager.py``, ``policies/lru.py`` and ``v1/kv_offload/tiering/manager.py``,
re-implemented from a description of their behaviour; host memory is compared with recordings.
"""

from specsim.core.compiled import inlined, inner
from specsim.engine.blocks import prefix_key
from specsim.engine.table import NO_BLOCK, NO_KEY, Sequence, Table

HOST, DISK = range(2)
READING, WRITING = 1, 2  # why a block may not be given up
LOADING_NOW = -1  # in place of a length, where others load some of it
_SPREAD = 40503
_USE = 32  # bits of a rank below the number of a use


@inner
def stored_prefix(table: Table, row: int, cached_len: int) -> int:
    """Return up to which length the tiers have what follows a sequence's hit, tokens.

    Note how many tokens of that only the disk has.
    """
    sequence, size = table.sequences[row], table.limits[0].hash_block_size
    sequence.disk_len = 0
    if table.limits[0].offers_anew:
        sequence.num_offered = 0
    first, end = cached_len // size, sequence.known_len // size
    number, loading_at = first, end
    while number < end:
        key = prefix_key(table, sequence.request, 0, number)
        place = _stored(table, HOST, key)
        if place == NO_BLOCK:
            place = _stored(table, DISK, key)
        if place == NO_BLOCK:
            break
        if table.stored[place].held_for == READING:
            loading_at = min(loading_at, number)
        number += 1
    if table.limits[0].drops_stored and number > first:
        number -= 1
    if loading_at < number:
        return LOADING_NOW
    if table.limits[0].num_tiers > 1:
        sequence.disk_len = size * _num_on_disk(table, sequence.request, first, number)
    return number * size


@inner
def _num_on_disk(table: Table, request: int, first: int, last: int) -> int:
    """Return how many of some blocks only the disk has."""
    found = 0
    for number in range(first, last):
        key = prefix_key(table, request, 0, number)
        found += _stored(table, HOST, key) == NO_BLOCK
    return found


@inner
def begin_reading(table: Table, row: int, cached_len: int, loaded_len: int) -> None:
    """Let a sequence read what follows its hit; what only the disk has comes to host memory."""
    sequence, size = table.sequences[row], table.limits[0].hash_block_size
    first, last = cached_len // size, loaded_len // size
    _offer(table, sequence, first, last)
    _end_writing(table)
    sequence.num_offered, sequence.loads_from = last, first
    for tier in range(table.limits[0].num_tiers):
        for number in range(first, last):
            place = _stored(table, tier, prefix_key(table, sequence.request, 0, number))
            if place != NO_BLOCK:
                table.stored[place].held_for = READING
                _keep(table, tier, place)


@inner
def end_reading(table: Table, row: int) -> None:
    """Let go of what a sequence has read."""
    sequence, size = table.sequences[row], table.limits[0].hash_block_size
    for tier in range(table.limits[0].num_tiers):
        for number in range(sequence.loads_from, sequence.computed_len // size):
            place = _stored(table, tier, prefix_key(table, sequence.request, 0, number))
            if place != NO_BLOCK and table.stored[place].held_for == READING:
                table.stored[place].held_for = 0
                _let_go(table, tier, place)


@inner
def offer_step(table: Table) -> None:
    """Offer the tiers what the current step computes, and what has ended since the last one."""
    state, size = table.state[0], table.limits[0].hash_block_size
    for place in range(table.steps[state.current].num_requests):
        row = table.entries[state.current, place].row
        sequence = table.sequences[row]
        length = _stored_len(table, row, sequence.computed_len)
        num_blocks = length // size
        if table.limits[0].drops_stored and length > sequence.prompt_len:
            num_blocks -= 1  # a draft model's entries of the last one may yet change
        first = sequence.num_offered
        if num_blocks > first and _offer(table, sequence, first, num_blocks):
            sequence.num_offered = num_blocks
    settle_ended(table)


@inner
def leave_to_tiers(table: Table, row: int, length: int) -> None:
    """Note what a sequence that has ended leaves, up to a length, until the next step is made."""
    state, sequence = table.state[0], table.sequences[row]
    if state.num_ended == len(table.ended):
        settle_ended(table)
    length = _stored_len(table, row, length)
    sequence.num_to_offer = length // table.limits[0].hash_block_size
    table.ended[state.num_ended] = sequence
    state.num_ended += 1


@inlined
def _stored_len(table: Table, row: int, length: int) -> int:
    """Return how much of what a sequence has computed the tiers are offered, tokens."""
    sequence = table.sequences[row]
    known_len = sequence.known_len if table.limits[0].offloads_outputs else sequence.prompt_len
    return min(length, int(known_len))


@inner
def settle_ended(table: Table) -> None:
    """Offer the tiers what those that have ended leave, and count all they used as used now."""
    state = table.state[0]
    for place in range(state.num_ended):
        sequence = table.ended[place]
        if sequence.num_to_offer > sequence.num_offered:
            _offer(table, sequence, sequence.num_offered, sequence.num_to_offer)
    for place in range(state.num_ended):
        sequence = table.ended[place]
        for number in range(sequence.used_to - 1, sequence.used_from - 1, -1):
            _use_again(table, sequence.request, number)
        for number in range(sequence.head_blocks - 1, -1, -1):
            _use_again(table, sequence.request, number)
    state.num_ended = 0
    _end_writing(table)


@inner
def _end_writing(table: Table) -> None:
    """Let tiers give up what they have stored: not in the step that has it stored."""
    for tier in range(table.limits[0].num_tiers):
        place = int(table.tier_written[tier])
        while place != NO_BLOCK:
            table.stored[place].held_for = 0
            _let_go(table, tier, place)
            place = int(table.stored[place].next_written)
        table.tier_written[tier] = NO_BLOCK


@inner
def _offer(table: Table, sequence: Sequence, first: int, last: int) -> bool:
    """Have all tiers store blocks that they do not have; False if host memory has no room."""
    is_taken = True
    for tier in range(table.limits[0].num_tiers):
        has_room = _offer_to(table, tier, sequence, first, last)
        is_taken = is_taken and (has_room or tier != HOST)
    return is_taken


@inner
def _offer_to(table: Table, tier: int, sequence: Sequence, first: int, last: int) -> bool:
    """Have a tier store blocks that it does not have, all or none; what it has of them is kept."""
    table.state[0].num_offers += 1
    request = sequence.request
    num_new, num_kept = _count_offered(table, tier, sequence, first, last)
    if not num_new:
        return True
    if num_new + num_kept > table.tier_lens[tier]:
        return False
    for number in range(first, last):
        key = prefix_key(table, request, 0, number)
        if _stored(table, tier, key) == NO_BLOCK:
            _store(table, tier, key, _rank_anew(table, sequence, number))
    for number in range(first, last):
        place = _stored(table, tier, prefix_key(table, request, 0, number))
        if table.stored[place].heap_at < 0 and not table.stored[place].held_for:
            _let_go(table, tier, place)
    return True


@inner
def _count_offered(
    table: Table, tier: int, sequence: Sequence, first: int, last: int
) -> tuple[int, int]:
    """Count blocks as used; return how many a tier lacks, and how many others it must not give up.

    What another sequence has it store in the same step is neither, nor used by this one.
    """
    num_new = num_kept = 0
    for number in range(first, last):
        place = _stored(table, tier, prefix_key(table, sequence.request, 0, number))
        block = table.stored[place]
        if place != NO_BLOCK and block.held_for == WRITING:
            continue
        if tier == HOST:
            _note_use(table, sequence, number)
        if place == NO_BLOCK:
            num_new += 1
            continue
        block.offered_in = table.state[0].num_offers
        num_kept += block.heap_at >= 0
        if table.limits[0].ranks_requests:
            _raise_rank(table, tier, place, _rank(sequence, number))
    return num_new, num_kept


@inlined
def _rank(sequence: Sequence, number: int) -> int:
    """Return when a block counts as used by a sequence that has not ended."""
    return int((sequence.use << _USE) - number - 1)


@inner
def _rank_anew(table: Table, sequence: Sequence, number: int) -> int:
    """Return when a block counts as used that is stored now."""
    state = table.state[0]
    if table.limits[0].ranks_requests:
        return _rank(sequence, number)
    state.num_uses += 1
    return int(state.num_uses << _USE)


@inlined
def _note_use(table: Table, sequence: Sequence, number: int) -> None:
    """Count a block as used: one of the leading ones, or of a stretch further on.

    What lies between two such stretches, which takes several preemptions, counts as used.
    """
    if not sequence.use:
        table.state[0].num_uses += 1
        sequence.use = table.state[0].num_uses
    if number == sequence.head_blocks:
        sequence.head_blocks += 1
    elif number > sequence.head_blocks and sequence.used_to:
        sequence.used_from = min(sequence.used_from, number)
        sequence.used_to = max(sequence.used_to, number + 1)
    elif number > sequence.head_blocks:
        sequence.used_from, sequence.used_to = number, number + 1
    if sequence.used_to and sequence.head_blocks >= sequence.used_from:
        sequence.head_blocks = max(sequence.head_blocks, sequence.used_to)
        sequence.used_from = sequence.used_to = 0


@inner
def _store(table: Table, tier: int, key: int, rank: int) -> None:
    """Put a block where a tier has what was used least recently, other than what is offered now."""
    place = int(table.tier_heaps[tier, 0])
    _keep(table, tier, place)
    while table.stored[place].offered_in == table.state[0].num_offers:
        place = int(table.tier_heaps[tier, 0])
        _keep(table, tier, place)
    _forget(table, tier, place)
    block, chain = table.stored[place], _chain(table, key)
    block.key, block.rank, block.held_for = key, rank, WRITING
    block.next_written = table.tier_written[tier]
    table.tier_written[tier] = place
    block.next_alike = table.tier_chains[tier, chain]
    table.tier_chains[tier, chain] = place


@inner
def _use_again(table: Table, request: int, number: int) -> None:
    """Count a block of a request as used now, where it is stored."""
    state, key = table.state[0], prefix_key(table, request, 0, number)
    state.num_uses += 1
    for tier in range(table.limits[0].num_tiers):
        place = _stored(table, tier, key)
        if place != NO_BLOCK:
            _raise_rank(table, tier, place, state.num_uses << _USE)


@inner
def _raise_rank(table: Table, tier: int, place: int, rank: int) -> None:
    block = table.stored[place]
    if rank > block.rank:
        block.rank = rank
        if block.heap_at >= 0:
            _sift(table, tier, block.heap_at)


@inner
def _keep(table: Table, tier: int, place: int) -> None:
    """Take a block out of what a tier may give up, if it is there."""
    at = table.stored[place].heap_at
    if at < 0:
        return
    table.stored[place].heap_at = -1
    length = table.tier_lens[tier] - 1
    table.tier_lens[tier] = length
    if at < length:
        table.tier_heaps[tier, at] = table.tier_heaps[tier, length]
        _sift(table, tier, at)


@inner
def _let_go(table: Table, tier: int, place: int) -> None:
    """Add a block to what a tier may give up."""
    length = int(table.tier_lens[tier])
    table.tier_lens[tier] = length + 1
    table.tier_heaps[tier, length] = place
    _sift(table, tier, length)


@inner
def _sift(table: Table, tier: int, at: int) -> None:
    """Move what stands at a place of the heap up or down to where its rank belongs."""
    heap, stored = table.tier_heaps[tier], table.stored
    place, length = int(heap[at]), int(table.tier_lens[tier])
    rank = stored[place].rank
    while at and stored[heap[(at - 1) // 2]].rank > rank:
        _put(table, tier, at, heap[(at - 1) // 2])
        at = (at - 1) // 2
    child = 2 * at + 1
    while child < length:
        if child + 1 < length and stored[heap[child + 1]].rank < stored[heap[child]].rank:
            child += 1
        if stored[heap[child]].rank >= rank:
            break
        _put(table, tier, at, heap[child])
        at, child = child, 2 * child + 1
    _put(table, tier, at, place)


@inlined
def _put(table: Table, tier: int, at: int, place: int) -> None:
    table.tier_heaps[tier, at] = place
    table.stored[place].heap_at = at


@inner
def _stored(table: Table, tier: int, key: int) -> int:
    """Return where a tier has a block; the null block if nowhere."""
    if tier >= table.limits[0].num_tiers:
        return NO_BLOCK
    place = int(table.tier_chains[tier, _chain(table, key)])
    while place != NO_BLOCK and table.stored[place].key != key:
        place = int(table.stored[place].next_alike)
    return place


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
        before = int(table.stored[before].next_alike)
    table.stored[before].next_alike = block.next_alike


@inlined
def _chain(table: Table, key: int) -> int:
    """Return the place of a key in the index, whose size is a power of two."""
    return int(((key >> 32) * _SPREAD + key) & (table.tier_chains.shape[1] - 1))
