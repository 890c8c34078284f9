"""Offering: what of a sequence the tiers are offered, and what of them it loads.

What a step computes is offered to all tiers when it is scheduled, and what a request has filled
last when it has ended. Of a sliding window only what a later hit may need is: the blocks before the
end of a prompt, before a junction, or wherever a hit may end (`Limits.retention_len`). A block that
has left the window and that somebody else got meanwhile is not. What finds no room is offered
again with the next step.

A waiting sequence looks on after its hit in the GPU's cache: how far do all groups reach? Full
attention needs every block, a sliding window those before the end. What any tier has is loaded
before the sequence runs (`specsim.engine.loading`). While another loads some of it, it waits: then
the GPU has it, too.

Source: vLLM 0.33.0 ``distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py``
(`_lookup_complete_chunks`, `update_state_after_alloc`, `_update_req_states`, `_build_store_jobs`),
re-implemented from a description of its behaviour and compared with recordings.
"""

from specsim.core.compiled import inlined, inner
from specsim.engine.blocks import prefix_key
from specsim.engine.kv import left_blocks
from specsim.engine.table import FULL, NO_BLOCK, Table
from specsim.engine.tiers import (
    HOST,
    READING,
    end_writing,
    let_picked_go,
    offer_picked,
    pick_block,
    read_picked,
    stored_anywhere,
    stored_in,
    use_again,
)
from specsim.engine.waiting import free_row

LOADING_NOW = -1  # in place of a length, where others load some of it
_NO_END = -1  # in place of a place, where no last tail is told from others


@inner
def stored_prefix(table: Table, row: int, cached_len: int) -> int:
    """Return up to which length the tiers have what follows a sequence's hit, tokens."""
    limits = table.limits[0]
    for number in range(limits.num_groups):
        offered = table.offered[row, number]
        offered.num_shown = 0
        if limits.offers_anew or not table.sequences[row].use:
            offered.next_place = 0
    length = _common_stored(table, row, cached_len)
    if length and _is_loading(table, row, cached_len, length):
        return LOADING_NOW
    return length


@inner
def _common_stored(table: Table, row: int, cached_len: int) -> int:
    """Return the longest prefix of which the tiers have what all groups need; 0: what is cached.

    Each group cuts what those before it were found to have; windows are looked at until none does.
    """
    limits = table.limits[0]
    _drop_anew(table)
    most_len = table.sequences[row].known_len - limits.has_windows
    hit_len, first, is_settled = 0, 0, False
    while not is_settled:
        is_settled, has_window = True, False
        for turn in range(first, limits.num_groups):
            number = table.tier_groups[turn].looked_up
            most_len = _cut_to_stored(table, row, number, cached_len, most_len)
            if not most_len:
                return 0
            if most_len < hit_len:
                if not table.tier_groups[number].has_drafter:
                    _drop_anew(table)
                if has_window:
                    is_settled, first = False, limits.num_full_groups
            has_window = has_window or table.groups[number].kind != FULL
            hit_len = most_len
    return hit_len


