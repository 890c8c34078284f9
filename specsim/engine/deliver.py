"""Deliver: emit the tokens of a step that comes back, update sequences, and record the results."""

from math import floor

from specsim.core.compiled import inner
from specsim.engine.kv import leave_windows, release
from specsim.engine.loading import fence, free_deferred, hold_ended, leave_loading
from specsim.engine.offering import leave_to_tiers
from specsim.engine.prefix import publish
from specsim.engine.table import FINISHED, WAITING, Table
from specsim.engine.waiting import close_gaps, free_row, leave_queue


@inner
def has_room(table: Table) -> bool:
    """Return whether the result buffers have room for all that a step can add."""
    state, most = table.state[0], table.limits[0].max_num_running
    return bool(
        state.steps_len < len(table.steps_out)
        and state.requests_len + most <= len(table.requests_out)
        and state.gaps_len + most <= len(table.gaps_out)
        and state.seconds_len < len(table.seconds_out)
    )


@inner
def deliver(table: Table) -> None:
    """Hand out the tokens of the current step, which comes back now.

    Output that comes back for a sequence that ended or was preempted meanwhile (asynchronous
    scheduling) is dropped or delivered, as in vLLM: delivered after a preemption, but without
    touching the counters that the preemption reset.

    Source: vLLM 0.32.0 ``v1/core/sched/scheduler.py update_from_output``.
    """
    state = table.state[0]
    step = table.steps[state.current]
    step.ended_at = state.now
    first_gap = state.gaps_len
    ended = 0
    if step.num_requests:
        state.is_stuck = 0
    if table.limits[0].defers_frees:
        free_deferred(table)
    for place in range(step.num_requests):
        entry = table.entries[state.current, place]
        sequence = table.sequences[entry.row]
        step.asked_tokens += entry.asked_len
        if sequence.status == FINISHED or entry.is_partial:
            continue
        emitted_len = min(entry.accepted_len + 1, sequence.max_len - sequence.known_len)
        sequence.known_len += emitted_len
        entry.emitted_len = emitted_len
        state.preempted_in_vain = 0
        if sequence.preempted_in < step.index:
            _settle(table, entry.row, entry.draft_len - entry.accepted_len, emitted_len)
        _note_delivery(table, place, first_gap)
        if sequence.known_len == sequence.max_len:
            _finish(table, entry.row, entry.scheduled_len)
            ended += 1
    if ended:
        close_gaps(table)
        state.unannounced += ended
    state.noted_late += step.preemptions
    if step.num_requests:
        _note_step(table)


@inner
def _settle(table: Table, row: int, rejected_len: int, emitted_len: int) -> None:
    """Subtract rejected drafts from the computed tokens, and emitted ones from those in flight."""
    sequence = table.sequences[row]
    sequence.computed_len -= rejected_len
    if sequence.placeholder_len:
        sequence.placeholder_len -= rejected_len + emitted_len
    elif not table.limits[0].publishes_outputs:
        return
    # What was emitted last has not been computed, even if more was accepted.
    settled_len = min(sequence.computed_len - sequence.placeholder_len, sequence.known_len - 1)
    if settled_len >= sequence.next_publish_len:
        publish(table, row, settled_len)


@inner
def _finish(table: Table, row: int, landing_len: int) -> None:
    """Free the blocks in place; a running sequence leaves its list after the update."""
    limits, state, sequence = table.limits[0], table.state[0], table.sequences[row]
    if limits.num_tiers:
        leave_to_tiers(table, row, max(sequence.prompt_len, sequence.known_len - 1))
    if limits.has_connector and limits.has_windows and sequence.tables_at >= 0:
        # It hands over what later tokens would read (vLLM: `_connector_finished`).
        settled_len = sequence.computed_len - sequence.in_flight_len + landing_len
        if limits.trims_ended:
            settled_len = sequence.known_len - 1
        leave_windows(table, row, settled_len)
    if sequence.status == WAITING:
        leave_queue(table, row)
    elif limits.holds_ended:
        hold_ended(table, row)
    elif limits.defers_frees and sequence.in_flight_len > landing_len:
        fence(table, row)
    else:
        release(table, row)
    sequence.status = FINISHED
    state.has_unflushed = 1
    result = table.requests_out[state.requests_len]
    result.request = sequence.request
    result.arrived_at = sequence.arrived_at
    result.scheduled_at = sequence.first_scheduled_at
    result.first_token_at = sequence.first_token_at
    result.ended_at = state.now
    result.prompt_len = sequence.prompt_len
    result.output_len = sequence.known_len - sequence.prompt_len
    result.cached_len = sequence.cached_len
    result.preemptions = sequence.preemptions
    result.requeues = sequence.requeues
    result.deliveries = sequence.deliveries
    result.drafts = sequence.drafts
    result.draft_tokens = sequence.draft_tokens
    result.accepted_tokens = sequence.accepted_tokens
    state.requests_len += 1


