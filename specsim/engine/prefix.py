"""The prefix cache: what is published, and what a waiting sequence finds, as in vLLM V1.

Sources: vLLM 0.32.0 ``v1/core/single_type_kv_cache_manager.py`` (`find_longest_cache_hit`,
`reachable_block_mask`) and ``v1/core/kv_cache_coordinator.py``, re-implemented from a description
of their behaviour.

A hit is of one length in all groups. Full attention needs every block of it, a sliding window the
last ones, chunked local attention those of the chunk that goes on; what is not needed is the null
block. Of a state it needs that at its end. So that these do not fill the cache with what hardly
anybody will look for, such a group publishes little: the last blocks before a prompt's end, and
before a *junction*, where another request was seen to part from what the other groups hold.
"""

from specsim.core.compiled import inlined, inner
from specsim.engine.blocks import cached_block, mark_alike, prefix_key, publish_block
from specsim.engine.table import CHUNKED, FULL, NO_BLOCK, NO_KEY, SLIDING, STATE, Table


@inner
def cached_prefix(table: Table, row: int) -> int:
    """Return how many cached tokens a waiting sequence may use; blocks lie in `table.hits`.

    At least one token is left to be computed.
    """
    limits = table.limits[0]
    if not limits.enable_prefix_caching:
        return 0
    known_len = table.sequences[row].known_len
    if limits.num_groups > 1:
        return _common_prefix(table, row, known_len)
    return _found_prefix(table, row, 0, known_len - 1, table.groups[0].drops)


@inner
def _common_prefix(table: Table, row: int, known_len: int) -> int:
    """Return the longest prefix that all groups have: each cuts what the others were found to have.

    A bucket that drops its last block looks one block further, and drops it once for each length.
    """
    limits, buckets = table.limits[0], table.buckets
    hashed_len = known_len // limits.hash_block_size * limits.hash_block_size
    hashed_len = min(hashed_len, known_len - 1 + limits.looks_to_end)
    for number in range(len(buckets)):
        buckets[number].found_len = -1
        buckets[number].has_dropped = 0
    hit_len, longest = known_len - 1, 0
    while True:
        current = hit_len
        for number in range(len(buckets)):
            bucket, group = buckets[number], table.groups[buckets[number].first]
            if group.kind == FULL and bucket.found_len >= 0:
                current = min(current, bucket.found_len)
                continue
            drops = group.drops and not bucket.has_dropped
            looks_further = drops and group.kind != STATE
            reach = min(current + group.block_size, hashed_len) if looks_further else current
            found_len = _found_prefix(table, row, number, reach, drops)
            if drops:
                bucket.has_dropped = 1
            elif found_len < current:
                for other in range(len(buckets)):
                    buckets[other].has_dropped = 0
            bucket.found_len = current = found_len
            longest = max(longest, found_len)
        if current >= hit_len:
            break
        hit_len = current
        if len(buckets) == 2 and table.groups[buckets[0].first].kind == FULL:
            break
    table.sequences[row].junction_len = longest if longest > hit_len else 0
    return hit_len


@inner
def _found_prefix(table: Table, row: int, number: int, most_len: int, drops: int) -> int:
    """Return how much a bucket has of a sequence's prefix, at most `most_len`, tokens."""
    bucket = table.buckets[number]
    group = table.groups[bucket.first]
    most = most_len // group.block_size
    if group.kind == SLIDING:
        return _found_window(table, row, number, most, drops)
    if group.kind == STATE:
        return _found_state(table, row, number, most)
    num = 0
    if group.kind == CHUNKED:
        num = most_len // group.span_len * group.span_len // group.block_size
        _leave_null(table, bucket.first, bucket.last, num)
    while num < most and _found_block(table, row, bucket.first, bucket.last, num):
        num += 1
    if drops and num:
        num -= 1
    return _whole_len(table, num * group.block_size)


