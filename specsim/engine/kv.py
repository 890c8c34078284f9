"""Allocation of KV blocks to sequences, and when they are freed, as in vLLM V1.

Sources: vLLM 0.32.0 ``v1/core/kv_cache_manager.py allocate_slots`` and
``v1/core/single_type_kv_cache_manager.py``, re-implemented from a description of their behaviour.

A sequence holds blocks in every group of layers, all from one pool. In a group with a window the
leading entries of its table become null as they leave the window; they still count as positions.
A group of states holds the one that is read and the one that is written, and some for drafts behind
it; all other entries are null.
"""

from specsim.core.compiled import inner
from specsim.engine.blocks import hold, release_block, take_block
from specsim.engine.prefix import length_inside, prefill_end, publish
from specsim.engine.table import (
    CHUNKED,
    FULL,
    NEVER,
    NO_BLOCK,
    NO_KEY,
    SLIDING,
    STATE,
    WAITING,
    Group,
    Holding,
    Table,
)


@inner
def admit_blocks(table: Table, row: int, cached_len: int, scheduled_len: int) -> bool:
    """Allocate block tables, and blocks for the hit and first piece of a waiting sequence.

    The watermark applies only while other sequences run. False, with nothing allocated, if there
    are too few free blocks.
    """
    limits = table.limits[0]
    end_len = cached_len + scheduled_len
    if not _begin_holding(table, row, cached_len, 0, scheduled_len):
        return False
    if limits.enable_prefix_caching:
        publish(table, row, end_len)
    return True


@inner
def admit_loaded_blocks(table: Table, row: int, end_len: int) -> bool:
    """Allocate the blocks that a loaded sequence lacks up to `end_len`.

    The rules of other admissions apply. False, with nothing allocated, if there are too few.
    """
    limits, state, sequence = table.limits[0], table.state[0], table.sequences[row]
    known_len = min(sequence.known_len, limits.max_model_len)
    unavailable = limits.watermark_blocks if state.num_running else 0
    whole = 0
    for number in range(limits.num_groups if limits.reserve_full_prompt else 0):
        group, holding = table.groups[number], table.holdings[sequence.tables_at + number]
        lacking = min(_blocks_for(known_len, group.block_size), group.most_admitted)
        lacking -= holding.num_blocks
        if group.kind == STATE:
            saved_len = _saved_len(table, row, number, known_len)
            lacking = _lacking_states(group, holding, known_len, saved_len)
        whole += max(0, lacking)
    if max(whole, _lacking_blocks(table, row, end_len)) + unavailable > state.num_free:
        return False
    _take(table, row)
    if end_len >= sequence.next_publish_len:
        publish(table, row, end_len)
    return True


@inner
def load_blocks(table: Table, row: int, cached_len: int, loaded_len: int) -> bool:
    """Give a waiting sequence tables, the blocks of its hit and those to load into, or nothing.

    It cannot be preempted while it loads, and so leaves what others need that are in their prefill.
    Returns whether the blocks were there.
    """
    return _begin_holding(table, row, cached_len, loaded_len - cached_len, 0)


@inner
def _reserved_blocks(table: Table) -> int:
    """Return the blocks that prefills under way will still need (vLLM: `_inflight_prefills`)."""
    limits, state = table.limits[0], table.state[0]
    step = table.steps[state.current]
    draft_len = 0
    if limits.max_draft_len and limits.reserves_drafts:
        draft_len = 1 + limits.max_draft_len + limits.lookahead_len
    reserved = _blocks_for(draft_len, limits.common_block_size)
    if limits.reserves_together:
        reserved = 0
        for number in range(limits.num_groups):
            if table.groups[number].kind != STATE:
                reserved += _blocks_for(draft_len, table.groups[number].block_size)
    reserved += _reserved_for_loads(table, draft_len)
    for place in range(state.num_running):
        if table.sequences[table.running[place]].in_chunk:
            reserved += _remaining_blocks(table, table.running[place], draft_len)
    for place in range(step.num_requests):  # in this very step they still count
        entry = table.entries[state.current, place]
        is_new = entry.is_admitted or entry.is_resumed
        was_under_way = entry.is_loaded or (entry.prefill_len and not is_new)
        if was_under_way and not table.sequences[entry.row].in_chunk:
            reserved += _remaining_blocks(table, entry.row, draft_len)
    return reserved


