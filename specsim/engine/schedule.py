"""Schedule: decide what the next step does, rule by rule as vLLM's scheduler.

Sources: vLLM 0.32.0 ``v1/core/sched/scheduler.py`` and ``async_scheduler.py``, re-implemented from
a description of their behaviour and compared step by step with recordings of the real one
(``specsim parity``); for `prefill_first` vLLM 0.6 ``core/scheduler.py _schedule_default``. One
text-only decoder model, no pipeline parallelism.
"""

from math import nan

from specsim.core.compiled import inner
from specsim.engine.admission import admit, append_entry, first_piece
from specsim.engine.kv import admit_blocks, extend, load_blocks, release
from specsim.engine.loading import admit_loaded, begin_load, is_in_flight, take_news
from specsim.engine.prefix import cached_prefix, publish
from specsim.engine.table import FINISHED, FREE, NEVER, NO_ROW, REQUEST, RUNNING, Table
from specsim.engine.tiers import stored_prefix
from specsim.engine.waiting import close_gaps, enqueue, first_waiting, leave_queue, put_back


@inner
def take_in(table: Table) -> bool:
    """Queue the requests that have arrived by now; False if there are not enough rows."""
    state = table.state[0]
    while state.first_arrival < state.num_arrivals:
        arrival = table.arrivals[state.first_arrival]
        if arrival.at > state.now:
            return True
        state.is_stuck = 0
        row = arrival.row
        if arrival.kind != REQUEST:
            take_news(table, row, arrival.kind)
            state.first_arrival += 1
            continue
        if row == NO_ROW:
            row = state.free_row
            if row == NO_ROW:
                return False
            state.free_row = table.sequences[row].next_row
            begin(table, row, arrival.request, arrival.at)
            table.sequences[row].external_len = arrival.external_len
            arrival.row = row
        state.first_arrival += 1
        enqueue(table, row)
    return True


@inner
def begin(table: Table, row: int, request: int, arrived_at: float) -> None:
    """Fill in the row of a request that is new."""
    sequence, fact = table.sequences[row], table.facts[request]
    sequence.request = request
    sequence.arrived_at = arrived_at
    sequence.first_scheduled_at = 0.0
    sequence.first_token_at = 0.0
    sequence.delivered_at = 0.0
    sequence.prompt_len = fact.prompt_len
    sequence.requested_len = fact.prompt_len + fact.max_tokens
    sequence.max_len = min(fact.prompt_len + fact.output_len, table.limits[0].max_model_len)
    sequence.known_len = fact.prompt_len
    sequence.computed_len = 0
    sequence.draft_len = 0
    sequence.placeholder_len = 0
    sequence.in_chunk = 0
    sequence.slot = -1
    sequence.capacity_len = 0
    sequence.next_publish_len = NEVER
    sequence.junction_len = 0
    sequence.cached_len = 0
    sequence.admissions = 0
    sequence.preemptions = 0
    sequence.preempted_in = -1
    sequence.preempted_as = 0
    sequence.requeues = 0
    sequence.in_flight_len = 0
    sequence.drafter = 0
    sequence.is_undrafted = 0
    sequence.fate_at = fact.output_at
    sequence.deliveries = 0
    sequence.drafts = 0
    sequence.draft_tokens = 0
    sequence.accepted_tokens = 0
    sequence.external_len = 0
    sequence.disk_len = 0
    sequence.is_sending = 0


@inner
def withdraw(table: Table, row: int) -> None:
    """Take out a sequence that is marked as `WITHDRAWN`: its blocks are free at once.

    What a step in flight brings for it is dropped, and its row is free when that has landed.

    Source: vLLM 0.32.0 ``v1/core/sched/scheduler.py finish_requests``.
    """
    state, sequence = table.state[0], table.sequences[row]
    sequence.status = FINISHED
    if sequence.slot >= 0:  # it ran
        release(table, row)
        close_gaps(table)
    else:
        leave_queue(table, row)
    state.has_unflushed = 1
    if sequence.in_flight_len == 0:
        sequence.status = FREE
        sequence.next_row = state.free_row
        state.free_row = row


