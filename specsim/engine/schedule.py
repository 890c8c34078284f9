"""Schedule: decide what the next step does, by the rules of vLLM's scheduler.

Sources: vLLM 0.32.0 ``v1/core/sched/scheduler.py`` and ``async_scheduler.py``, re-implemented from
a description of their behaviour and compared step by step with recordings of vLLM
(``specsim parity``); for `prefill_first` vLLM 0.6 ``core/scheduler.py _schedule_default``. Only
text-only decoder models are covered.
"""

from math import nan

from specsim.core.compiled import inner
from specsim.engine.adapters import may_serve, serve_adapter, serve_running
from specsim.engine.draft import find_use_of_drafts
from specsim.engine.kv import admit_blocks, admit_loaded_blocks, extend, load_blocks, release
from specsim.engine.loading import begin_load, is_in_flight, let_wait, release_late, take_news
from specsim.engine.offering import LOADING_NOW, offer_step, stored_prefix
from specsim.engine.prefix import cached_prefix, last_state_len, length_inside, prefill_end, publish
from specsim.engine.table import (
    BLOCKS_READ,
    FINISHED,
    LOADED,
    NEVER,
    NO_ROW,
    REQUEST,
    RUNNING,
    WAITING,
    Table,
)
from specsim.engine.waiting import (
    begin,
    close_gaps,
    enqueue,
    first_settled,
    is_ahead,
    leave_queue,
    pass_over,
    put_back,
)

IN_VAIN = 4_000
"""Preemptions in a row without an output token, after which the run counts as stuck.

Of two requests with equal priority and arrival time, vLLM preempts the one admitted first. With too
few blocks for both, they preempt each other in turn for ever.
"""


@inner
def have_blocks(table: Table, row: int, end_len: int) -> bool:
    """Preempt until a sequence has its blocks; False if it was preempted itself, or must wait."""
    while not extend(table, row, end_len):
        victim = _victim(table)
        limits = table.limits[0]
        if limits.defers_frees and limits.spares_in_flight and is_in_flight(table, victim):
            return False  # preempting it would free no blocks yet: a step in flight uses them
        _unschedule(table, victim)
        _preempt(table, victim)
        if victim == row:
            return False
    return True


@inner
def _victim(table: Table) -> int:
    """Return the running row to preempt next: admitted last, or last by priority."""
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
    """Return whether `row` is preempted before `other`, which was admitted later, by priority."""
    one, two = table.sequences[row], table.sequences[other]
    priority, least = table.facts[one.request].priority, table.facts[two.request].priority
    if priority != least:
        return bool(priority > least)
    return bool(one.arrived_at >= two.arrived_at)


@inner
def _unschedule(table: Table, row: int) -> None:
    """Remove a sequence from the step if it was scheduled earlier in this same call."""
    state = table.state[0]
    step = table.steps[state.current]
    place = 0
    while place < step.num_requests and table.entries[state.current, place].row != row:
        place += 1
    if place == step.num_requests:
        return
    if step.skips_drafts:
        find_use_of_drafts(table, place, place + 1)  # vLLM counts it although it is removed
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
    if sequence.in_flight_len and table.limits[0].defers_frees:
        release_late(table, row)
    else:
        release(table, row)
    sequence.computed_len = 0
    sequence.draft_len = 0
    sequence.placeholder_len = 0
    sequence.preemptions += 1
    table.state[0].preempted_in_vain += 1
    sequence.preempted_in = step.index
    sequence.preempted_as = step.preemptions
    step.preemptions += 1
    put_back(table, row)


ADMITTED, PASSED, BLOCKED = range(3)