@inner
def _reserved_for_loads(table: Table, draft_len: int) -> int:
    """Return the blocks that those will still need that load or, loaded, have not run yet."""
    reserved = 0
    for place in range(table.state[0].num_loading):
        row = table.loading[place]
        if table.sequences[row].status != WAITING:
            reserved += _remaining_blocks(table, row, draft_len)
    if table.limits[0].max_loras:  # some may wait, see `specsim.engine.loading.let_wait`
        for row in range(len(table.sequences)):
            if table.sequences[row].status == WAITING and table.sequences[row].tables_at >= 0:
                reserved += _remaining_blocks(table, row, draft_len)
    return reserved


@inner
def _remaining_blocks(table: Table, row: int, draft_len: int) -> int:
    """Return the number of blocks that a sequence lacks for its known tokens and first draft."""
    sequence = table.sequences[row]
    limits = table.limits[0]
    known_len, remaining = min(sequence.known_len, limits.max_model_len), 0
    length = known_len
    if limits.reserves_together:
        length += draft_len
    else:
        remaining = _blocks_for(draft_len, limits.common_block_size)
    for number in range(limits.num_groups):
        group, holding = table.groups[number], table.holdings[sequence.tables_at + number]
        if group.kind == STATE and limits.enable_prefix_caching:
            # vLLM leaves drafts out, and lets what is held beyond that count for other groups.
            saved_len = _saved_len(table, row, number, known_len)
            remaining += _lacking_states(group, holding, known_len, saved_len)
            continue
        if group.kind == STATE:  # one block holds up to `max_model_len`, but drafts go beyond that
            remaining += max(0, _lacking_states(group, holding, length, 0))
            continue
        most = min(_blocks_for(length, group.block_size), group.most_admitted)
        remaining += max(0, most - holding.num_blocks)
    return remaining


@inner
def _begin_holding(
    table: Table, row: int, cached_len: int, loaded_len: int, scheduled_len: int
) -> bool:
    """Give a sequence tables, the blocks of its hit, and those to load and to compute; or nothing.

    What windows have left where its hit and its load end it does not hold. One that loads leaves
    over what is reserved for others.
    """
    limits, state, sequence = table.limits[0], table.state[0], table.sequences[row]
    computed_len = cached_len + loaded_len
    end_len = computed_len + scheduled_len
    reserved = _reserved_blocks(table) if loaded_len else 0
    lookahead_len = 0 if loaded_len else limits.lookahead_len
    reach = min(end_len + lookahead_len, limits.max_model_len)
    known_len = min(sequence.known_len, limits.max_model_len)
    unavailable = limits.watermark_blocks if state.num_running else 0
    whole = needed = 0
    for number in range(limits.num_groups):
        group = table.groups[number]
        num_hits = cached_len // group.block_size
        left = left_blocks(table, number, computed_len)
        unavailable += _count_unheld(table, number, left if group.kind != STATE else 0, num_hits)
        if group.kind == STATE:
            if num_hits and _is_being_computed(table, number, num_hits):
                return False
            group.wanted_blocks = _blocks_for(end_len, group.block_size) + group.num_spare
            group.saved_len = _length_inside(table, row, computed_len, end_len)
            needed += 1 + group.num_spare + (group.saved_len > 0)
            saves = _length_inside(table, row, computed_len, known_len) > 0
            whole += 1 + group.num_spare + saves
            continue
        # It gives blocks back as they leave the window, and so never needs more at once.
        most = min(_blocks_for(known_len, group.block_size), group.most_admitted)
        held = max(left, num_hits)
        whole += max(0, most - held)
        group.wanted_blocks = max(held, _blocks_for(reach, group.block_size))
        needed += group.wanted_blocks - held
    if limits.reserve_full_prompt and whole + unavailable > state.num_free:
        return False
    if needed + unavailable + reserved > state.num_free or not state.num_free_tables:
        return False
    state.num_free_tables -= 1
    sequence.tables_at = table.free_tables[state.num_free_tables]
    for number in range(limits.num_groups):
        left = left_blocks(table, number, computed_len)
        _hold_hits(table, sequence.tables_at + number, number, left, cached_len)
    if loaded_len:
        _take_loaded(table, row, computed_len)
    _take(table, row)
    if limits.enable_prefix_caching:
        sequence.next_publish_len = cached_len + limits.hash_block_size
        if limits.claims_states:  # whenever it computes
            sequence.next_publish_len = 0
    return True


