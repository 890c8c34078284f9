"""The waiting queue and the running list (vLLM ``v1/core/sched/request_queue.py``).

First come, first served: the queue is a linked list of rows, and a preempted sequence goes to the
front. By priority: it is a binary heap, the smallest (priority, arrival, id, index) first, and a
preempted sequence has no privilege.
"""

from specsim.core.compiled import inner
from specsim.engine.table import FREE, NO_ROW, RUNNING, WAITING, Table


@inner
def first_waiting(table: Table) -> int:
    """Return the first row of the queue, which must not be empty."""
    if table.limits[0].by_priority:
        return int(table.queue[0])
    return table.state[0].queue_head


@inner
def next_waiting(table: Table, row: int) -> int:
    """Return the row behind a waiting one; NO_ROW if that is the last."""
    if not table.limits[0].by_priority:
        return int(table.sequences[row].next_row)
    found = NO_ROW
    for place in range(table.state[0].num_waiting):
        other = int(table.queue[place])
        is_later = other != row and comes_before(table, row, other)
        if is_later and (found == NO_ROW or comes_before(table, other, found)):
            found = other
    return found


@inner
def first_settled(table: Table, passed: int) -> int:
    """Return the first waiting row behind `passed` without a step in flight; NO_ROW: none.

    A sequence that was preempted while its step was in flight keeps its place until that step has
    come back, which it always has when there are at most two steps in flight.
    """
    row = first_waiting(table) if passed == NO_ROW else next_waiting(table, passed)
    while row != NO_ROW and table.sequences[row].in_flight_len:
        pass_over(table, row)
        row = next_waiting(table, row)
    return row


@inner
def pass_over(table: Table, row: int) -> None:
    """Mark a waiting row as passed over, until it runs (vLLM: `deferred_waiting`)."""
    state, sequence = table.state[0], table.sequences[row]
    if not sequence.passed_as:
        state.num_passed_over += 1
        state.num_passed += 1
        sequence.passed_as = state.num_passed


@inner
def is_ahead(table: Table, one: int, other: int) -> bool:
    """Return whether `one`, which loads, is ahead of `other`, which waits (or loads, to 0.30).

    Without priorities, sequences that admission has passed over, for whatever reason, come before
    all others, in the order in which they were passed over.
    """
    if table.limits[0].by_priority:
        return comes_before(table, one, other)
    passed_as = table.sequences[other].passed_as
    return bool(not passed_as or table.sequences[one].passed_as < passed_as)


@inner
def enqueue(table: Table, row: int) -> None:
    """Add a new sequence."""
    _stand(table, row, table.state[0].queue_tail, NO_ROW)


@inner
def put_back(table: Table, row: int) -> None:
    """Put a preempted sequence at the front (`Rules.returns_first`), or into the heap."""
    previous, following = NO_ROW, table.state[0].queue_head
    if not (table.limits[0].returns_first or table.limits[0].by_priority):
        while following != NO_ROW and table.sequences[following].passed_as:
            previous, following = following, table.sequences[following].next_row
    _stand(table, row, previous, following)


@inner
def _stand(table: Table, row: int, previous: int, following: int) -> None:
    """Queue a row between two others (NO_ROW: at an end), or, by priority, into the heap."""
    state, sequence = table.state[0], table.sequences[row]
    sequence.status = WAITING
    if table.limits[0].by_priority:
        _push(table, row)
        return
    sequence.previous_row, sequence.next_row = previous, following
    if previous == NO_ROW:
        state.queue_head = row
    else:
        table.sequences[previous].next_row = row
    if following == NO_ROW:
        state.queue_tail = row
    else:
        table.sequences[following].previous_row = row
    state.num_waiting += 1


@inner
def leave_queue(table: Table, row: int) -> None:
    """Remove a row from the queue, wherever it is."""
    state, sequence = table.state[0], table.sequences[row]
    state.num_passed_over -= sequence.passed_as > 0
    sequence.passed_as = 0
    if table.limits[0].by_priority:
        _remove(table, row)
        return
    if sequence.previous_row == NO_ROW:
        state.queue_head = sequence.next_row
    else:
        table.sequences[sequence.previous_row].next_row = sequence.next_row
    if sequence.next_row == NO_ROW:
        state.queue_tail = sequence.previous_row
    else:
        table.sequences[sequence.next_row].previous_row = sequence.previous_row
    state.num_waiting -= 1


@inner
def close_gaps(table: Table) -> None:
    """Remove rows that do not run any more from the running list."""
    state, running = table.state[0], table.running
    kept = 0
    for place in range(state.num_running):
        row = running[place]
        if table.sequences[row].status == RUNNING:
            running[kept] = row
            kept += 1
    state.num_running = kept


@inner
def comes_before(table: Table, one: int, other: int) -> bool:
    """Return whether one waiting row has to be served before another."""
    first, second = table.sequences[one], table.sequences[other]
    first_fact, second_fact = table.facts[first.request], table.facts[second.request]
    if first_fact.priority != second_fact.priority:
        return bool(first_fact.priority < second_fact.priority)
    if first.arrived_at != second.arrived_at:
        return bool(first.arrived_at < second.arrived_at)
    if first_fact.rank != second_fact.rank:
        return bool(first_fact.rank < second_fact.rank)
    return bool(first.request < second.request)


@inner
def _push(table: Table, row: int) -> None:
    state = table.state[0]
    table.queue[state.num_waiting] = row
    state.num_waiting += 1
    _rise(table, state.num_waiting - 1)


@inner
def _remove(table: Table, row: int) -> None:
    state = table.state[0]
    queue = table.queue
    place = 0
    while queue[place] != row:
        place += 1
    state.num_waiting -= 1
    if place == state.num_waiting:
        return
    queue[place] = queue[state.num_waiting]
    _sink(table, place)
    _rise(table, place)


@inner
def _rise(table: Table, place: int) -> None:
    queue = table.queue
    while place > 0:
        parent = (place - 1) // 2
        if not comes_before(table, queue[place], queue[parent]):
            return
        queue[place], queue[parent] = queue[parent], queue[place]
        place = parent


@inner
def _sink(table: Table, place: int) -> None:
    queue, size = table.queue, table.state[0].num_waiting
    while True:
        child = 2 * place + 1
        if child >= size:
            return
        if child + 1 < size and comes_before(table, queue[child + 1], queue[child]):
            child += 1
        if not comes_before(table, queue[child], queue[place]):
            return
        queue[place], queue[child] = queue[child], queue[place]
        place = child


@inner
def begin(table: Table, row: int, request: int, arrived_at: float) -> None:
    """Fill in the row of a request that is new."""
    table.sequences[row] = table.blank_sequence[0]
    sequence, fact = table.sequences[row], table.facts[request]
    sequence.request = request
    sequence.arrived_at = arrived_at
    sequence.prompt_len = sequence.known_len = fact.prompt_len
    sequence.requested_len = fact.prompt_len + fact.max_tokens
    sequence.max_len = min(fact.prompt_len + fact.output_len, table.limits[0].max_model_len)
    sequence.fate_at = fact.output_at


@inner
def free_row(table: Table, row: int) -> None:
    """Free the row of a sequence that has ended, if no step or transfer still needs it."""
    state, sequence = table.state[0], table.sequences[row]
    if sequence.in_flight_len or sequence.is_sending or sequence.fence or sequence.is_left:
        return
    sequence.status = FREE
    sequence.next_row = state.free_row
    state.free_row = row