@inner
def take_in(table: Table) -> bool:
    """Queue the requests that have arrived by now; False if `sequences` has too few free rows."""
    state = table.state[0]
    while state.first_arrival < state.num_arrivals:
        arrival = table.arrivals[state.first_arrival]
        if arrival.at > state.now:
            return True
        state.is_stuck = 0
        row = arrival.row
        if arrival.kind != REQUEST:
            is_over = table.sequences[row].status == FINISHED
            take_news(table, row, arrival.kind)
            if is_over:
                arrival.kind = BLOCKS_READ  # the request is over, so a load has no effect either
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
def schedule(table: Table) -> None:
    """Fill in the current step and count its tokens as computed; it is empty if nothing can run."""
    limits, state = table.limits[0], table.state[0]
    # The next slot of the ring holds the oldest step in it, whose drafts this step verifies.
    drafting_time = table.steps[(state.current + 1) % limits.depth].draft_time
    table.steps[state.current] = table.blank_step[0]
    step = table.steps[state.current]
    step.index = state.num_steps
    step.scheduled_at = step.started_at = step.ended_at = state.now
    step.verified_draft_time = drafting_time
    step.tokens_left = limits.max_num_scheduled_tokens
    step.inputs_left = limits.max_num_batched_tokens
    step.piece_limit = _piece_limit(table) if limits.long_prefill_token_threshold else NEVER
    step.defers_prefills = limits.prefill_interval > 1 and _defers_prefills(table)
    step.skips_drafts = limits.skips_drafts
    step.alpha_estimate = nan
    if limits.prefill_first:
        _schedule_waiting(table)
        if not step.num_requests:
            _schedule_running(table)
    else:
        _schedule_running(table)
        if not step.preemptions:
            if state.num_waiting or state.num_loading:
                _schedule_waiting(table)
            if limits.max_loras and limits.loads_first:
                let_wait(table)
            if not step.defers_prefills:
                state.is_backed_up = state.num_waiting > state.num_passed_over
    if limits.skips_drafts:
        find_use_of_drafts(table, 0, step.num_requests)
    _count_tokens(table)
    step.drafter_requests = step.num_requests
    step.num_running = state.num_running
    step.num_waiting = state.num_waiting + state.num_loading
    step.free_blocks = state.num_free
    if step.batched_tokens:
        state.num_executed += 1
        if step.has_chunk or step.admits_prefill:
            state.prefills_from = state.num_executed + limits.prefill_interval
    if limits.num_tiers:
        offer_step(table)
    state.num_steps += 1
    state.has_unflushed = 0
    state.is_stuck = not (step.num_requests or step.preemptions or step.defers_decodes)


@inner
def _count_tokens(table: Table) -> None:
    """Add up the step's tokens; if asynchronous, count its output tokens as placeholders."""
    limits, state = table.limits[0], table.state[0]
    step = table.steps[state.current]
    context_tokens = batched_tokens = prefill_tokens = 0
    for place in range(step.num_requests):
        entry = table.entries[state.current, place]
        context_tokens += entry.start
        batched_tokens += entry.scheduled_len
        prefill_tokens += entry.prefill_len
        if limits.depth > 1 and not entry.is_partial:
            # vLLM 0.32.0 ``v1/core/sched/async_scheduler.py``
            sequence = table.sequences[entry.row]
            sequence.placeholder_len += 1 + entry.draft_len
            sequence.decodes_from = step.index + limits.decode_stagger
    step.own_context_tokens = step.context_tokens = step.drafter_context_tokens = context_tokens
    step.batched_tokens = step.drafter_batched_tokens = batched_tokens
    step.prefill_tokens = step.drafter_prefill_tokens = prefill_tokens


@inner
def _defers_prefills(table: Table) -> bool:
    """Return whether this step reads no prompts (`prefill_schedule_interval`).

    False where no sequence decodes, or where the last step that read prompts left some waiting.
    vLLM 0.33.0 ``v1/core/sched/scheduler.py`` for one engine; for data-parallel ranks, which skip
    the same steps, ``v1/engine/core.py DPEngineCoreProc._should_throttle_prefills``.
    """
    limits, state = table.limits[0], table.state[0]
    if limits.counts_passes:
        may_read = state.num_passes % limits.prefill_interval == 0
    else:
        may_read = state.num_executed + 1 >= state.prefills_from
    if may_read or state.is_backed_up:
        return False
    for place in range(state.num_running):
        if not table.sequences[table.running[place]].in_chunk:
            return True
    return False


@inner
def _piece_limit(table: Table) -> int:
    """Return the most tokens that one sequence may get (vLLM: `long_prefill_token_threshold`)."""
    limits, state = table.limits[0], table.state[0]
    eligible = state.num_running + state.num_waiting + state.num_loading
    if eligible <= 1 and limits.lone_runs_whole:
        return NEVER
    if limits.long_prefill_token_threshold_adaptive:
        share = limits.max_num_batched_tokens // eligible
        return max(limits.long_prefill_token_threshold, share)
    return limits.long_prefill_token_threshold


