"""Admission: how much of a sequence the step that admits it computes, and its entry in that step.

Source: vLLM 0.32.0 ``v1/core/sched/scheduler.py schedule``, the part about waiting requests.
"""

from specsim.core.compiled import inner
from specsim.engine.table import LOADED, RUNNING, Table
from specsim.engine.waiting import leave_queue


@inner
def first_piece(table: Table, missing_len: int, cached_len: int, is_first: bool) -> int:
    """Return how many tokens the next admission may compute; 0 if it has to wait."""
    limits = table.limits[0]
    step = table.steps[table.state[0].current]
    budget = min(step.tokens_left, step.inputs_left - limits.draft_slots)
    padded_len = 1 + limits.max_draft_len
    if (
        limits.pads_admissions
        and missing_len == 1
        and not step.has_chunk
        and not is_first
        and cached_len + padded_len + 1 <= limits.max_model_len
    ):
        # Keeps the batch uniform for the CUDA graph; vLLM rather waits than admits unpadded.
        return padded_len if padded_len <= budget else 0
    piece_len = min(missing_len, step.piece_limit)
    if piece_len > budget and not limits.enable_chunked_prefill:
        return 0
    return min(piece_len, budget)


@inner
def admit(table: Table, row: int, cached_len: int, scheduled_len: int) -> None:
    """Let a sequence run, whose blocks are there."""
    state, sequence = table.state[0], table.sequences[row]
    is_loaded = sequence.status == LOADED
    if not is_loaded:
        leave_queue(table, row)
    table.running[state.num_running] = row
    state.num_running += 1
    sequence.status = RUNNING
    sequence.computed_len = cached_len
    append_entry(table, row, scheduled_len)
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
    entry.prefill_len = scheduled_len


@inner
def append_entry(table: Table, row: int, scheduled_len: int) -> None:
    """Append a sequence to the step."""
    state, sequence = table.state[0], table.sequences[row]
    step = table.steps[state.current]
    entry = table.entries[state.current, step.num_requests]
    entry.row = row
    entry.request = sequence.request
    entry.start = sequence.computed_len
    entry.scheduled_len = scheduled_len
    entry.prefill_len = 0
    entry.draft_len = 0
    entry.verified_len = 0
    entry.read_anew = 0
    entry.is_partial = 0
    entry.is_padded = 0
    entry.is_resumed = 0
    entry.is_admitted = 0
    entry.is_loaded = 0
    entry.accepted_len = 0
    entry.emitted_len = 0
    entry.asked_len = 0
    entry.offered_len = 0
    entry.found_len = 0
    step.num_requests += 1
    step.tokens_left -= scheduled_len
    step.inputs_left -= scheduled_len + table.limits[0].draft_slots
    sequence.in_flight_len += scheduled_len
