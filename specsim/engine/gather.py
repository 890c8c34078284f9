"""Gather: what a policy is shown of a step, whether it is Python or loops.

A column of `sequences` is a number in every few hundred bytes, and numpy takes longer to collect it
than most policies take to decide.
"""

from specsim.core.compiled import inner
from specsim.engine.table import FINISHED, Table


@inner
def look(table: Table, is_verified: bool) -> None:
    """Gather the sequences of the current step; if it is verified, with what it accepted."""
    current, view, leaves_out = table.state[0].current, table.seen, table.limits[0].leaves_out
    size = table.steps[current].num_requests
    decodes, known_tokens, undrafted, admitted, draft_tokens = 0, 0, 0, 0, 0
    for place in range(size):
        entry = table.entries[current, place]
        sequence = table.sequences[entry.row]
        known_len = sequence.known_len
        if not sequence.in_chunk:
            if is_verified:
                known_len += entry.accepted_len + 1
            decodes += 1
            known_tokens += known_len
        view.requests[place] = entry.request
        view.prompt_lens[place] = sequence.prompt_len
        view.known_lens[place] = known_len
        view.in_prefill[place] = sequence.in_chunk != 0
        view.is_undrafted[place] = leaves_out and sequence.is_undrafted
        view.is_admitted[place] = entry.is_admitted != 0
        view.draft_lens[place] = entry.draft_len
        undrafted += view.is_undrafted[place]
        admitted += entry.is_admitted
        draft_tokens += entry.draft_len
    shown = view.step[0]
    shown.num_rows, shown.num_decodes, shown.num_undrafted = size, decodes, undrafted
    shown.num_admitted, shown.draft_tokens = admitted, draft_tokens
    shown.next_context_tokens = known_tokens - decodes
    _show_step(table)


@inner
def look_back(table: Table) -> None:
    """Gather what became of the drafts of the current step."""
    current, view = table.state[0].current, table.seen
    num, accepted_tokens = 0, 0
    for place in range(table.steps[current].num_requests):
        entry = table.entries[current, place]
        if entry.is_partial or table.sequences[entry.row].status == FINISHED:
            continue
        view.requests[num] = entry.request
        view.draft_lens[num] = entry.verified_len
        view.accepted_lens[num] = entry.accepted_len
        accepted_tokens += entry.accepted_len
        num += 1
    shown, step = view.step[0], table.steps[current]
    shown.num_rows, shown.accepted_tokens = num, accepted_tokens
    shown.output_tokens = accepted_tokens + num
    shown.target_time, shown.draft_time = step.target_time, step.verified_draft_time
    shown.overhead_time = step.overhead_time
    _show_step(table)


@inner
def _show_step(table: Table) -> None:
    shown, step = table.seen.step[0], table.steps[table.state[0].current]
    shown.now, shown.num_running = step.scheduled_at, step.num_running
    shown.context_tokens, shown.batched_tokens = step.context_tokens, step.batched_tokens
    shown.num_requests, shown.prefill_tokens = step.num_requests, step.prefill_tokens