@inner
def _schedule_running(table: Table) -> None:
    """Schedule the running sequences in order of admission, as far as budget and blocks allow."""
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
        certain_len = computed_len + 2 - sequence.placeholder_len
        if sequence.placeholder_len and certain_len >= sequence.requested_len:
            continue  # the tokens in flight reach max_tokens, whatever is accepted
        if step.index < sequence.decodes_from:
            step.defers_decodes = 1
            continue
        if step.defers_prefills and sequence.in_chunk:
            continue
        known_len = sequence.known_len + sequence.placeholder_len
        scheduled_len = known_len + sequence.draft_len - computed_len
        scheduled_len = min(scheduled_len, step.piece_limit, step.tokens_left)
        scheduled_len = min(scheduled_len, step.inputs_left - slots, last_len - computed_len)
        if limits.state_block_size:
            scheduled_len = _to_state(table, row, computed_len, scheduled_len)
        if limits.reread_len:
            missing_len = sequence.known_len - computed_len
            scheduled_len = _clear_of_end(limits.reread_len, missing_len, scheduled_len)
        if scheduled_len <= 0:
            continue
        end_len = computed_len + scheduled_len
        if end_len + lookahead_len > sequence.capacity_len and not have_blocks(table, row, end_len):
            if limits.passes_on and sequence.status != RUNNING:
                continue  # it has just been preempted itself
            break
        if end_len >= sequence.next_publish_len:
            publish(table, row, end_len)
        _append_entry(table, row, scheduled_len)
        entry = table.entries[state.current, step.num_requests - 1]
        if sequence.draft_len:
            entry.draft_len = entry.verified_len = max(0, end_len - known_len)
            sequence.draft_len = 0
        if sequence.in_chunk:
            step.has_chunk = 1
            entry.prefill_len = scheduled_len
        entry.is_partial = sequence.in_chunk = end_len < known_len
        sequence.computed_len = end_len
    if step.preemptions:
        close_gaps(table)


@inner
def _schedule_waiting(table: Table) -> None:
    """Admit waiting sequences in turn, until one cannot be admitted."""
    limits, state = table.limits[0], table.state[0]
    step = table.steps[state.current]
    num_running_scheduled = step.num_requests
    if limits.max_loras and limits.counts_running_loras:
        serve_running(table)
    is_open = True
    if state.num_loading and limits.loads_first:
        is_open = _admit_loaded(table, NO_ROW, num_running_scheduled)
    passed = NO_ROW
    while (
        is_open
        and state.num_waiting
        and step.tokens_left > 0
        and step.inputs_left > limits.draft_slots
        and state.num_running < limits.max_num_running
    ):
        row = first_settled(table, passed)
        if state.num_loading and not limits.loads_first:
            num_running = state.num_running
            if not _admit_loaded(table, row, num_running_scheduled):
                return
            if state.num_running > num_running:
                continue  # a loaded sequence took a place: check the limits again
        outcome = BLOCKED if row == NO_ROW else _admit_next(table, row, num_running_scheduled > 0)
        if outcome == BLOCKED:
            return
        if outcome == PASSED:
            pass_over(table, row)
            passed = row
    if state.num_loading and not limits.loads_first:
        _admit_loaded(table, NO_ROW, num_running_scheduled)


@inner
def _admit_next(table: Table, row: int, joins: bool) -> int:
    """Let a waiting sequence run, or begin to load its KV entries, and return `ADMITTED`.

    If it cannot: `BLOCKED` if all behind it must wait as well, `PASSED` if they need not.
    """
    limits = table.limits[0]
    if limits.max_loras and not may_serve(table, row):
        return PASSED
    if table.sequences[row].tables_at >= 0:  # its KV entries have been loaded
        return ADMITTED if _admit_one(table, row, joins) else BLOCKED
    cached_len = cached_prefix(table, row)
    external_len = table.sequences[row].external_len
    if limits.num_tiers:
        external_len = stored_prefix(table, row, cached_len)
        if external_len == LOADING_NOW:
            return PASSED
    if external_len > cached_len:
        has_blocks = load_blocks(table, row, cached_len, external_len)
        if has_blocks:
            begin_load(table, row, cached_len, external_len)
        return ADMITTED if has_blocks else BLOCKED
    return _admit_to_read(table, row, cached_len, joins)


