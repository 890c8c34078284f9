"""Loading: KV entries that exist elsewhere come into blocks of a sequence before it runs.

A waiting sequence gets blocks for them, and a notice says that the load begins; what takes how long
is decided outside. Meanwhile it holds its blocks without running, does not count as running, and
cannot be preempted. When news comes that the load has ended, the scheduler admits it before
whoever waits without blocks; where the whole prompt was loaded, it computes the last token again,
since that yields the first output token. The other way round, the blocks of a sequence that has
ended can be kept until somebody has read them.

Sources: vLLM 0.32.0 ``v1/core/sched/scheduler.py``: `schedule` (`load_kv_async`,
`kv_holding_waiting`), `_update_waiting_for_remote_kv`, `_free_request` (delayed) and
`_request_blocks_can_be_freed` (deferred), re-implemented from a description of their behaviour.
"""

from specsim.core.compiled import inner
from specsim.engine.kv import release, release_together
from specsim.engine.offering import begin_reading, end_reading
from specsim.engine.table import (
    BLOCKS_HELD,
    BLOCKS_READ,
    FINISHED,
    LOAD_BEGINS,
    LOAD_ENDED,
    LOADED,
    LOADING,
    NO_ROW,
    WAITING,
    Table,
)
from specsim.engine.waiting import free_row, is_ahead, leave_queue, pass_over, put_back


@inner
def begin_load(table: Table, row: int, cached_len: int, loaded_len: int) -> None:
    """Let a waiting sequence load what it has blocks for, from `cached_len` to `loaded_len`."""
    limits, state, sequence = table.limits[0], table.state[0], table.sequences[row]
    pass_over(table, row)
    passed_as = sequence.passed_as
    leave_queue(table, row)
    sequence.passed_as = passed_as
    sequence.status = LOADING
    sequence.computed_len = loaded_len
    sequence.external_len = 0  # it is read once; whoever is preempted computes it again
    if not sequence.admissions:
        sequence.cached_len = cached_len
    if limits.lacks_loaded:
        _mark_undrafted(table, row, cached_len)
    place = state.num_loading
    if limits.by_priority or not limits.loads_first:
        while place and is_ahead(table, row, table.loading[place - 1]):
            table.loading[place] = table.loading[place - 1]
            place -= 1
    table.loading[place] = row
    state.num_loading += 1
    if limits.num_tiers:
        begin_reading(table, row, cached_len, loaded_len)
    _note(table, LOAD_BEGINS, row, loaded_len - cached_len)


