"""Tiers: KV blocks that are kept in host memory, and on disk, beside those of the GPU.

Each tier gives up what was used least recently; what is being read is kept. All that a request
uses counts as used when it first used any (`Rules.ranks_requests`), and again when it has ended:
of one request the end goes before the beginning. What is offered at once is stored whole or, where
there is no room, not at all. What is offered, and when, says `specsim.engine.offering`.

Sources: vLLM 0.33.0 ``v1/kv_offload/cpu/manager.py``, ``policies/lru.py`` and
``v1/kv_offload/tiering/manager.py``, re-implemented from a description of their behaviour; host
memory is compared with recordings.
"""

from specsim.core.compiled import inlined, inner
from specsim.engine.blocks import first_alike, forget, place_of, prefix_key
from specsim.engine.table import NO_BLOCK, NO_KEY, Pick, Table

HOST, DISK = range(2)
READING, WRITING = 1, 2  # why a block may not be given up
_USE = 32  # bits of a rank below the number of a use


@inner
def pick_block(table: Table, row: int, group: int, place: int) -> None:
    """Add a block of a sequence to those that the tiers are offered."""
    state, number = table.state[0], (place + 1) * table.groups[group].hashes - 1
    pick = table.picks[state.num_picked]
    pick.key = prefix_key(table, table.sequences[row].request, group, number)
    pick.group, pick.number, pick.place, pick.is_first = group, number, place, 0
    state.num_picked += 1


@inner
def stored_anywhere(table: Table, key: int) -> int:
    """Return where the first tier that has a block has it; the null block if none has."""
    place = stored_in(table, HOST, key)
    return stored_in(table, DISK, key) if place == NO_BLOCK else place


@inner
def read_picked(table: Table) -> None:
    """Have tiers keep what is picked until it has been read."""
    for tier in range(table.limits[0].num_tiers):
        for at in range(table.state[0].num_picked):
            place = stored_in(table, tier, table.picks[at].key)
            if place != NO_BLOCK:
                table.stored[place].held_for = READING
                _keep(table, tier, place)


@inner
def let_picked_go(table: Table) -> None:
    """Let go of what is picked, which has been read."""
    for tier in range(table.limits[0].num_tiers):
        for at in range(table.state[0].num_picked):
            place = stored_in(table, tier, table.picks[at].key)
            if place != NO_BLOCK and table.stored[place].held_for == READING:
                table.stored[place].held_for = 0
                _let_go(table, tier, place)


@inner
def end_writing(table: Table) -> None:
    """Let tiers give up what they have stored: not in the step that has it stored."""
    for tier in range(table.limits[0].num_tiers):
        place = int(table.tier_written[tier])
        while place != NO_BLOCK:
            table.stored[place].held_for = 0
            _let_go(table, tier, place)
            place = int(table.stored[place].next_written)
        table.tier_written[tier] = NO_BLOCK


@inner
def offer_picked(table: Table, row: int) -> bool:
    """Have all tiers store what is picked of a sequence; False if host memory has no room."""
    is_taken = True
    for tier in range(table.limits[0].num_tiers):
        has_room = _offer_to(table, tier, row)
        is_taken = is_taken and (has_room or tier != HOST)
    return is_taken


@inner
def _offer_to(table: Table, tier: int, row: int) -> bool:
    """Have a tier store blocks that it does not have, all or none; what it has of them is kept."""
    state = table.state[0]
    state.num_offers += 1
    num_new, num_kept = _count_offered(table, tier, row)
    if not num_new:
        return True
    if num_new + num_kept > table.tier_lens[tier]:
        return False
    for at in range(state.num_picked):
        pick = table.picks[at]
        if stored_in(table, tier, pick.key) == NO_BLOCK:
            _store(table, tier, pick.key, _rank_anew(table, row, pick))
    for at in range(state.num_picked):
        place = stored_in(table, tier, table.picks[at].key)
        if table.stored[place].heap_at < 0 and not table.stored[place].held_for:
            _let_go(table, tier, place)
    return True