@inner
def _admit_to_read(table: Table, row: int, cached_len: int, joins: bool) -> int:
    """Admit a waiting sequence that computes what follows its prefix-cache hit, if possible."""
    limits = table.limits[0]
    missing_len = table.sequences[row].known_len - cached_len
    if table.steps[table.state[0].current].defers_prefills and missing_len > 1:
        return BLOCKED
    scheduled_len = _first_piece(table, row, missing_len, cached_len, joins)
    piece_len = _clear_of_end(limits.reread_len, missing_len, scheduled_len)
    if limits.passes_over_short and scheduled_len > 0 and piece_len <= 0:
        return PASSED
    if piece_len <= 0 or not admit_blocks(table, row, cached_len, piece_len):
        return BLOCKED
    _admit(table, row, cached_len, piece_len, False)
    return ADMITTED


@inner
def _admit_loaded(table: Table, waiting: int, num_running_scheduled: int) -> bool:
    """Admit sequences whose load has ended, in turn; False once one of them cannot be admitted.

    Those that still load are skipped, and so are all that stand behind the row `waiting`.
    """
    limits, state = table.limits[0], table.state[0]
    step = table.steps[state.current]
    kept = place = 0
    is_open = True
    while place < state.num_loading:
        row = table.loading[place]
        is_open = (
            is_open
            and step.tokens_left > 0
            and step.inputs_left > limits.draft_slots
            and state.num_running < limits.max_num_running
        )
        is_next = limits.loads_first or waiting == NO_ROW or is_ahead(table, row, waiting)
        if is_open and is_next and table.sequences[row].status == LOADED:
            _settle_load(table, row)
            if not limits.max_loras or may_serve(table, row):
                is_open = _admit_one(table, row, num_running_scheduled > 0)
                if is_open:
                    place += 1
                    continue
            elif limits.loads_first and not table.sequences[row].computed_len:
                table.sequences[row].status = WAITING  # `let_wait` moves it to the queue later
        table.loading[kept] = row
        kept += 1
        place += 1
    state.num_loading = kept
    return is_open


@inner
def _settle_load(table: Table, row: int) -> None:
    """Publish loaded blocks; the last token of the prompt counts as not computed in any case."""
    sequence = table.sequences[row]
    if sequence.computed_len >= sequence.next_publish_len:
        publish(table, row, sequence.computed_len)
    sequence.computed_len = min(sequence.computed_len, sequence.known_len - 1)


@inner
def _admit_one(table: Table, row: int, joins: bool) -> bool:
    """Admit a sequence whose KV entries are loaded, if budget and blocks allow; return whether."""
    limits, sequence = table.limits[0], table.sequences[row]
    computed_len = sequence.computed_len
    missing_len = sequence.known_len - computed_len
    if table.steps[table.state[0].current].defers_prefills and missing_len > 1:
        return False
    scheduled_len = _first_piece(table, row, missing_len, computed_len, joins)
    scheduled_len = _clear_of_end(limits.reread_len, missing_len, scheduled_len)
    if scheduled_len <= 0 or not admit_loaded_blocks(table, row, computed_len + scheduled_len):
        return False
    _admit(table, row, computed_len, scheduled_len, True)
    return True


@inner
def _first_piece(table: Table, row: int, missing_len: int, cached_len: int, joins: bool) -> int:
    """Return how many tokens an admitted sequence computes in this step; 0 if it has to wait."""
    scheduled_len = _allowed_piece(table, missing_len, cached_len, joins)
    if not table.limits[0].state_block_size:
        return scheduled_len
    piece_len = _to_state(table, row, cached_len, scheduled_len)
    if scheduled_len > missing_len and piece_len != scheduled_len:
        return min(piece_len, 1)  # all dummy drafts or none
    return piece_len


@inner
def _allowed_piece(table: Table, missing_len: int, cached_len: int, joins: bool) -> int:
    """Return `_first_piece` for a model whose layers keep no recurrent state."""
    limits = table.limits[0]
    step = table.steps[table.state[0].current]
    budget = min(step.tokens_left, step.inputs_left - limits.draft_slots)
    padded_len = 1 + limits.max_draft_len
    if (
        limits.pads_admissions
        and missing_len == 1
        and not step.has_chunk
        and (joins or (cached_len and limits.pads_after_hits))
    ):
        # Dummy drafts keep the batch uniform for the CUDA graph; vLLM waits if they do not fit.
        has_room = cached_len + padded_len + limits.pads_with_sample <= limits.max_model_len
        if has_room or not limits.pads_with_sample:
            return padded_len if has_room and padded_len <= budget else 0
    piece_len = min(missing_len, step.piece_limit)
    if piece_len > budget and not limits.enable_chunked_prefill:
        return 0
    return min(piece_len, budget)


