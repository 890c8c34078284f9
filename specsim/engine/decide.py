"""Decide: how much to draft by estimated goodput, without leaving the loop.

What `specsim.policies.goodput` does step by step, with the same functions, where the loop can tell
what a step costs. Every other policy that weighs one step against another decides in Python.
"""

from specsim.core.compiled import inner
from specsim.engine.gather import (
    ACCEPTED_LEN,
    ACCEPTED_TOKENS,
    CONTEXT_TOKENS,
    DECODES,
    SIZE,
    VERIFIED_LEN,
    look,
    look_back,
)
from specsim.engine.table import Table
from specsim.policies._estimate import alpha_of, best_len, expected_len, note_trials, renew_alpha
from specsim.policies._trials import (
    BEGUN,
    KEPT,
    NOTHING,
    TRIAL_TOKENS,
    TRIED,
    gives_up,
    is_timed,
    is_weighed,
    note_reading,
    note_tried,
    settled,
    skips_prefill,
    weigh,
)
from specsim.profile._step_time import plain_time_of, step_time_of


@inner
def leave_out(table: Table) -> None:
    """Settle whom the drafter serves no more."""
    limits, weighed, current = table.limits[0], table.weighed[0], table.state[0].current
    leaves_all, skips = gives_up(weighed), skips_prefill(weighed)
    if not limits.leaves_out or not (leaves_all or skips):
        return
    for place in range(table.steps[current].num_requests):
        entry = table.entries[current, place]
        if leaves_all or entry.is_admitted:
            table.sequences[entry.row].is_undrafted = 1


@inner
def decide(table: Table) -> None:
    """Ask for the drafts of highest goodput, none or a trial's."""
    limits, weighed, current = table.limits[0], table.weighed[0], table.state[0].current
    look(table, limits.depth == 1 and not limits.prefill_first)
    size, num = table.sums[SIZE], table.sums[DECODES]
    if not size:
        return
    asked_len, what = 0, KEPT
    if num:
        _set_load(table, table.sums[CONTEXT_TOKENS] - num, num, num, 0)
        alpha = alpha_of(weighed)
        asked_len = _best_common_len(table, alpha, free_slots_of(table, size) // num)
        emitted = num * expected_len(alpha, asked_len)
        served = _num_served(table)
        if is_weighed(weighed):
            times = (_common_time(table, asked_len), plain_time_of(table, num))
            weigh(weighed, asked_len > 0, emitted / num, times, served / num)
        what = settled(weighed, served > 0 and asked_len > 0)
    if what == BEGUN:
        renew_alpha(weighed, table.tried)
    is_trial = what == BEGUN or what == TRIED  # noqa: PLR1714 - as numba has it
    left = TRIAL_TOKENS
    table.steps[current].alpha_estimate = alpha_of(weighed)
    for place in range(size):
        entry = table.entries[current, place]
        sequence = table.sequences[entry.row]
        is_left_out = limits.leaves_out and sequence.is_undrafted
        entry.asked_len = 0 if is_left_out or what == NOTHING else asked_len
        if is_trial:
            entry.asked_len = 0 if is_left_out or sequence.in_chunk or not left else 1
            left -= entry.asked_len
        entry.offered_len = entry.asked_len


@inner
def learn(table: Table) -> None:
    """Learn from what was accepted, and what prompts take to be read by the drafter."""
    look_back(table)
    weighed, step = table.weighed[0], table.steps[table.state[0].current]
    if not step.num_requests:
        return
    accepted, cut_short = table.sums[ACCEPTED_TOKENS], 0
    for place in range(table.sums[SIZE]):
        if table.columns[ACCEPTED_LEN, place] != table.columns[VERIFIED_LEN, place]:
            cut_short += 1
    note_trials(weighed, table.tried, accepted, cut_short)
    if is_timed(weighed):
        time = 0.0
        if step.prefill_tokens:
            decoding = step.batched_tokens - step.prefill_tokens
            time = _drafter_time(table, step.batched_tokens, step.prefill_tokens)
            time -= _drafter_time(table, decoding, 0)
        note_reading(weighed, time)
    note_tried(weighed, accepted + cut_short)


@inner
def _set_load(table: Table, context_tokens: int, tokens: int, num: int, prefills: int) -> None:
    load = table.load
    load[0], load[1], load[2], load[3] = context_tokens, tokens, num, prefills
    load[4], load[5] = 0, 0


@inner
def _common_time(table: Table, draft_len: int) -> float:
    """Return what the step that was set takes if every sequence drafts so many tokens, seconds."""
    num = table.load[2]
    table.load[5] = draft_len * num
    return step_time_of(table, num * (1 + draft_len), draft_len)


@inner
def _best_common_len(table: Table, alpha: float, room: int) -> int:
    """Return the length of highest goodput, for which each sequence has room."""
    num_lens = min(table.limits[0].max_draft_len, room) + 1
    for k in range(num_lens):
        table.rows[k] = table.load[2]
        table.times[k] = _common_time(table, k)
    return best_len(alpha, table.times, num_lens)


@inner
def free_slots_of(table: Table, size: int) -> int:
    """Return how many drafts have room: in blocks that nobody holds, and look-ahead slots."""
    limits, per_common = table.limits[0], 0
    for number in range(limits.num_groups):
        per_common += limits.common_block_size // table.groups[number].block_size
    free: int = table.state[0].num_free * limits.common_block_size // per_common
    return free + limits.lookahead_len * size


@inner
def _num_served(table: Table) -> int:
    """Return how many of the sequences that decode the drafter serves."""
    current, served = table.state[0].current, 0
    for place in range(table.steps[current].num_requests):
        sequence = table.sequences[table.entries[current, place].row]
        if not sequence.in_chunk and not (table.limits[0].leaves_out and sequence.is_undrafted):
            served += 1
    return served


@inner
def _drafter_time(table: Table, batched_tokens: int, prefills: int) -> float:
    """Return what the drafter takes to keep up with the step, its prefills cut to these."""
    if not batched_tokens:
        return 0.0
    step = table.steps[table.state[0].current]
    _set_load(table, step.context_tokens, batched_tokens, step.num_requests, prefills)
    return step_time_of(table, batched_tokens, 0) - plain_time_of(table, batched_tokens)