@inner
def _count_offered(table: Table, tier: int, row: int) -> tuple[int, int]:
    """Count blocks as used; return how many a tier lacks, and how many others it must not give up.

    What another sequence has it store in the same step is neither, nor used by this one.
    """
    num_new = num_kept = 0
    for at in range(table.state[0].num_picked):
        pick = table.picks[at]
        place = stored_in(table, tier, pick.key)
        block = table.stored[place]
        if place != NO_BLOCK and block.held_for == WRITING:
            continue
        if tier == HOST:
            _note_use(table, row, pick)
        if place == NO_BLOCK:
            num_new += 1
            continue
        block.offered_in = table.state[0].num_offers
        num_kept += block.heap_at >= 0
        if table.limits[0].ranks_requests and pick.is_first:
            _raise_rank(table, tier, place, _rank(table, row, pick))
    return num_new, num_kept


@inlined
def _rank(table: Table, row: int, pick: Pick) -> int:
    """Return when a block counts as used by a sequence that has not ended.

    Of what ends together the first group's goes first.
    """
    before = (pick.number + 1) * table.limits[0].num_groups - pick.group
    return int((table.sequences[row].use << _USE) - before)


@inner
def _rank_anew(table: Table, row: int, pick: Pick) -> int:
    """Return when a block counts as used that is stored now."""
    state = table.state[0]
    if table.limits[0].ranks_requests:
        return _rank(table, row, pick)
    state.num_uses += 1
    return int(state.num_uses << _USE)


@inner
def _note_use(table: Table, row: int, pick: Pick) -> None:
    """Note that a sequence uses a block, and whether it has before."""
    sequence, first = table.sequences[row], row * table.limits[0].num_groups
    if not sequence.use:
        table.state[0].num_uses += 1
        sequence.use = table.state[0].num_uses
        longest_len = min(sequence.requested_len, table.limits[0].max_model_len)
        for group in range(table.limits[0].num_groups):
            for place in range(-(-longest_len // table.groups[group].block_size)):
                table.places[first + group, place].is_used = 0
    at = table.places[first + pick.group, pick.place]
    pick.is_first = not at.is_used
    at.is_used = 1


@inner
def use_again(table: Table, row: int) -> None:
    """Count all that a sequence has used, and that is stored, as used now, its end first."""
    sequence, limits = table.sequences[row], table.limits[0]
    if not sequence.use:
        return
    for number in range(sequence.known_len // limits.hash_block_size - 1, -1, -1):
        for group in range(limits.num_groups - 1, -1, -1):
            hashes = table.groups[group].hashes
            if (number + 1) % hashes == 0:
                place = (number + 1) // hashes - 1
                if table.places[row * limits.num_groups + group, place].is_used:
                    _use_block_again(table, prefix_key(table, sequence.request, group, number))


@inner
def _use_block_again(table: Table, key: int) -> None:
    """Count a block as used now, where it is stored."""
    state = table.state[0]
    state.num_uses += 1
    for tier in range(table.limits[0].num_tiers):
        place = stored_in(table, tier, key)
        if place != NO_BLOCK:
            _raise_rank(table, tier, place, state.num_uses << _USE)


@inner
def _store(table: Table, tier: int, key: int, rank: int) -> None:
    """Put a block where a tier has what was used least recently, other than what is offered now."""
    place = int(table.tier_heaps[tier, 0])
    _keep(table, tier, place)
    while table.stored[place].offered_in == table.state[0].num_offers:
        place = int(table.tier_heaps[tier, 0])
        _keep(table, tier, place)
    block, chains = table.stored[place], table.tier_chains[tier]
    if block.key != NO_KEY:
        forget(chains, table.stored, place)
    chain = place_of(chains, key)
    block.key, block.rank, block.held_for = key, rank, WRITING
    block.next_written = table.tier_written[tier]
    table.tier_written[tier] = place
    block.next_alike = chains[chain]
    chains[chain] = place


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
def stored_in(table: Table, tier: int, key: int) -> int:
    """Return where a tier has a block; the null block if nowhere."""
    if tier >= table.limits[0].num_tiers:
        return NO_BLOCK
    return first_alike(table.tier_chains[tier], table.stored, key)
