"""Asking: a policy that is loops, asked by the engine's loop, and what becomes of its answers.

What `specsim.engine.speculation` does for a policy in Python, without Python. Each verb returns
whether all is well: not where the policy has raised, or said what nobody can do.
"""

from specsim.core.compiled import has, inner, run
from specsim.core.draft_luck import level_of
from specsim.engine.gather import look, look_back
from specsim.engine.table import Table

MOST_EMPTY_STEPS = 10_000  # in a row; a step that can run nothing is followed by one that can


@inner
def trim(table: Table) -> bool:
    """Settle what a scheduled step verifies, and whom the drafter will never serve."""
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
            if table.seen.let_go[place]:
                table.sequences[table.entries[current, place].row].is_undrafted = 1
    return not has(asking.verify) or not shown.draft_tokens or _verify(table)


@inner
def _verify(table: Table) -> bool:
    """Cut drafts to what of them is to be verified."""
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
    """Ask for as many drafts as it says."""
    limits, state, view = table.limits[0], table.state[0], table.seen
    look(table, limits.depth == 1 and not limits.prefill_first)
    shown, longest = view.step[0], limits.max_draft_len
    size = shown.num_rows
    state.num_empty = 0 if size else state.num_empty + 1
    if not size:
        return bool(state.num_empty <= MOST_EMPTY_STEPS)
    shown.free_slots, shown.has_found = _free_slots(table, size), limits.shows_drafts
    if limits.shows_drafts:
        for place in range(size):
            view.draft_lens[place] = 0 if view.in_prefill[place] else longest
        state_confidences(table)
    if run(table.asking.decide):
        return False
    if has(table.asking.stop) and shown.may_stop and not _stop(table):
        return False
    table.steps[state.current].alpha_estimate = shown.alpha
    for place in range(size):
        asked_len = view.lens[place]
        if asked_len < 0 or asked_len > longest:
            return False
        entry = table.entries[state.current, place]
        entry.asked_len = 0 if view.is_undrafted[place] else asked_len
        entry.offered_len = entry.asked_len
    return True


@inner
def _stop(table: Table) -> bool:
    """Cut all drafts where the drafter is to stop."""
    view = table.seen
    shown = view.step[0]
    for place in range(shown.num_rows):
        if view.lens[place] < 0 or view.lens[place] > shown.max_draft_len:
            return False  # there is no room for so many confidences
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
    """Tell it what became of the drafts of a step."""
    if not has(table.asking.observe) or not table.steps[table.state[0].current].num_requests:
        return True
    look_back(table)
    return not run(table.asking.observe)


@inner
def state_confidences(table: Table) -> None:
    """Show how sure the drafter is of each token of the drafts that are shown."""
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
def _free_slots(table: Table, size: int) -> int:
    """Return how many drafts have room: in blocks that nobody holds, and look-ahead slots."""
    limits, per_common = table.limits[0], 0
    for number in range(limits.num_groups):
        per_common += limits.common_block_size // table.groups[number].block_size
    free: int = table.state[0].num_free * limits.common_block_size // per_common
    return free + limits.lookahead_len * size