@inner
def _is_being_computed(table: Table, number: int, num_hits: int) -> bool:
    """Return whether the state of a hit is one that the step itself makes."""
    note = table.block_notes[table.hits[number, num_hits - 1]]
    return bool(note.published_in == table.steps[table.state[0].current].index + 1)


@inner
def _count_unheld(table: Table, number: int, left: int, num_hits: int) -> int:
    """Return how many blocks of a group's hit nobody holds that no window has left."""
    unheld = 0
    for place in range(left, num_hits):
        block = table.hits[number, place]
        if block != NO_BLOCK and table.blocks[block].holders == 0:
            unheld += 1
    return unheld


@inner
def _hold_hits(table: Table, at: int, number: int, left: int, cached_len: int) -> None:
    """Begin the holding of a group with the blocks of its hit that no window has left."""
    num_hits = cached_len // table.groups[number].block_size
    holding = table.holdings[at]
    holding.num_blocks = max(left, num_hits)
    holding.null_blocks = 0
    holding.published_blocks = holding.num_blocks
    holding.has_taken = 0
    holding.last_state = -1
    holding.saved_len = 0
    for place in range(holding.num_blocks):
        block = NO_BLOCK if place < left else table.hits[number, place]
        table.tables[at, place] = block
        if block == NO_BLOCK:
            holding.null_blocks += 1
        else:
            hold(table, block)


@inner
def extend(table: Table, row: int, end_len: int) -> bool:
    """Allocate the blocks that a running sequence lacks up to `end_len`; False if too few are free.

    Frees the blocks that have left a window in any case. `end_len` is its length after the step,
    with drafts but without look-ahead slots.
    """
    limits, sequence = table.limits[0], table.sequences[row]
    if limits.has_windows:
        leave_windows(table, row, sequence.computed_len - sequence.in_flight_len)
    if _lacking_blocks(table, row, end_len) > table.state[0].num_free:
        return False
    _take(table, row)
    return True


@inner
def _lacking_blocks(table: Table, row: int, end_len: int) -> int:
    """Note how many blocks each group of a sequence has to have at `end_len`; return what it lacks.

    Look-ahead slots come on top.
    """
    limits, sequence, needed = table.limits[0], table.sequences[row], 0
    reach = min(end_len + limits.lookahead_len, limits.max_model_len)
    for number in range(limits.num_groups):
        group, holding = table.groups[number], table.holdings[sequence.tables_at + number]
        held = holding.num_blocks
        if group.kind == STATE:
            group.wanted_blocks = _blocks_for(end_len, group.block_size) + group.num_spare
            group.saved_len = _saved_len(table, row, number, end_len)
            needed += max(0, _lacking_states(group, holding, end_len, group.saved_len))
            continue
        group.wanted_blocks = max(held, _blocks_for(reach, group.block_size))
        needed += group.wanted_blocks - held
    return needed


@inner
def leave_windows(table: Table, row: int, settled_len: int) -> None:
    """Free the blocks that no token of a sequence after `settled_len` will read.

    Steps in flight still read theirs, and rejected drafts can take a sequence back to where they
    began, so that only what came before is settled.
    """
    limits, sequence = table.limits[0], table.sequences[row]
    for number in range(limits.num_groups):
        group = table.groups[number]
        if group.kind == FULL:
            continue
        if group.kind == STATE:
            _leave_states(table, sequence.tables_at + number, group.block_size, settled_len)
            continue
        holding = table.holdings[sequence.tables_at + number]
        left = min(left_blocks(table, number, settled_len), holding.num_blocks)
        _leave_leading(table, sequence.tables_at + number, left)