@inner
def _mark_undrafted(table: Table, row: int, cached_len: int) -> None:
    """Note that the drafter has no entries of what is loaded; see `specsim.engine.cost`."""
    sequence, block_size = table.sequences[row], table.groups[0].block_size
    sequence.is_undrafted = table.limits[0].skips_loaded
    table.state[0].has_left_out = 1
    for place in range(cached_len // block_size, table.holdings[sequence.tables_at].num_blocks):
        table.block_notes[table.tables[sequence.tables_at, place]].is_undrafted = 1


@inner
def hold_ended(table: Table, row: int) -> None:
    """Keep the blocks of a sequence that has ended."""
    sequence = table.sequences[row]
    sequence.is_sending = 1
    _note(table, BLOCKS_HELD, row, sequence.prompt_len)


@inner
def _note(table: Table, kind: int, row: int, tokens: int) -> None:
    """Tell those outside; each row that holds blocks waits for an answer, so there is room."""
    state = table.state[0]
    notice = table.notices[state.num_notices]
    notice.kind = kind
    notice.at = state.now
    notice.request = table.sequences[row].request
    notice.row = row
    notice.tokens = tokens
    notice.blocks = table.sequences[row].load_blocks
    notice.disk_blocks = table.sequences[row].disk_blocks
    state.num_notices += 1
    state.unannounced += 1


@inner
def take_news(table: Table, row: int, kind: int) -> None:
    """Take in that a load has ended or failed, or that kept blocks have been read.

    The load may be that of a client that has gone, whose blocks were kept for it.
    """
    sequence = table.sequences[row]
    if kind != BLOCKS_READ and table.limits[0].num_tiers:
        end_reading(table, row)
    if sequence.status == FINISHED:
        sequence.is_sending = 0
        if sequence.in_flight_len:
            fence(table, row)
        else:
            release(table, row)
            free_row(table, row)
    elif kind == LOAD_ENDED:
        sequence.status = LOADED
    else:
        leave_loading(table, row)
        release(table, row)
        sequence.computed_len = sequence.passed_as = 0
        sequence.is_undrafted = 0
        put_back(table, row)


@inner
def leave_loading(table: Table, row: int) -> bool:
    """Take a sequence out of those that load; False if it was not among them."""
    state, kept = table.state[0], 0
    num_loading = state.num_loading
    for place in range(state.num_loading):
        if table.loading[place] != row:
            table.loading[kept] = table.loading[place]
            kept += 1
    state.num_loading = kept
    return bool(kept < num_loading)


@inner
def let_wait(table: Table) -> None:
    """Let those wait ahead of others that loaded a prompt of one token and were then passed over.

    That token is computed again, so that nothing counts as computed and they go back among those
    that hold no blocks; theirs they keep (vLLM: `_holds_kv_blocks`).
    """
    for place in range(table.state[0].num_loading - 1, -1, -1):
        row = table.loading[place]
        if table.sequences[row].status == WAITING:
            leave_loading(table, row)
            table.sequences[row].passed_as = 0
            put_back(table, row)
            pass_over(table, row)


@inner
def is_in_flight(table: Table, row: int) -> bool:
    """Return whether a step before the current one has a sequence and has not come back."""
    state = table.state[0]
    length = table.sequences[row].in_flight_len
    for place in range(table.steps[state.current].num_requests):
        entry = table.entries[state.current, place]
        if entry.row == row:
            length -= entry.scheduled_len
    return bool(length)


@inner
def release_late(table: Table, row: int) -> None:
    """Let a preempted sequence keep its blocks until the step in flight has come back.

    What that emits is dropped where KV entries are handed over (vLLM: `requires_kv_delivery`).
    """
    limits, state = table.limits[0], table.state[0]
    if limits.num_tiers and not limits.holds_ended:
        return
    for place in range(table.steps[state.oldest].num_requests):
        entry = table.entries[state.oldest, place]
        if entry.row == row:
            entry.is_partial = 1


@inner
def fence(table: Table, row: int) -> None:
    """Let a sequence that has ended keep its blocks until every step in flight has come back.

    One of them still writes to these blocks; vLLM waits for the last one (`deferred_frees`).
    """
    limits, state, sequence = table.limits[0], table.state[0], table.sequences[row]
    for number in range(state.in_flight):
        step = table.steps[(state.oldest + number) % limits.depth]
        if step.num_requests:
            sequence.fence = step.index + 1
    sequence.next_row = NO_ROW
    if state.fenced_head == NO_ROW:
        state.fenced_head = row
    else:
        table.sequences[state.fenced_tail].next_row = row
    state.fenced_tail = row


@inner
def free_deferred(table: Table) -> None:
    """Give back the blocks of those that had ended, and whose fence is the step that comes back.

    And then of those that had been preempted meanwhile, in that order.
    """
    limits, state = table.limits[0], table.state[0]
    while state.fenced_head != NO_ROW:
        row = state.fenced_head
        sequence = table.sequences[row]
        if sequence.fence > table.steps[state.current].index + 1:
            break
        state.fenced_head = sequence.next_row
        sequence.fence = 0
        release_together(table, row)
        free_row(table, row)
    row = NO_ROW if limits.spares_in_flight else _first_preempted(table)
    while row != NO_ROW:
        release_together(table, row)
        row = _first_preempted(table)


@inner
def _first_preempted(table: Table) -> int:
    """Return the row of the current step that waits and has blocks, the one preempted first."""
    state, found = table.state[0], NO_ROW
    for place in range(table.steps[state.current].num_requests):
        row = table.entries[state.current, place].row
        sequence = table.sequences[row]
        is_kept = sequence.status == WAITING and sequence.tables_at >= 0
        is_first = found == NO_ROW or sequence.preempted_as < table.sequences[found].preempted_as
        if is_kept and is_first:
            found = row
    return int(found)