@inner
def _cut_to_stored(table: Table, row: int, number: int, cached_len: int, most_len: int) -> int:
    """Return how much of a prefix the tiers have of a group, 0 if no block more than is cached."""
    size, tier = table.groups[number].block_size, table.tier_groups[number]
    first, drops = cached_len // size, tier.has_drafter and not tier.has_dropped
    most_len = min(most_len, table.sequences[row].known_len // size * size)
    if most_len - cached_len < size:
        return 0
    found = _stored_blocks(table, row, number, first, most_len)
    if found and drops:
        tier.has_dropped = 1
        found -= 1
    most_len = min(most_len, (first + found) * size)
    return most_len if most_len - cached_len >= size else 0


@inner
def _drop_anew(table: Table) -> None:
    for number in range(table.limits[0].num_groups):
        table.tier_groups[number].has_dropped = 0


@inner
def _stored_blocks(table: Table, row: int, number: int, first: int, most_len: int) -> int:
    """Return how many blocks from one place on the tiers have of a group, so that a hit may end.

    The last one of those is to be dropped if the group has a drafter's layers and has not yet.
    """
    group, tier = table.groups[number], table.tier_groups[number]
    size, known_len = group.block_size, table.sequences[row].known_len
    drops = int(tier.has_drafter and not tier.has_dropped)
    num_known = known_len // size
    end = min(-(-most_len // size) + drops, num_known)
    if group.kind == FULL:
        place = first
        while place < end and _is_stored(table, row, number, place):
            place += 1
        return place - first
    candidate_len = min(most_len, (end - drops) * size)
    needed, run = _window_blocks(table, number, candidate_len) + drops, 0
    for place in range(end - 1, first - 1, -1):
        if _is_stored(table, row, number, place):
            run += 1
        else:
            run, needed = 0, tier.window_blocks + drops
        if run == needed:
            return place + run - first
    return run


@inlined
def _is_stored(table: Table, row: int, number: int, place: int) -> bool:
    """Return whether any tier has the block at a place of a group."""
    return stored_anywhere(table, _key_at(table, row, number, place)) != NO_BLOCK


@inlined
def _key_at(table: Table, row: int, number: int, place: int) -> int:
    last = (place + 1) * table.groups[number].hashes - 1
    return prefix_key(table, table.sequences[row].request, number, last)


@inner
def _window_blocks(table: Table, number: int, length: int) -> int:
    """Return how many blocks of a sliding window a hit of some tokens needs.

    That is one more where it ends within a block, and the window begins in one more, too.
    """
    tier, size = table.tier_groups[number], table.groups[number].block_size
    return max(int(tier.window_blocks), -(-(tier.read_len + -length % size) // size))


@inner
def _is_loading(table: Table, row: int, cached_len: int, length: int) -> bool:
    """Return whether others load some of what a hit needs."""
    for number in range(table.limits[0].num_groups):
        group = table.groups[number]
        first, end = cached_len // group.block_size, -(-length // group.block_size)
        if group.kind != FULL:
            first = max(first, end - _window_blocks(table, number, length))
        for place in range(first, end):
            stored = stored_anywhere(table, _key_at(table, row, number, place))
            if table.stored[stored].held_for == READING:
                return True
    return False


@inner
def begin_reading(table: Table, row: int, cached_len: int, loaded_len: int) -> None:
    """Let a sequence read what follows its hit; what only the disk has comes to host memory."""
    sequence, state = table.sequences[row], table.state[0]
    _show_blocks(table, row)
    _pick_loaded(table, row, cached_len, loaded_len)
    sequence.loads_from, sequence.load_blocks = cached_len, state.num_picked
    sequence.disk_blocks = 0
    for at in range(state.num_picked):
        sequence.disk_blocks += stored_in(table, HOST, table.picks[at].key) == NO_BLOCK
    offer_picked(table, row)
    end_writing(table)
    for number in range(table.limits[0].num_groups):
        table.offered[row, number].next_place = -(-loaded_len // table.groups[number].block_size)
    read_picked(table)


@inner
def end_reading(table: Table, row: int) -> None:
    """Let go of what a sequence has read."""
    sequence = table.sequences[row]
    _pick_loaded(table, row, sequence.loads_from, sequence.computed_len)
    let_picked_go(table)


@inner
def _pick_loaded(table: Table, row: int, cached_len: int, loaded_len: int) -> None:
    """Pick what a sequence loads: what follows its hit and no window has left at the end."""
    table.state[0].num_picked = 0
    for number in range(table.limits[0].num_groups):
        size = table.groups[number].block_size
        first = max(cached_len // size, left_blocks(table, number, loaded_len))
        for place in range(first, -(-loaded_len // size)):
            pick_block(table, row, number, place)


@inner
def offer_step(table: Table) -> None:
    """Offer the tiers what the current step computes, and what has ended since the last one."""
    state = table.state[0]
    for place in range(table.steps[state.current].num_requests):
        entry = table.entries[state.current, place]
        if entry.is_admitted or entry.is_resumed:
            for number in range(table.limits[0].num_groups):
                table.offered[entry.row, number].num_shown = 0
        _show_blocks(table, entry.row)
    for place in range(table.steps[state.current].num_requests):
        row = table.entries[state.current, place].row
        _offer_up_to(table, row, table.sequences[row].computed_len)
    settle_ended(table)


@inner
def _show_blocks(table: Table, row: int) -> None:
    """Tell the tiers of the blocks that a sequence has got since they were last told."""
    state, num_groups = table.state[0], table.limits[0].num_groups
    index = table.steps[state.current].index
    for number in range(num_groups):
        offered, at = table.offered[row, number], table.sequences[row].tables_at + number
        num_blocks = table.holdings[at].num_blocks
        for place in range(offered.num_shown, num_blocks):
            block = table.tables[at, place]
            shown = table.places[row * num_groups + number, place]
            shown.block, shown.shown_in = block, index
            table.block_notes[block].shown_in = index
        offered.num_shown = num_blocks


@inner
def leave_to_tiers(table: Table, row: int, length: int) -> None:
    """Note what a sequence that has ended leaves, up to a length, until the next step is made."""
    state, sequence = table.state[0], table.sequences[row]
    if state.num_ended == len(table.ended):
        settle_ended(table)
    sequence.left_len, sequence.is_left = length, 1
    table.ended[state.num_ended] = row
    state.num_ended += 1


@inner
def settle_ended(table: Table) -> None:
    """Offer the tiers what those that have ended leave, and count all they used as used now."""
    state = table.state[0]
    for place in range(state.num_ended):
        row = table.ended[place]
        _offer_up_to(table, row, table.sequences[row].left_len)
    for place in range(state.num_ended):
        row = table.ended[place]
        use_again(table, row)
        table.sequences[row].is_left = 0
        free_row(table, row)
    state.num_ended = 0
    end_writing(table)


@inner
def _offer_up_to(table: Table, row: int, length: int) -> None:
    """Offer the tiers what they lack of what a sequence has computed up to a length."""
    sequence = table.sequences[row]
    known_len = sequence.known_len if table.limits[0].offloads_outputs else sequence.prompt_len
    length = min(length, int(known_len))
    table.state[0].num_picked = 0
    for number in range(table.limits[0].num_groups):
        _pick_new(table, row, number, length)
    if table.state[0].num_picked and not offer_picked(table, row):
        return
    for number in range(table.limits[0].num_groups):
        offered = table.offered[row, number]
        offered.next_place = max(offered.next_place, _last_place(table, row, number, length))


@inlined
def _last_place(table: Table, row: int, number: int, length: int) -> int:
    """Return before which place of a group blocks can be offered.

    A drafter's entries of the last one may yet change while its sequence decodes.
    """
    sequence, end = table.sequences[row], length // table.groups[number].block_size
    if table.tier_groups[number].has_drafter and not sequence.is_left:
        end -= length > sequence.prompt_len
    return max(0, min(end, int(table.offered[row, number].num_shown)))


@inner
def _pick_new(table: Table, row: int, number: int, length: int) -> None:
    """Pick what a group of a sequence has not been offered up to a length."""
    sequence, tier = table.sequences[row], table.tier_groups[number]
    first, end = table.offered[row, number].next_place, _last_place(table, row, number, length)
    of_prompt = sequence.prompt_len // table.groups[number].block_size
    last = of_prompt if end <= of_prompt else _NO_END
    again_from = first
    if sequence.is_left:
        last = end
        if tier.segment_blocks and end != of_prompt:
            again_from = min(first, end - end % tier.segment_blocks)
    for place in range(again_from, end):
        if place >= first:
            _forget_taken(table, row, number, place)
        elif _is_needed(table, row, number, place, of_prompt):
            continue  # it has been offered
        if _is_there(table, row, number, place) and _is_needed(table, row, number, place, last):
            pick_block(table, row, number, place)


@inner
def _forget_taken(table: Table, row: int, number: int, place: int) -> None:
    """Have the tiers forget a block that somebody else has got since they were told of it."""
    shown = table.places[row * table.limits[0].num_groups + number, place]
    if table.block_notes[shown.block].shown_in > shown.shown_in:
        shown.block = NO_BLOCK


@inlined
def _is_there(table: Table, row: int, number: int, place: int) -> bool:
    """Return whether a block can be copied: one of full attention is kept in any case."""
    at = row * table.limits[0].num_groups + number
    return bool(table.groups[number].kind == FULL or table.places[at, place].block != NO_BLOCK)


@inner
def _is_needed(table: Table, row: int, number: int, place: int, last: int) -> bool:
    """Return whether a later hit may need a block; `last`: where a last tail ends.

    vLLM: `SlidingWindowManager.reachable_block_mask`.
    """
    limits, sequence, tier = table.limits[0], table.sequences[row], table.tier_groups[number]
    period, tail = tier.period, tier.tail_blocks
    if period == 1:
        return True
    shifted = place - tier.has_drafter
    if period and shifted >= 0 and shifted % period >= period - tail:
        return True
    if limits.retention_len < 0:
        first = last - min(tail, last % period)
        return bool(tier.segment_blocks and last > 0 and first <= place < last)
    return _is_tail(table, number, place, sequence.prompt_len - 1) or bool(
        sequence.junction_len and _is_tail(table, number, place, sequence.junction_len)
    )


@inner
def _is_tail(table: Table, number: int, place: int, length: int) -> bool:
    """Return whether a window that begins anew at a length needs a block of the prefix."""
    tier, aligned_len = table.tier_groups[number], table.limits[0].aligned_len
    end = length // aligned_len * aligned_len // table.groups[number].block_size + tier.has_drafter
    return bool(end - tier.tail_blocks <= place < end)