@inner
def left_blocks(table: Table, number: int, length: int) -> int:
    """Return how many leading blocks the window of a group has left at a length."""
    group = table.groups[number]
    if group.kind == SLIDING:
        left_len = max(0, length - group.span_len + 1 - table.limits[0].reread_len)
        return left_len // group.block_size
    if group.kind == CHUNKED:
        return length // group.span_len * group.span_len // group.block_size
    return max(0, length - 1) // group.block_size if group.kind == STATE else 0


@inner
def _leave_leading(table: Table, at: int, left: int) -> None:
    """Free the leading blocks of a holding, up to a place."""
    holding = table.holdings[at]
    if left > holding.null_blocks:
        _give_back(table, at, holding.null_blocks, left)
        for place in range(holding.null_blocks, left):
            table.tables[at, place] = NO_BLOCK
        holding.null_blocks = left


@inner
def _leave_states(table: Table, at: int, block_size: int, settled_len: int) -> None:
    """Give back the states that no later one begins from (vLLM `MambaManager`).

    That from which the one before was computed has been read by then, wherever it lies.
    """
    holding = table.holdings[at]
    left = min(max(0, settled_len - 1) // block_size, holding.num_blocks)
    if table.limits[0].leaves_past_gaps:
        _leave_leading(table, at, left)
    else:
        _leave_up_to_gap(table, at, left)
    last = holding.last_state
    if 0 <= last < _blocks_for(settled_len, block_size) - 1:
        block = table.tables[at, last]
        if block != NO_BLOCK:
            release_block(table, block)
            table.tables[at, last] = NO_BLOCK


@inner
def _leave_up_to_gap(table: Table, at: int, left: int) -> None:
    """Give back the blocks right before a place, as far as there is no null block among them."""
    first = left
    while first > 0 and table.tables[at, first - 1] != NO_BLOCK:
        first -= 1
    _give_back(table, at, first, left)
    for place in range(first, left):
        table.tables[at, place] = NO_BLOCK


@inner
def _next_leave_len(group: Group, null_blocks: int) -> int:
    """Return the length at which the next block leaves a group's window."""
    left_len = (null_blocks + 1) * group.block_size
    if group.kind == SLIDING:
        return left_len + group.span_len - 1
    return -(-left_len // group.span_len) * group.span_len


@inner
def release(table: Table, row: int) -> None:
    """Free all blocks and the block tables of a sequence that ends or is preempted."""
    at = table.sequences[row].tables_at
    for number in range(table.limits[0].num_groups):
        holding = table.holdings[at + number]
        _give_back(table, at + number, holding.null_blocks, holding.num_blocks)
    _leave_tables(table, row)


@inner
def release_together(table: Table, row: int) -> None:
    """The same after all steps have come back that write to the blocks.

    vLLM has those of all groups in one list then (`pop_blocks_for_free`): groups go last one first.
    """
    at, num_groups = table.sequences[row].tables_at, table.limits[0].num_groups
    for number in range(num_groups - 1, -1, -1):
        holding = table.holdings[at + number]
        _give_published(table, at + number, holding.null_blocks, holding.num_blocks)
    for number in range(num_groups):
        holding = table.holdings[at + number]
        _give_unpublished(table, at + number, holding.null_blocks, holding.num_blocks)
    _leave_tables(table, row)


@inner
def _leave_tables(table: Table, row: int) -> None:
    state, sequence = table.state[0], table.sequences[row]
    table.free_tables[state.num_free_tables] = sequence.tables_at
    state.num_free_tables += 1
    sequence.tables_at = -1
    sequence.capacity_len = 0
    sequence.next_publish_len = NEVER


@inner
def _give_back(table: Table, at: int, first: int, end: int) -> None:
    """Release the blocks of a holding at the places `first` to `end` - 1."""
    _give_published(table, at, first, end)
    _give_unpublished(table, at, first, end)


@inner
def _give_published(table: Table, at: int, first: int, end: int) -> None:
    """Release what is published, the last one first: it goes to the end of the free queue."""
    for place in range(end - 1, first - 1, -1):
        block = table.tables[at, place]
        if table.blocks[block].key != NO_KEY:
            release_block(table, block)
            table.tables[at, place] = NO_BLOCK


@inner
def _give_unpublished(table: Table, at: int, first: int, end: int) -> None:
    """Release what is left: it goes to the front, so that the last one is the next to be used."""
    for place in range(first, end):
        block = table.tables[at, place]
        if block != NO_BLOCK:
            release_block(table, block)


@inner
def _take_loaded(table: Table, row: int, computed_len: int) -> None:
    """Give a sequence what is loaded into; of states that at the end, and spare ones after all."""
    sequence = table.sequences[row]
    for number in range(table.limits[0].num_groups):
        holding = table.holdings[sequence.tables_at + number]
        end = _blocks_for(computed_len, table.groups[number].block_size)
        for place in range(holding.num_blocks, end):
            table.tables[sequence.tables_at + number, place] = take_block(table)
        holding.num_blocks = max(holding.num_blocks, end)


@inner
def _take(table: Table, row: int) -> None:
    """Give a sequence, of each group, what it is to hold; there are enough free blocks."""
    limits, sequence = table.limits[0], table.sequences[row]
    capacity_len = NEVER
    for number in range(limits.num_groups):
        group, holding = table.groups[number], table.holdings[sequence.tables_at + number]
        if group.kind == STATE:
            _take_states(table, sequence.tables_at + number, group)
            if limits.state_block_size:  # every step may give one back
                capacity_len = 0
            continue
        for place in range(holding.num_blocks, group.wanted_blocks):
            table.tables[sequence.tables_at + number, place] = take_block(table)
        holding.num_blocks = group.wanted_blocks
        capacity_len = min(capacity_len, holding.num_blocks * group.block_size)
        if group.kind != FULL:
            left_len = _next_leave_len(group, holding.null_blocks)
            capacity_len = min(capacity_len, left_len + limits.lookahead_len)
    sequence.capacity_len = capacity_len


@inner
def _lacking_states(group: Group, holding: Holding, length: int, saved_len: int) -> int:
    """Return how many blocks a holding of states lacks up to a length; below 0: it has more."""
    lacking = _blocks_for(length, group.block_size) + group.num_spare - holding.num_blocks
    return min(lacking, (1 if holding.has_taken else 1 + group.num_spare) + (saved_len > 0))


@inner
def _length_inside(table: Table, row: int, start: int, end: int) -> int:
    """Return after how many tokens a step saves a state inside its piece; 0: it does not.

    Where states are kept at prompts' ends only, it is the last piece that does.
    """
    if end < prefill_end(table, row) and not table.limits[0].retention_len:
        return 0
    return length_inside(table, start, end, end)


@inner
def _saved_len(table: Table, row: int, number: int, end: int) -> int:
    """Return the same of the step that a sequence is to take now, if the place for it is free."""
    sequence, group = table.sequences[row], table.groups[number]
    length = _length_inside(table, row, sequence.computed_len, end)
    holding = table.holdings[sequence.tables_at + number]
    place = _blocks_for(end, group.block_size) - 2
    kept = holding.num_blocks - holding.has_taken * group.num_spare
    if length and place < kept and table.tables[sequence.tables_at + number, place] != NO_BLOCK:
        return 0
    return length


@inner
def _take_states(table: Table, at: int, group: Group) -> None:
    """Give a holding of states the block that the step writes, and before it what it saves inside.

    Those for drafts lie behind it. They are not read, and so move along.
    """
    wanted, num_spare = group.wanted_blocks, group.num_spare
    holding = table.holdings[at]
    held, saves = holding.num_blocks, group.saved_len > 0
    holding.saved_len, holding.saved_at = group.saved_len, wanted - num_spare - 2
    if wanted > held or saves:
        if holding.has_taken:
            holding.last_state = held - 1 - num_spare
        elif held:
            holding.last_state = held - 1
        left = wanted - num_spare - 1 - saves
        end = max(held, left)
        for place in range(held, end):
            table.tables[at, place] = NO_BLOCK
        if holding.has_taken:
            for place in range(held - num_spare, min(held, left)):
                table.tables[at, end] = table.tables[at, place]
                table.tables[at, place] = NO_BLOCK
                end += 1
        for place in range(end, wanted):
            table.tables[at, place] = take_block(table)
        holding.num_blocks = max(held, wanted)
    holding.has_taken = 1


@inner
def _blocks_for(length: int, block_size: int) -> int:
    """Return the number of blocks for `length` tokens."""
    return -(-length // block_size)
