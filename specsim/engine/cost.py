"""Cost: how long a step takes.

By `specsim.profile.step_time`, for one drafter and a latency model that has a compiled form; all
others are asked in Python.
"""

from specsim.core.compiled import inner
from specsim.engine.engine_limits import IDLE
from specsim.engine.table import Table
from specsim.latency.form import composed_time, forward_time
from specsim.profile.step_time import (
    BASIS,
    HAS_DRAFTER,
    PASS,
    DraftLoad,
    added_time,
    draft_time,
    overhead_time,
)


@inner
def charge_forward(table: Table) -> None:
    """Charge for the target's forward pass and the engine's own time."""
    state = table.state[0]
    step = table.steps[state.current]
    if step.batched_tokens:
        # Under batch expansion a context is read several times: only the sums tell.
        if table.limits[0].charges_pieces and step.context_tokens == step.own_context_tokens:
            time = composed_time(
                table.target,
                step.batched_tokens,
                step.prefill_tokens,
                table.entries,
                state.current,
                step.num_requests,
            )
        else:
            time = forward_time(
                table.target,
                step.context_tokens,
                step.batched_tokens,
                step.num_requests,
                step.prefill_tokens,
            )
        step.target_time = state.slowness * time
    if step.num_requests:
        step.overhead_time = state.slowness * overhead_time(table.costs, step.num_requests)


@inner
def charge_drafts(table: Table) -> None:
    """Charge for making the drafts that were asked for; an empty step makes none."""
    state = table.state[0]
    step = table.steps[state.current]
    if state.has_left_out:
        read_prefixes(table)
        _leave_out(table)
    if table.limits[0].overlaps:
        keep_up(table)
    if table.costs[HAS_DRAFTER] and step.drafter_batched_tokens:
        note_drafting(table, state.slowness * _draft_time(table, step.target_time / state.slowness))
    if table.limits[0].prefill_first:
        step.verified_draft_time = step.draft_time


@inner
def note_drafting(table: Table, drafter_time: float) -> float:
    """Note how long drafting takes, and return how much longer the step takes for it, seconds."""
    step = table.steps[table.state[0].current]
    step.drafter_time = drafter_time
    step.draft_time = added_time(table.costs, drafter_time, step.target_time)
    return float(step.draft_time)


@inner
def keep_up(table: Table) -> None:
    """Have the drafter read one token of each decode: it has the entries of its own drafts."""
    current = table.state[0].current
    step = table.steps[current]
    for place in range(step.num_requests):
        verified_len = table.entries[current, place].verified_len
        step.drafter_context_tokens += verified_len
        step.drafter_batched_tokens -= verified_len


@inner
def read_prefixes(table: Table) -> None:
    """Note what of its cached prefix the drafter has to read for each sequence that joins the step.

    Whom the drafter leaves out fills blocks for the target alone. Another request may find them,
    and then its drafter reads what it lacks of them along with the prompt. Of several KV cache
    groups the first one's blocks stand for the drafter's.
    """
    current, block_size = table.state[0].current, table.groups[0].block_size
    for place in range(table.steps[current].num_requests):
        entry = table.entries[current, place]
        sequence = table.sequences[entry.row]
        may_have_prefix = table.limits[0].enable_prefix_caching or entry.is_loaded
        if not may_have_prefix or sequence.tables_at < 0:
            continue
        first = entry.start // block_size
        if not sequence.is_undrafted and (entry.is_admitted or entry.is_resumed):
            for cached in range(-(-entry.start // block_size)):
                note = table.block_notes[table.tables[sequence.tables_at, cached]]
                length = min(block_size, entry.start - cached * block_size)
                entry.unread_len += note.is_undrafted * length
                note.is_undrafted = 0
        for own in range(first, -(-(entry.start + entry.scheduled_len) // block_size)):
            block = table.tables[sequence.tables_at, own]
            table.block_notes[block].is_undrafted = sequence.is_undrafted


@inner
def _leave_out(table: Table) -> None:
    """Take the sequences that are never drafted for out of what the drafter reads.

    See `specsim.engine.speculation.drafter_loads`.
    """
    current = table.state[0].current
    step = table.steps[current]
    for place in range(step.num_requests):
        entry = table.entries[current, place]
        step.drafter_context_tokens -= entry.unread_len
        step.drafter_batched_tokens += entry.unread_len
        step.drafter_prefill_tokens += entry.unread_len
        if table.sequences[entry.row].is_undrafted:
            step.drafter_requests -= 1
            step.drafter_context_tokens -= entry.start
            step.drafter_batched_tokens -= entry.scheduled_len - entry.draft_len
            if not step.drafts_on_top:
                step.drafter_batched_tokens -= entry.verified_len
            step.drafter_prefill_tokens -= entry.prefill_len


@inner
def _draft_time(table: Table, target_time: float) -> float:
    """Return how long it takes to draft for the sequences of the step, seconds."""
    current, rows = table.state[0].current, table.rows
    step = table.steps[current]
    longest = tokens = 0
    for place in range(step.num_requests if step.skips_drafts != IDLE else 0):
        asked_len = table.entries[current, place].asked_len
        longest = max(longest, asked_len)
        tokens += asked_len
    if longest > 1 and table.costs[BASIS] == PASS:
        for number in range(longest + 1):
            rows[number] = 0
        for place in range(step.num_requests):
            rows[table.entries[current, place].asked_len] += 1
        drafting = 0  # a token further than `number`
        for number in range(longest, -1, -1):
            drafting, rows[number] = drafting + rows[number], drafting
    made = DraftLoad(
        step.drafter_context_tokens,
        step.drafter_batched_tokens,
        step.drafter_requests,
        step.drafter_prefill_tokens,
        longest,
        tokens,
    )
    time: float = draft_time(table.costs, table.drafter, forward_time, made, rows, target_time)
    return time