@inner
def _found_window(table: Table, row: int, number: int, most: int, drops: int) -> int:
    """Return the longest prefix of which a sliding bucket has all that the window needs, tokens.

    That is a run of blocks that ends where a hit may end; or, however short, one from the start.
    """
    bucket, common = table.buckets[number], table.limits[0].common_block_size
    group = table.groups[bucket.first]
    block_size = group.block_size
    needed = -(-(group.span_len - 1) // block_size) + (1 if drops else 0)
    run, end = 0, -1
    for place in range(most - 1, -1, -1):
        if run == 0 and (place if drops else place + 1) * block_size % common:
            continue
        if not _found_block(table, row, bucket.first, bucket.last, place):
            run = 0
            continue
        run += 1
        if run >= needed:
            end = place + run
            _leave_null(table, bucket.first, bucket.last, place)
            break
    found_len = end * block_size
    if end < 0:
        found_len = _whole_len(table, run * block_size)
    if drops and found_len:
        found_len = _whole_len(table, found_len - block_size)
    return found_len


@inner
def _found_state(table: Table, row: int, number: int, most: int) -> int:
    """Return the longest prefix after which a bucket has the state, tokens."""
    bucket, common = table.buckets[number], table.limits[0].common_block_size
    block_size = table.groups[bucket.first].block_size
    for place in range(most - 1, -1, -1):
        length = (place + 1) * block_size
        if length % common == 0 and _found_block(table, row, bucket.first, bucket.last, place):
            _leave_null(table, bucket.first, bucket.last, place)
            return length
    return 0


@inner
def _found_block(table: Table, row: int, first: int, last: int, place: int) -> bool:
    """Return whether groups side by side all have a block of a sequence; note where it is."""
    request = table.sequences[row].request
    for group in range(first, last):
        number = (place + 1) * table.groups[group].hashes - 1
        block = cached_block(table, prefix_key(table, request, group, number))
        if block == NO_BLOCK:
            return False
        table.hits[group, place] = block
    return True


@inner
def _leave_null(table: Table, first: int, last: int, count: int) -> None:
    """Note that groups side by side do not need the leading blocks."""
    for group in range(first, last):
        for place in range(count):
            table.hits[group, place] = NO_BLOCK


@inner
def _whole_len(table: Table, length: int) -> int:
    """Return a length cut to one at which blocks of all groups end, tokens."""
    return length // table.limits[0].common_block_size * table.limits[0].common_block_size


@inner
def publish(table: Table, row: int, end_len: int) -> None:
    """Publish the full blocks up to `end_len`; drafts are not known tokens, so not them."""
    limits, sequence = table.limits[0], table.sequences[row]
    known_len, size = min(end_len, sequence.known_len), limits.hash_block_size
    if known_len < sequence.next_publish_len:
        return
    hashed_len = min(known_len, max(0, sequence.known_len - limits.hash_lookahead_len))
    final_len = max(0, known_len - limits.reread_len)
    if limits.num_groups == 1:
        hashed_len = min(hashed_len, final_len)
    num_hashes = hashed_len // size
    sequence.next_publish_len = (num_hashes + 1) * size + limits.reread_len
    if limits.claims_states or (limits.num_groups > 1 and limits.reread_len):
        sequence.next_publish_len = 0  # whenever it computes
    if limits.num_groups == 1:
        _publish_in(table, row, 0, num_hashes)
        return
    whole_len = _whole_len(table, known_len)
    for number in range(limits.num_groups):
        group, publish_len = table.groups[number], min(whole_len, hashed_len)
        told_len = whole_len
        if group.drops and whole_len:
            # A lookup that drops a block looks one further.
            told_len = min(final_len, _whole_len(table, final_len) + group.block_size)
            publish_len = told_len
        _publish_in(table, row, number, publish_len // group.block_size)
        if table.holdings[sequence.tables_at + number].saved_len:
            _publish_saved(table, row, number)
        elif limits.claims_states and group.kind == STATE:
            _claim_state(table, row, number, publish_len)
        if group.hashes > 1 and group.kind == FULL:
            _publish_tail(table, row, number, told_len)


@inner
def prefill_end(table: Table, row: int) -> int:
    """Return the length at which a prefill ends, of outputs that are read anew all but the last."""
    sequence = table.sequences[row]
    return max(sequence.prompt_len, sequence.known_len - 1)


@inner
def last_state_len(table: Table, length: int, size: int) -> int:
    """Return the longest prefix of some tokens, in blocks of a size, whose state a hit may use.

    vLLM 0.33: `get_mamba_prefill_checkpoint_position`.
    """
    limits = table.limits[0]
    if limits.drops_last_hit:  # of what is cached, the last block is dropped
        return length // size * size - size
    ahead_len = max(limits.leaves_state_early, limits.hash_lookahead_len)
    return (length - ahead_len) // size * size


@inner
def length_inside(table: Table, start: int, end: int, length: int) -> int:
    """Return after how many tokens a piece saves the last state of a length inside; 0: not at all.

    There has to be a place for it between the state that is read and the one at the end
    (vLLM 0.33: `is_mamba_prefill_checkpoint_valid`).
    """
    limits = table.limits[0]
    if not limits.saves_inside or start % limits.hash_block_size:
        return 0
    size = limits.state_block_size
    saved_len = last_state_len(table, length, limits.common_block_size)
    has_place = -(-end // size) - 2 > (start - 1) // size
    return saved_len if has_place and start + limits.hash_block_size <= saved_len < end else 0


@inlined
def _publish_in(table: Table, row: int, number: int, full_blocks: int) -> None:
    """Publish what a group keeps of a sequence's leading blocks, which are full."""
    sequence, group = table.sequences[row], table.groups[number]
    holding = table.holdings[sequence.tables_at + number]
    for place in range(holding.published_blocks, full_blocks):
        block = table.tables[sequence.tables_at + number, place]
        if holding.saved_len and place == holding.saved_at:
            continue
        if block != NO_BLOCK and (group.period == 1 or _is_kept(table, row, number, place)):
            key = prefix_key(table, sequence.request, number, (place + 1) * group.hashes - 1)
            publish_block(table, block, key)
            if group.kind == STATE:
                mark_alike(table, key, table.steps[table.state[0].current].index + 1)
    holding.published_blocks = max(holding.published_blocks, full_blocks)


@inner
def _publish_saved(table: Table, row: int, number: int) -> None:
    """Publish the state that was saved inside a piece, if it is one that is kept.

    vLLM 0.33: `MambaManager._cache_partial_tail_block`.
    """
    sequence, group = table.sequences[row], table.groups[number]
    holding = table.holdings[sequence.tables_at + number]
    length, period = holding.saved_len, group.period * group.block_size
    is_kept = period and length % period == 0
    if not is_kept and length != sequence.junction_len:
        size = table.limits[0].common_block_size
        is_kept = length == last_state_len(table, sequence.prompt_len, size)
        if not is_kept:
            return
    block = table.tables[sequence.tables_at + number, holding.saved_at]
    hashes = length // table.limits[0].hash_block_size
    key = prefix_key(table, sequence.request, number, hashes - 1)
    if block != NO_BLOCK and table.blocks[block].key != key:
        publish_block(table, block, key)
        mark_alike(table, key, table.steps[table.state[0].current].index + 1)


@inner
def _claim_state(table: Table, row: int, number: int, publish_len: int) -> None:
    """Count the last state that a prompt leaves to others as made in this step, if it is there.

    vLLM 0.32: `MambaManager._cache_partial_tail_block`.
    """
    sequence, size = table.sequences[row], table.groups[number].block_size
    last = (sequence.prompt_len - 1) // size
    if table.limits[0].drops_last_hit:
        last = sequence.prompt_len // size - 1
    if last > 0 and publish_len == last * size:
        block = table.blocks[table.tables[sequence.tables_at + number, last - 1]]
        if block.key != NO_KEY:
            mark_alike(table, block.key, table.steps[table.state[0].current].index + 1)


@inner
def _publish_tail(table: Table, row: int, number: int, told_len: int) -> None:
    """Publish the block in which a prompt ends, under a key that no lookup asks for.

    vLLM: `FullAttentionManager._cache_partial_tail_block`. It only matters for eviction.
    """
    limits, sequence, group = table.limits[0], table.sequences[row], table.groups[number]
    reach = sequence.prompt_len if group.drops else sequence.prompt_len - 1
    reach = max(0, min(reach, sequence.known_len - limits.hash_lookahead_len))
    num_hashes = reach // limits.hash_block_size
    if num_hashes % group.hashes == 0 or told_len < num_hashes * limits.hash_block_size:
        return
    block = table.tables[sequence.tables_at + number, num_hashes // group.hashes]
    if table.blocks[block].key == NO_KEY:
        key = prefix_key(table, sequence.request, number, num_hashes - 1)
        publish_block(table, block, key)


@inner
def _is_kept(table: Table, row: int, number: int, place: int) -> bool:
    """Return whether a sliding group publishes a full block: a later hit might end behind it."""
    limits, sequence, group = table.limits[0], table.sequences[row], table.groups[number]
    period, shift = group.period, group.shift
    if period and place >= shift and (place - shift) % period >= period - group.tail_blocks:
        return True
    if limits.retention_len < 0:
        return False
    if sequence.junction_len and _is_before_junction(table, row, number, place):
        return True
    prompt_len = sequence.prompt_len
    if not (limits.drops_last_hit and limits.keeps_dropped):
        return _is_before(table, number, place, prompt_len - 1)
    # A hit that drops a block ends one unit earlier: of the same prompt, or of a longer one.
    before = limits.common_block_size
    return _is_before(table, number, place, max(0, prompt_len - 1 - before)) or _is_before(
        table, number, place, max(0, prompt_len - before)
    )


@inner
def _is_before_junction(table: Table, row: int, number: int, place: int) -> bool:
    """Return whether a window needs a block that begins anew where another request parted.

    Where hits drop a block, one that parts right there needs the block below, too.
    """
    junction_len, group = table.sequences[row].junction_len, table.groups[number]
    if _is_before(table, number, place, junction_len):
        return True
    if not (table.limits[0].keeps_below_junction and group.shift):
        return False
    return _is_before(table, number, place, junction_len - group.block_size)


@inner
def _is_before(table: Table, number: int, place: int, length: int) -> bool:
    """Return whether a window that begins anew at a length needs a block of the prefix."""
    group = table.groups[number]
    end = _whole_len(table, length) // group.block_size + group.shift
    return bool(end - group.tail_blocks <= place < end)
