"""Cost: how long a step takes.

T = T_target + T_draft (Liu et al. 2024, "SmartSpec", eq. 4), plus the engine's overhead. The
formulas of `specsim.profile` for one drafter and a latency model that has a compiled form; all
others are computed there.
"""

from specsim.core.compiled import inner
from specsim.engine.table import Table
from specsim.latency._form import (
    BASIS,
    HAS_DRAFTER,
    HAS_LATENCY,
    OVERHEAD_REQUEST,
    OVERHEAD_STEP,
    REQUEST,
    STEP,
    TARGET_SHARE,
    TOKEN,
    composed_time,
    forward_time,
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
        costs = table.costs
        usual = costs[OVERHEAD_STEP] + costs[OVERHEAD_REQUEST] * step.num_requests
        step.overhead_time = state.slowness * usual


@inner
def charge_drafts(table: Table) -> None:
    """Charge for making the drafts that were asked for; an empty step makes none."""
    state = table.state[0]
    step = table.steps[state.current]
    if table.limits[0].leaves_out:
        read_prefixes(table)
        _leave_out(table)
    if table.costs[HAS_DRAFTER] and step.drafter_batched_tokens:
        step.draft_time = state.slowness * _draft_time(table, step.target_time / state.slowness)
    state.last_draft_time = step.draft_time
    if table.limits[0].prefill_first:
        step.verified_draft_time = step.draft_time


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
        entry.unread_len = 0
        sequence = table.sequences[entry.row]
        may_have_prefix = table.limits[0].enable_prefix_caching or entry.is_loaded
        if not may_have_prefix or sequence.slot < 0:
            continue
        first = entry.start // block_size
        if not sequence.is_undrafted and (entry.is_admitted or entry.is_resumed):
            for cached in range(-(-entry.start // block_size)):
                block = table.blocks[table.tables[sequence.slot, cached]]
                length = min(block_size, entry.start - cached * block_size)
                entry.unread_len += block.is_undrafted * length
                block.is_undrafted = 0
        for own in range(first, -(-(entry.start + entry.scheduled_len) // block_size)):
            table.blocks[table.tables[sequence.slot, own]].is_undrafted = sequence.is_undrafted


@inner
def _leave_out(table: Table) -> None:
    """Take the sequences that are never drafted for out of what the drafter reads.

    See `specsim.engine.sources.drafter_loads`.
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
    """Return how long it takes to draft for the sequences of the step.

    See `specsim.profile.DraftCost.draft_time`.
    """
    costs, current = table.costs, table.state[0].current
    step = table.steps[current]
    longest = tokens = 0
    for place in range(step.num_requests):
        asked_len = table.entries[current, place].asked_len
        longest = max(longest, asked_len)
        tokens += asked_len
    total = 0.0
    if longest:
        total = costs[TARGET_SHARE] * target_time + costs[TOKEN] * tokens
        total = total + costs[STEP] + costs[REQUEST] * step.drafter_requests
    if not costs[HAS_LATENCY]:
        return total
    context_tokens, batched_tokens = step.drafter_context_tokens, step.drafter_batched_tokens
    size, prefill_tokens = step.drafter_requests, step.drafter_prefill_tokens
    # One call for all passes: it is copied to wherever it stands.
    num_passes = max(1, longest) if costs[BASIS] == 0.0 else min(1, longest)
    if costs[BASIS] == 2.0:
        context_tokens, batched_tokens, prefill_tokens = 0, size, 0
    for number in range(1, num_passes + 1):
        if number > 1:
            context_tokens += batched_tokens
            size = prefill_tokens = 0
            for place in range(step.num_requests):
                if table.entries[current, place].asked_len >= number:
                    size += 1
            batched_tokens = size
        total += forward_time(table.drafter, context_tokens, batched_tokens, size, prefill_tokens)
    return total
