"""Preemption: who gives its blocks back when a running sequence needs one and none is free.

Source: vLLM 0.32.0 ``v1/core/sched/scheduler.py schedule``, the part about running requests.
"""

from specsim.core.compiled import inner
from specsim.engine.draft import find_use_of_drafts
from specsim.engine.kv import extend, release
from specsim.engine.loading import is_in_flight, release_late
from specsim.engine.table import NO_ROW, RUNNING, Table
from specsim.engine.waiting import put_back

IN_VAIN = 4_000
"""Preemptions without a token in between, from which on there will be no token any more.

Where two requests have one priority and arrived at the very same instant, vLLM preempts whichever
was admitted first: with too few blocks for both, they preempt each other in turn.
"""


@inner
def have_blocks(table: Table, row: int, end_len: int) -> bool:
    """Preempt until the blocks of a sequence are there; False if it had to go itself."""
    while not extend(table, row, end_len):
        victim = _victim(table)
        limits = table.limits[0]
        if limits.defers_frees and limits.spares_in_flight and is_in_flight(table, victim):
            return False  # it would not give any blocks now
        _unschedule(table, victim)
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
def _unschedule(table: Table, row: int) -> None:
    """Take a sequence back out that was scheduled earlier in this same call."""
    state = table.state[0]
    step = table.steps[state.current]
    place = 0
    while place < step.num_requests and table.entries[state.current, place].row != row:
        place += 1
    if place == step.num_requests:
        return
    if step.skips_drafts:
        find_use_of_drafts(table, place, place + 1)  # it counts, as in vLLM, though it goes
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