@inner
def _clear_of_end(reread_len: int, missing_len: int, piece_len: int) -> int:
    """Return the piece, cut so that it ends far enough from the end of the prompt; <= 0: none.

    With several MTP modules the last one reads the `reread_len` + 1 tokens behind a piece, all of
    which must belong to the prompt (vLLM: `_reserve_prefill_lookahead`).
    """
    left_len = missing_len - piece_len
    return missing_len - reread_len - 1 if 0 < left_len <= reread_len else piece_len


@inner
def _to_state(table: Table, row: int, start: int, piece_len: int) -> int:
    """Return a prefill piece cut to end where a recurrent state should be kept; 0: run nothing.

    vLLM: `_mamba_block_aligned_split`. A state is kept where a step ends. So pieces end at block
    ends, at the last block that a later hit can use (unless its state is saved inside the last
    piece), and where a cached prefix diverged from others (`junction_len`).
    """
    limits, sequence = table.limits[0], table.sequences[row]
    known_len, size = sequence.known_len, limits.state_block_size
    prefill_len = prefill_end(table, row)
    if start >= prefill_len:
        return piece_len
    end = start + piece_len
    last = last_state_len(table, known_len, size)
    if end >= prefill_len and length_inside(table, start, end, prefill_len):
        last = 0
    if end < prefill_len:
        most = limits.max_num_scheduled_tokens
        if limits.long_prefill_token_threshold:
            most = min(most, limits.long_prefill_token_threshold)
        if end // size * size > start or size <= most:
            end = end // size * size
    part = sequence.junction_len
    part = start + (part - start) // size * size if start < part < end else 0
    stop = end
    if start % size:
        stop = min(stop, (start // size + 1) * size)
    if start < last:
        stop = min(stop, last)
    if start < part:
        stop = min(stop, part)
    return max(stop - start, 0)


@inner
def _admit(table: Table, row: int, cached_len: int, scheduled_len: int, is_loaded: bool) -> None:
    """Move a sequence that has its blocks to the running list, and add it to the step."""
    state, sequence = table.state[0], table.sequences[row]
    if sequence.status == LOADED:
        sequence.passed_as = 0
    else:
        leave_queue(table, row)
    table.running[state.num_running] = row
    state.num_running += 1
    sequence.status = RUNNING
    sequence.computed_len = cached_len
    if sequence.known_len - cached_len > 1:
        table.steps[state.current].admits_prefill = 1
    _append_entry(table, row, scheduled_len)
    entry = table.entries[state.current, table.steps[state.current].num_requests - 1]
    entry.is_loaded = is_loaded
    if sequence.admissions:
        entry.is_resumed = 1
    else:
        entry.is_admitted = 1
        if not is_loaded:
            sequence.cached_len = cached_len
        sequence.first_scheduled_at = state.now
    sequence.admissions += 1
    sequence.computed_len = cached_len + scheduled_len
    entry.draft_len = entry.verified_len = max(0, sequence.computed_len - sequence.known_len)
    entry.is_padded = entry.draft_len > 0
    sequence.in_chunk = sequence.computed_len < sequence.known_len
    entry.is_partial = sequence.in_chunk
    # The last token of a prompt whose KV entries came from elsewhere runs as a decode, with dummy
    # drafts or none: vLLM 0.33.0 ``v1/worker/gpu/model_runner.py gather_batch_req_state``.
    if not is_loaded or scheduled_len > 1 + entry.draft_len:
        entry.prefill_len = scheduled_len


@inner
def _append_entry(table: Table, row: int, scheduled_len: int) -> None:
    """Append a sequence to the step, and take its tokens from the step's budgets."""
    state, sequence = table.state[0], table.sequences[row]
    step = table.steps[state.current]
    table.entries[state.current, step.num_requests] = table.blank_entry[0]
    entry = table.entries[state.current, step.num_requests]
    entry.row = row
    entry.request = sequence.request
    entry.start = sequence.computed_len
    entry.scheduled_len = scheduled_len
    step.num_requests += 1
    if table.limits[0].max_loras:
        serve_adapter(table, row)
    step.tokens_left -= scheduled_len
    step.inputs_left -= scheduled_len + table.limits[0].draft_slots
    sequence.in_flight_len += scheduled_len
