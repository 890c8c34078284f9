"""Asking: what a policy is shown of a step, when it is called, and what its answers do.

It is called through hooks: behind them are the loops of the policy or, for a policy in Python,
`specsim.engine.speculation`. Each function returns False if the policy raised an error or gave an
answer that is not allowed. The view is gathered here for both kinds of policies, since collecting a
column of `sequences`, with a stride of some hundred bytes, is slow in numpy.
"""

from specsim.core.compiled import has, inner, run
from specsim.core.draft_luck import level_of
from specsim.decisions.loops import common_len
from specsim.engine.table import FINISHED, Table

MOST_EMPTY_STEPS = 10_000  # in a row, after which the run counts as stuck


@inner
def trim(table: Table) -> bool:
    """Ask which sequences of a scheduled step the drafter drops, and how much is verified."""
    asking, limits, current = table.asking, table.limits[0], table.state[0].current
    step, shown = table.steps[current], table.seen.step[0]
    drops = limits.leaves_out and has(asking.drop) and (step.prefill_tokens or shown.may_drop)
    if not step.num_requests or not (drops or has(asking.verify)):
        return True
    look(table, False)
    if drops:
        for place in range(step.num_requests):
            table.seen.let_go[place] = False
        if run(asking.drop):
            return False
        for place in range(step.num_requests):
            sequence = table.sequences[table.entries[current, place].row]
            if table.seen.let_go[place] and not sequence.is_undrafted:
                sequence.is_undrafted, table.seen.is_undrafted[place] = 1, True
                shown.num_undrafted += 1
                table.totals[0].let_go += 1
                table.state[0].has_left_out = 1
    return not has(asking.verify) or not shown.draft_tokens or _verify(table)


@inner
def _verify(table: Table) -> bool:
    """Ask for the verification lengths, and cut the drafts and the load of the step to them."""
    view, current = table.seen, table.state[0].current
    step, shown = table.steps[current], view.step[0]
    shown.context_tokens = step.own_context_tokens
    if table.limits[0].sees_confidences:
        state_confidences(table)
    if run(table.asking.verify):
        return False
    dropped, read_anew = shown.draft_tokens, 0
    for place in range(step.num_requests):
        entry, verified_len = table.entries[current, place], view.lens[place]
        if verified_len < 0 or verified_len > entry.draft_len:
            return False
        entry.verified_len = verified_len
        dropped -= verified_len
        read_anew += entry.read_anew * verified_len
    step.batched_tokens -= dropped
    if dropped and step.context_tokens != step.own_context_tokens:
        step.context_tokens = step.own_context_tokens + read_anew
    if dropped and not step.drafts_on_top:
        step.drafter_batched_tokens = step.batched_tokens
    return True


@inner
def decide(table: Table) -> bool:
    """Ask the policy for draft lengths, and set them in the entries of the step."""
    limits, state, view = table.limits[0], table.state[0], table.seen
    look(table, bool(limits.asks_last))
    shown, longest = view.step[0], limits.max_draft_len
    size = shown.num_rows
    state.num_empty = 0 if size else state.num_empty + 1
    if not size:
        return bool(state.num_empty <= MOST_EMPTY_STEPS)
    shown.free_slots = state.num_free * limits.common_block_size // limits.blocks_per_common
    shown.free_slots += limits.lookahead_len * size
    shown.has_found = limits.shows_drafts
    if limits.shows_drafts:
        for place in range(size):
            view.draft_lens[place] = 0 if view.in_prefill[place] else longest
        state_confidences(table)
    if run(table.asking.decide):
        return False
    if has(table.asking.stop) and shown.may_stop and not _stop(table):
        return False
    table.steps[state.current].alpha_estimate = shown.alpha
    one_len = common_len(view) if limits.drafts_alike else 0
    for place in range(size):
        asked_len = view.lens[place]
        if asked_len < 0 or asked_len > longest:
            return False
        if limits.drafts_alike and not view.in_prefill[place]:
            asked_len = one_len
        entry = table.entries[state.current, place]
        entry.asked_len = 0 if view.is_undrafted[place] else asked_len
        entry.offered_len = entry.asked_len
    return True


@inner
def _stop(table: Table) -> bool:
    """Show the confidences of the drafts, and cut them where the policy stops the drafter."""
    view = table.seen
    shown = view.step[0]
    for place in range(shown.num_rows):
        if view.lens[place] < 0 or view.lens[place] > shown.max_draft_len:
            return False  # a length that is not allowed, beyond the room for confidences
        is_out = view.in_prefill[place] or view.is_undrafted[place]
        view.draft_lens[place] = 0 if is_out else view.lens[place]
    state_confidences(table)
    if not shown.width:
        return True
    if run(table.asking.stop) or shown.stop_len < 0:
        return False
    for place in range(shown.num_rows):
        view.lens[place] = min(view.lens[place], shown.stop_len)
    return True


@inner
def learn(table: Table) -> bool:
    """Show the policy the outcome of a step, to learn from."""
    current, view = table.state[0].current, table.seen
    shown, step = view.step[0], table.steps[current]
    if not has(table.asking.observe) or not step.num_requests:
        return True
    num, accepted_tokens = 0, 0
    for place in range(step.num_requests):
        entry = table.entries[current, place]
        if entry.is_partial or table.sequences[entry.row].status == FINISHED:
            continue
        view.requests[num] = entry.request
        view.draft_lens[num] = entry.verified_len
        view.accepted_lens[num] = entry.accepted_len
        accepted_tokens += entry.accepted_len
        num += 1
    shown.num_rows, shown.accepted_tokens = num, accepted_tokens
    shown.output_tokens = accepted_tokens + num
    shown.target_time, shown.draft_time = step.target_time, step.verified_draft_time
    shown.overhead_time = step.overhead_time
    if table.limits[0].depth > 1:  # overhead overlaps with the step before on the GPU
        shown.overhead_time = max(step.overhead_time - step.target_time - step.draft_time, 0.0)
    _show_step(table)
    return not run(table.asking.observe)


@inner
def state_confidences(table: Table) -> None:
    """Fill in the confidences of the drafts in `view.draft_lens`, and their width."""
    view, width = table.seen, 0
    for place in range(view.step[0].num_rows):
        width = max(width, view.draft_lens[place])
    view.step[0].width = width
    for place in range(view.step[0].num_rows):
        request = view.requests[place]
        position, fact = view.known_lens[place] - view.prompt_lens[place], table.facts[request]
        failed_at = 0
        if 0 <= position < fact.output_len:
            failed_at = int(table.fates[fact.output_at + position])
        first = table.level_starts[request] + position
        draft_len = min(view.draft_lens[place], table.level_starts[request + 1] - first)
        for at in range(width):
            level = level_of(table.levels, first, at, failed_at) if at < draft_len else 0
            view.confidences[place * width + at] = table.level_steps[level]


@inner
def look(table: Table, is_verified: bool) -> None:
    """Gather the sequences of the current step; if `is_verified`, accepted tokens are known."""
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
def _show_step(table: Table) -> None:
    shown, step = table.seen.step[0], table.steps[table.state[0].current]
    shown.now, shown.num_running = step.scheduled_at, step.num_running
    shown.context_tokens, shown.batched_tokens = step.context_tokens, step.batched_tokens
    shown.num_requests, shown.prefill_tokens = step.num_requests, step.prefill_tokens