@inner
def schedule(table: Table) -> None:
    """Fill in the current step and count its tokens as computed; it is empty if nothing can run."""
    limits, state = table.limits[0], table.state[0]
    step = table.steps[state.current]
    step.index = state.num_steps
    step.num_requests = 0
    step.scheduled_at = state.now
    step.started_at = state.now
    step.ended_at = state.now
    step.target_time = 0.0
    step.draft_time = 0.0
    step.overhead_time = 0.0
    step.verified_draft_time = state.last_draft_time
    step.tokens_left = limits.max_num_scheduled_tokens
    step.inputs_left = limits.max_num_batched_tokens
    step.piece_limit = NEVER
    if limits.long_prefill_token_threshold:
        step.piece_limit = _piece_limit(table)
    step.has_chunk = 0
    step.preemptions = 0
    step.drafts_on_top = 0
    step.alpha_estimate = nan
    if limits.prefill_first:
        _schedule_waiting(table)
        if not step.num_requests:
            _schedule_running(table)
    else:
        _schedule_running(table)
        if not step.preemptions:
            _schedule_waiting(table)
    context_tokens = batched_tokens = prefill_tokens = 0
    for place in range(step.num_requests):
        entry = table.entries[state.current, place]
        context_tokens += entry.start
        batched_tokens += entry.scheduled_len
        prefill_tokens += entry.prefill_len
    step.own_context_tokens = step.context_tokens = context_tokens
    step.drafter_context_tokens = context_tokens
    step.batched_tokens = step.drafter_batched_tokens = batched_tokens
    step.prefill_tokens = step.drafter_prefill_tokens = prefill_tokens
    step.drafter_requests = step.num_requests
    step.num_running = state.num_running
    step.num_waiting = state.num_waiting + state.num_loading
    step.free_blocks = state.num_free
    state.num_steps += 1
    state.has_unflushed = 0
    state.is_stuck = not (step.num_requests or step.preemptions)


@inner
def _piece_limit(table: Table) -> int:
    """Return the longest piece that any sequence may get (vLLM: long prefill threshold)."""
    limits, state = table.limits[0], table.state[0]
    eligible = state.num_running + state.num_waiting + state.num_loading
    if eligible <= 1:
        return NEVER
    if limits.long_prefill_token_threshold_adaptive:
        share = limits.max_num_batched_tokens // eligible
        return max(limits.long_prefill_token_threshold, share)
    return limits.long_prefill_token_threshold


@inner
def _schedule_running(table: Table) -> None:
    """Give every running sequence, in order of admission, what it asks for and the step allows."""
    limits, state = table.limits[0], table.state[0]
    step = table.steps[state.current]
    slots, lookahead_len = limits.draft_slots, limits.lookahead_len
    last_len = limits.max_model_len - 1  # one position stays free for the sampled token
    for place in range(min(state.num_running, state.most_run)):
        if step.tokens_left <= 0 or step.inputs_left <= slots:
            break
        row = table.running[place]
        sequence = table.sequences[row]
        if step.preemptions and sequence.status != RUNNING:
            continue
        computed_len = sequence.computed_len
        if (
            sequence.placeholder_len
            and computed_len + 2 - sequence.placeholder_len >= sequence.requested_len
        ):
            continue  # its end is already certain
        known_len = sequence.known_len + sequence.placeholder_len
        scheduled_len = known_len + sequence.draft_len - computed_len
        scheduled_len = min(scheduled_len, step.piece_limit, step.tokens_left)
        scheduled_len = min(scheduled_len, step.inputs_left - slots, last_len - computed_len)
        if scheduled_len <= 0:
            continue
        end_len = computed_len + scheduled_len
        if end_len + lookahead_len > sequence.capacity_len and not _have_blocks(
            table, row, end_len
        ):
            break
        if end_len >= sequence.next_publish_len:
            publish(table, row, end_len)
        append_entry(table, row, scheduled_len)
        entry = table.entries[state.current, step.num_requests - 1]
        if sequence.draft_len:
            entry.draft_len = entry.verified_len = max(0, end_len - known_len)
            sequence.draft_len = 0
        if sequence.in_chunk:
            step.has_chunk = 1
            entry.prefill_len = scheduled_len
        sequence.in_chunk = end_len < known_len
        entry.is_partial = sequence.in_chunk
        sequence.computed_len = end_len
    if step.preemptions:
        close_gaps(table)


