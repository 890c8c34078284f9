"""Draft: how many tokens are drafted after a step, and how many of them are accepted."""

from specsim.core.compiled import has, inner, run
from specsim.engine.asking import decide
from specsim.engine.table import Table


@inner
def ask(table: Table) -> bool:
    """Set the draft lengths of the step: by its size (fixed k, or a schedule of k), or the policy.

    False if the policy raised an error or gave an answer that is not allowed.
    """
    limits, state = table.limits[0], table.state[0]
    step = table.steps[state.current]
    if limits.prefill_first and step.prefill_tokens:
        return True
    if has(table.asking.decide):
        return decide(table) and not (has(table.asking.prefix) and run(table.asking.prefix))
    asked_len = table.lens_by_size[step.num_requests]
    for place in range(step.num_requests):
        entry = table.entries[state.current, place]
        is_left_out = limits.leaves_out and table.sequences[entry.row].is_undrafted
        entry.asked_len = entry.offered_len = 0 if is_left_out else asked_len
    return True


@inner
def offer(table: Table) -> None:
    """Give the sequences of a step the draft tokens that the proposer finds.

    A sequence in mid-prefill gets none. Under asynchronous scheduling, room is reserved before the
    drafts are made (vLLM 0.32.0 ``v1/core/sched/async_scheduler.py``).
    """
    limits, state = table.limits[0], table.state[0]
    step = table.steps[state.current]
    if limits.has_offers and limits.depth == 1:
        _cut_to_offers(table)
    if limits.prefill_first:
        if not step.prefill_tokens:
            _add_to_step(table)
        return
    for place in range(step.num_requests):
        entry = table.entries[state.current, place]
        sequence = table.sequences[entry.row]
        if not sequence.in_chunk:
            if limits.overlaps:
                entry.offered_len = _kept_len(table, place)
            sequence.draft_len = entry.offered_len


@inner
def _kept_len(table: Table, place: int) -> int:
    """Return the usable length of a draft that was made while the step verified the one before.

    It continues that draft, so it is usable only if all of that was accepted and its own first
    token is the target's bonus token, which is not verified again. If the step had no draft, this
    is PEARL's pre-verify, else its post-verify (Liu et al. 2025, section 4).
    """
    entry = table.entries[table.state[0].current, place]
    sequence = table.sequences[entry.row]
    output_len = sequence.known_len - sequence.prompt_len
    is_over = output_len >= table.facts[entry.request].output_len
    if not entry.offered_len or is_over or entry.accepted_len < entry.draft_len:
        return 0
    return int(entry.offered_len - 1 if table.fates[sequence.fate_at + output_len - 1] else 0)


@inner
def _cut_to_offers(table: Table) -> None:
    """Cut `offered_len` to what the proposer finds at each output position, by its table."""
    current = table.state[0].current
    for place in range(table.steps[current].num_requests):
        entry = table.entries[current, place]
        sequence = table.sequences[entry.row]
        output_len = sequence.known_len - sequence.prompt_len
        # Offers have one output position more per request than fates.
        at = table.facts[entry.request].output_at + entry.request + output_len
        entry.offered_len = min(entry.asked_len, int(table.offers[at]))


@inner
def _add_to_step(table: Table) -> None:
    """Add the drafts to the decodes of the same step, on top of its token budget (vLLM V0)."""
    limits, current = table.limits[0], table.state[0].current
    step = table.steps[current]
    step.drafts_on_top = 1
    for place in range(step.num_requests):
        entry = table.entries[current, place]
        sequence = table.sequences[entry.row]
        draft_len = min(entry.offered_len, limits.max_model_len - 1 - sequence.computed_len)
        if limits.expands_batch:
            entry.read_anew = sequence.computed_len
        sequence.computed_len += draft_len
        sequence.in_flight_len += draft_len
        entry.scheduled_len += draft_len
        entry.draft_len = entry.verified_len = draft_len
        step.batched_tokens += draft_len
        step.context_tokens += entry.read_anew * draft_len


@inner
def verify(table: Table) -> None:
    """Set the accepted length of every draft from the table of fates, by output position.

    Every earlier step has been delivered, so positions are known. Trees, and drafts that the table
    does not cover, are verified in Python (`specsim.engine.speculation`).
    """
    current = table.state[0].current
    for place in range(table.steps[current].num_requests):
        entry = table.entries[current, place]
        if entry.verified_len == 0 or entry.is_padded:
            continue
        sequence = table.sequences[entry.row]
        output_len = sequence.known_len - sequence.prompt_len
        # A step may still be in flight for a sequence that has ended.
        if output_len < table.facts[entry.request].output_len:
            # An overlapped draft began one token earlier, with a token that was accepted.
            ahead = int(table.limits[0].overlaps)
            fate = int(table.fates[sequence.fate_at + output_len - ahead]) - ahead
            entry.accepted_len = min(fate, entry.verified_len)


@inner
def find_use_of_drafts(table: Table, first: int, end: int) -> None:
    """Clear `skips_drafts` if one of the entries `first` to `end` - 1 can use a draft.

    A sequence cannot if the step ends before its last known token, or reaches `max_tokens` in any
    case (vLLM 0.33.0 ``v1/core/sched/scheduler.py _drafts_unused``).
    """
    current = table.state[0].current
    for place in range(first, end):
        entry = table.entries[current, place]
        sequence = table.sequences[entry.row]
        sure_len = sequence.known_len + 1 + (sequence.placeholder_len > 0)
        reaches_end = entry.start + entry.scheduled_len >= sequence.known_len
        if reaches_end and sure_len < sequence.requested_len:
            table.steps[current].skips_drafts = 0
            return