@inner
def withdraw(table: Table, row: int) -> None:
    """Remove a sequence with status `WITHDRAWN` and free its blocks.

    Blocks that are being loaded are freed when the load has ended; with a KV connector, those that
    a step in flight writes to when it has landed. The tokens of such a step are dropped.

    Source: vLLM 0.32.0 ``v1/core/sched/scheduler.py finish_requests``.
    """
    limits, state, sequence = table.limits[0], table.state[0], table.sequences[row]
    sequence.status = FINISHED
    state.has_unflushed, state.is_stuck = 1, 0
    if limits.num_tiers:
        leave_to_tiers(table, row, sequence.computed_len)
    if limits.has_connector and limits.has_windows and sequence.tables_at >= 0:
        leave_windows(table, row, sequence.computed_len - sequence.in_flight_len)
    if leave_loading(table, row):
        sequence.passed_as = 0
    elif sequence.computed_len:  # it ran
        close_gaps(table)
    else:
        leave_queue(table, row)
    if sequence.tables_at >= 0 and not sequence.is_sending:
        if limits.defers_frees and sequence.in_flight_len:
            fence(table, row)
        else:
            release(table, row)
    free_row(table, row)


@inner
def land(table: Table) -> None:
    """End the current step, and free the rows of ended sequences that are in no later step."""
    limits, state = table.limits[0], table.state[0]
    for place in range(table.steps[state.current].num_requests):
        entry = table.entries[state.current, place]
        sequence = table.sequences[entry.row]
        sequence.in_flight_len -= entry.scheduled_len
        if sequence.status == FINISHED:
            free_row(table, entry.row)
    state.in_flight -= 1
    state.oldest = (state.oldest + 1) % limits.depth
    state.place = 0


@inner
def _note_delivery(table: Table, place: int, first_gap: int) -> None:
    """Count a delivery, and the time since the last one of the same request."""
    limits, state = table.limits[0], table.state[0]
    step, entry = table.steps[state.current], table.entries[state.current, place]
    sequence = table.sequences[entry.row]
    if sequence.deliveries:
        _note_gap(table, first_gap, state.now - sequence.delivered_at, entry.emitted_len)
    else:
        sequence.first_token_at = state.now
    if limits.keeps_deliveries:
        at = table.facts[entry.request].output_at + sequence.deliveries
        table.delivered_at[at] = state.now
        table.delivered_lens[at] = entry.emitted_len
        table.drafted_lens[at] = entry.verified_len
        table.accepted_lens[at] = entry.accepted_len
    sequence.delivered_at = state.now
    sequence.deliveries += 1
    step.deliveries += 1
    step.output_tokens += entry.emitted_len
    if entry.verified_len:
        sequence.drafts += 1
        sequence.draft_tokens += entry.verified_len
        sequence.accepted_tokens += entry.accepted_len
        step.drafts += 1
        step.draft_tokens += entry.verified_len
        step.accepted_tokens += entry.accepted_len
        table.outcomes[entry.verified_len, entry.accepted_len] += 1


@inner
def _note_gap(table: Table, first: int, value: float, tokens: int) -> None:
    """Record a gap between deliveries, merged with equal gaps of the same step."""
    state = table.state[0]
    for place in range(state.gaps_len - 1, first - 1, -1):
        gap = table.gaps_out[place]
        if gap.value == value and gap.tokens == tokens:
            gap.count += 1
            return
    gap = table.gaps_out[state.gaps_len]
    gap.value = value
    gap.tokens = tokens
    gap.count = 1
    state.gaps_len += 1


@inner
def _note_step(table: Table) -> None:
    """Write the step down, but for sequences that had ended before it came back, as vLLM does."""
    limits, state, totals = table.limits[0], table.state[0], table.totals[0]
    step = table.steps[state.current]
    totals.steps += 1
    totals.deliveries += step.deliveries
    totals.output_tokens += step.output_tokens
    totals.num_requests += step.num_requests
    totals.target_time += step.target_time
    totals.draft_time += step.draft_time
    totals.overhead_time += step.overhead_time
    totals.drafter_time += step.drafter_time
    totals.asked_tokens += step.asked_tokens
    totals.context_tokens = max(totals.context_tokens, step.context_tokens)
    totals.batched_tokens = max(totals.batched_tokens, step.batched_tokens)
    totals.beyond_context += step.context_tokens > limits.valid_context_tokens
    totals.beyond_batched += step.batched_tokens > limits.valid_batched_tokens
    second = floor(step.ended_at - state.origin)
    if state.seconds_len == 0 or table.seconds_out[state.seconds_len - 1].second != second:
        table.seconds_out[state.seconds_len].second = second
        table.seconds_out[state.seconds_len].tokens = 0
        state.seconds_len += 1
    table.seconds_out[state.seconds_len - 1].tokens += step.output_tokens
    if limits.keeps_steps:
        step.asked_draft_len = step.asked_tokens / step.num_requests
        step.preemptions, state.noted_late = state.noted_late, 0  # those of empty steps before, too
        table.steps_out[state.steps_len] = step
        state.steps_len += 1