@inner
def _have_blocks(table: Table, row: int, end_len: int) -> bool:
    """Preempt until the blocks of a sequence are there; False if it had to go itself."""
    while not extend(table, row, end_len):
        victim = _victim(table)
        if table.limits[0].defers_frees and is_in_flight(table, victim):
            return False  # it would not give any blocks now
        _withdraw(table, victim)
        _preempt(table, victim)
        if victim == row:
            return False
    return True


@inner
def _victim(table: Table) -> int:
    """Return the running row that is preempted next: the last, or the last by priority."""
    by_priority = table.limits[0].by_priority
    found = NO_ROW
    for place in range(table.state[0].num_running - 1, -1, -1):
        row = table.running[place]
        if table.sequences[row].status != RUNNING:
            continue
        if found == NO_ROW or _gives_way(table, row, found):
            found = row
        if not by_priority:
            break
    return int(found)


@inner
def _gives_way(table: Table, row: int, other: int) -> bool:
    """Return whether a row is preempted before another that was admitted later, by priority."""
    one, two = table.sequences[row], table.sequences[other]
    priority, least = table.facts[one.request].priority, table.facts[two.request].priority
    if priority != least:
        return bool(priority > least)
    return bool(one.arrived_at >= two.arrived_at)


@inner
def _withdraw(table: Table, row: int) -> None:
    """Take a sequence back out that was scheduled earlier in this same call."""
    state = table.state[0]
    step = table.steps[state.current]
    place = 0
    while place < step.num_requests and table.entries[state.current, place].row != row:
        place += 1
    if place == step.num_requests:
        return
    scheduled_len = table.entries[state.current, place].scheduled_len
    for later in range(place + 1, step.num_requests):
        table.entries[state.current, later - 1] = table.entries[state.current, later]
    step.num_requests -= 1
    step.tokens_left += scheduled_len
    step.inputs_left += scheduled_len + table.limits[0].draft_slots
    table.sequences[row].in_flight_len -= scheduled_len


@inner
def _preempt(table: Table, row: int) -> None:
    step = table.steps[table.state[0].current]
    sequence = table.sequences[row]
    release(table, row)
    sequence.computed_len = 0
    sequence.draft_len = 0
    sequence.placeholder_len = 0
    sequence.preemptions += 1
    sequence.preempted_in = step.index
    sequence.preempted_as = step.preemptions
    step.preemptions += 1
    put_back(table, row)


@inner
def _schedule_waiting(table: Table) -> None:
    """Admit waiting sequences; the first that cannot be admitted ends it."""
    limits, state = table.limits[0], table.state[0]
    step = table.steps[state.current]
    num_running_scheduled = step.num_requests
    if state.num_loading and not admit_loaded(table, num_running_scheduled):
        return
    while (
        state.num_waiting
        and step.tokens_left > 0
        and step.inputs_left > limits.draft_slots
        and state.num_running < limits.max_num_running
    ):
        row = first_waiting(table)
        cached_len = cached_prefix(table, row)
        external_len = table.sequences[row].external_len
        if limits.num_tiers:
            external_len = max(external_len, stored_prefix(table, row, cached_len))
        if external_len > cached_len:
            if not load_blocks(table, row, cached_len, external_len):
                return
            begin_load(table, row, cached_len, external_len)
            continue
        missing_len = table.sequences[row].known_len - cached_len
        is_first = not (num_running_scheduled or cached_len)
        scheduled_len = first_piece(table, missing_len, cached_len, is_first)
        if scheduled_len == 0 or not admit_blocks(table, row, cached_len, scheduled_len):
            return
        admit(table, row, cached_len, scheduled_len)
