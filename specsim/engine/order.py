"""Order: the verbs (phases) of a step and the order in which each scheduler does them.

    synchronous     vLLM V1, where a step is scheduled once the one before has come back
    overlapped      as synchronous, but the drafter runs beside the target, and its draft is kept
                    only if it guessed the target's tokens right (PEARL)
    prefill_first   vLLM V0: waiting prompts run first, whole, in a step of their own; drafts are
                    proposed and verified within one step. The papers of 2024 measured on it.
    asynchronous    vLLM V1 with step n + 1 scheduled while step n runs, as if it accepted
                    everything (0.32.0 ``v1/engine/core.py step_with_batch_queue``); in a pipeline
                    of n stages up to n + 1 steps are in flight, and a sequence decodes in every
                    nth (``config/vllm.py max_concurrent_batches``, ``async_scheduler.py``)

A step is launched, and later it comes back ("lands"). Verbs are implemented in the modules named
after them; a verb that needs Python, for a latency model or a drafter written in it, is done in
`specsim.engine.python_verbs` with the same state before and after.
"""

from collections.abc import Container
from math import inf, nextafter

from specsim.core.compiled import Loop, inner
from specsim.engine.adapters import charge_adapters
from specsim.engine.asking import learn, trim
from specsim.engine.cost import charge_drafts, charge_forward
from specsim.engine.deliver import deliver, has_room, land, withdraw
from specsim.engine.draft import ask, offer, verify
from specsim.engine.offering import settle_ended
from specsim.engine.schedule import IN_VAIN, schedule, take_in
from specsim.engine.table import TABLE_TYPES, WITHDRAWN, State, Table
from specsim.profile.step_time import HAS_DRAFTER

VERBS = 19
(
    TAKE_IN,  # queue what has arrived
    BEGIN,  # launch a step, let one land, or wait for requests
    SCHEDULE,
    TRIM,  # the policy drops drafts from the step, or sequences from the drafter
    ASK,  # ask the policy how many tokens to draft
    OFFER,  # give sequences the drafts that the proposer finds, to be verified next
    CHARGE_FORWARD,
    CHARGE_ADAPTERS,  # time to load LoRA adapters and to compute with them
    CHARGE_DRAFTS,
    VERIFY,
    OBSERVE,  # the policy learns from the step
    SCHEDULED,  # show observers the scheduled step
    OVERHEAD,  # the engine's own time, which a busy GPU hides
    LAUNCHED,
    WAIT,  # for the step to end
    CHECK,  # that results fit into their buffers
    DELIVER,
    DELIVERED,  # show observers the delivered step
    LANDED,
) = range(VERBS)

WAITS, FULL, GROW, REFUSED = VERBS, VERBS + 1, VERBS + 2, VERBS + 3
"""Results of `advance` besides a verb to be done in Python. WAITS: nothing happens before
`State.until`. FULL: the result buffers must be flushed. GROW: there are more requests than rows.
REFUSED: the policy raised an error or gave an answer that is not allowed."""

DONE = VERBS + 4
"""Further result of `come`: the rank waits for others, or does nothing before `State.comes_by`."""
FAR, WAITING_FOR_OTHERS, BEGUN = range(3)
"""Values of `State.pass_state`. FAR: the rank has not come to the next common pass.
WAITING_FOR_OTHERS: it waits with a step. BEGUN: the pass has begun."""

ORDERS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "synchronous": (
        (
            *(SCHEDULE, TRIM, CHARGE_FORWARD, CHARGE_ADAPTERS, VERIFY, OBSERVE, ASK),
            *(CHARGE_DRAFTS, SCHEDULED),
        ),
        (WAIT, CHECK, DELIVER, DELIVERED, OFFER),
    ),
    "overlapped": (
        (
            *(SCHEDULE, TRIM, ASK, CHARGE_FORWARD, CHARGE_ADAPTERS, CHARGE_DRAFTS),
            *(VERIFY, OBSERVE, SCHEDULED),
        ),
        (WAIT, CHECK, DELIVER, DELIVERED, OFFER),
    ),
    "prefill_first": (
        (SCHEDULE, ASK, OFFER, TRIM, CHARGE_FORWARD, CHARGE_DRAFTS, VERIFY, OBSERVE, SCHEDULED),
        (WAIT, CHECK, DELIVER, DELIVERED),
    ),
    "asynchronous": (
        (
            *(SCHEDULE, TRIM, ASK, OFFER, SCHEDULED, CHARGE_FORWARD, CHARGE_ADAPTERS),
            *(CHARGE_DRAFTS, OVERHEAD),
        ),
        (WAIT, CHECK, VERIFY, OBSERVE, DELIVER, DELIVERED),
    ),
}
"""The verbs of each scheduler: those up to the launch of a step, and those when it lands."""


def order_of(kind: str, table: Table, in_python: Container[int]) -> list[int]:
    """Return the verbs of a replica in order, without those that would do nothing."""
    launch, land = ORDERS[kind]
    leaves_out, asking = bool(table.limits["leaves_out"][0]), table.asking
    is_idle = {
        TRIM: asking.verify is None and not (leaves_out and asking.drop is not None),
        ASK: asking.decide is None and not table.lens_by_size.any(),
        CHARGE_ADAPTERS: not table.limits["max_loras"][0],
        CHARGE_DRAFTS: not (leaves_out or table.costs[HAS_DRAFTER]),
        OFFER: not table.limits["max_draft_len"][0],
        VERIFY: not table.limits["max_draft_len"][0],
        OBSERVE: asking.observe is None,
        SCHEDULED: True,
        DELIVERED: True,
    }
    every = (TAKE_IN, BEGIN, *launch, LAUNCHED, *land, LANDED)
    return [verb for verb in every if verb in in_python or not is_idle.get(verb, False)]


@inner
def _go_on(table: Table) -> int:
    """Run verbs until something outside may happen, or a verb has to be done in Python.

    Returns that verb, or one of `WAITS`, `FULL`, `GROW` and `REFUSED`. The caller handles it, moves
    `State.place` on if it was a verb, and calls again.
    """
    state = table.state[0]
    while True:
        verb = table.order[state.place]
        if table.in_python[verb]:
            return int(verb)
        if verb == TAKE_IN:
            if not take_in(table):
                return GROW
        elif verb == BEGIN:
            if not _begin(table):
                return WAITS
            continue
        elif verb == SCHEDULE:
            schedule(table)
        elif verb == OFFER:
            offer(table)
        elif verb == CHARGE_FORWARD:
            charge_forward(table)
        elif verb == CHARGE_ADAPTERS:
            charge_adapters(table)
        elif verb == CHARGE_DRAFTS:
            charge_drafts(table)
        elif verb == OVERHEAD or verb == WAIT:  # noqa: PLR1714, SIM109 - as numba has it
            if not (_overhead(table) if verb == OVERHEAD else _wait(table)):
                return WAITS
        elif verb == LAUNCHED:
            _launched(table)
            continue
        elif verb == CHECK:
            if not has_room(table):
                return FULL
        elif verb == VERIFY:
            verify(table)
        elif verb == DELIVER:
            deliver(table)
        elif verb == LANDED:
            land(table)
            continue
        elif not (trim(table) if verb == TRIM else ask(table) if verb == ASK else learn(table)):
            return REFUSED
        state.place += 1


def _drop(table: Table) -> int:
    """Remove the sequences with status WITHDRAWN; return how many there were."""
    state, dropped = table.state[0], 0
    for row in range(len(table.sequences)):
        if table.sequences[row].status == WITHDRAWN:
            if state.is_stuck and not _has_requests_in_flight(table):
                state.now = max(state.now, state.until)  # others may run from now on
            withdraw(table, row)
            dropped += 1
    return dropped


def _advance(table: Table) -> int:
    return _go_on(table)


def _come(table: Table) -> int:
    """Run a rank up to the next common pass of all ranks, if that lies before `State.comes_by`.

    Returns what `advance` returns, or `DONE`. With arrivals that the rank has not looked at, it
    runs one event at a time. It looks for arrivals when a pass begins; later ones wait for the pass
    after.
    """
    state = table.state[0]
    if state.pass_state == BEGUN:
        step = table.steps[state.current]
        step.target_time, step.overhead_time = state.pass_time, state.pass_overhead
        state.pass_state = FAR
        state.place += 1
    while state.pass_state == FAR:
        if not state.is_midway:
            if state.next_at >= state.comes_by or not goes_on(state):
                return DONE
            state.until = state.comes_by
            if state.first_arrival != state.num_arrivals:
                state.until = nextafter(state.next_at, inf)
        verb = _go_on(table)
        state.is_midway = verb != WAITS
        if verb == CHARGE_FORWARD and table.limits[0].charges_alone:
            charge_forward(table)
            step = table.steps[state.current]
            wait_for_others(table, step.target_time, step.overhead_time)
        elif verb != WAITS or is_to_tell(table):
            return verb
    return WAITS if is_to_tell(table) else DONE  # WAITS: ends are announced first


@inner
def is_to_tell(table: Table) -> bool:
    """Return whether a waiting rank must return to Python: to announce ends, or as it is stuck."""
    state = table.state[0]
    is_awaited = table.limits[0].announces_ends and state.unannounced
    return bool(is_awaited or state.preempted_in_vain >= IN_VAIN)


@inner
def goes_on(state: State) -> bool:
    """Return whether a rank has work of its own to do before the next common pass.

    If not, it takes part in the others' pass with a dummy batch. A rank in the middle of a step has
    work, even if all sequences of the step were withdrawn.
    """
    has_work = state.num_running or state.place or state.next_at <= state.now
    return bool(has_work and state.pass_state == FAR)


@inner
def wait_for_others(table: Table, time: float, overhead_time: float) -> None:
    """Let a rank wait for the others with its step, unless that is empty.

    `time` and `overhead_time` are the seconds that the step would take by itself.
    """
    state = table.state[0]
    step = table.steps[state.current]
    if not step.batched_tokens:
        state.place += 1
        return
    state.pass_time, state.pass_overhead = time, overhead_time
    state.pass_tokens, state.pass_state = step.batched_tokens, WAITING_FOR_OTHERS
    state.is_midway = 0


_ROOMS = (
    *("specsim.engine", "specsim.latency", "specsim.decisions.loops"),
    *("specsim.core.draft_luck", "specsim.profile.step_time"),
)
advance = Loop(_advance, TABLE_TYPES, name="engine", rooms=_ROOMS)
drop = Loop(_drop, TABLE_TYPES, name="engine", rooms=_ROOMS)
come = Loop(_come, TABLE_TYPES, name="engine", rooms=_ROOMS)


@inner
def _begin(table: Table) -> bool:
    """Begin a new step, or let one land, or pass the time to the next arrival; False: wait."""
    limits, state = table.limits[0], table.state[0]
    has_work = state.num_running or state.num_waiting or state.num_loading
    if state.preempted_in_vain >= IN_VAIN:
        has_work = 0
    flushes = limits.depth > 1 and state.has_unflushed
    is_stuck = state.is_stuck and not (len(table.stages) > 1 and _has_requests_in_flight(table))
    if ((has_work and not is_stuck) or flushes) and state.in_flight < limits.depth:
        if state.now >= state.until:  # where a run begins: more may arrive at that very instant
            state.next_at = state.now
            state.place = 0
            return False
        state.current = (state.oldest + state.in_flight) % limits.depth
        state.place += 1
        return True
    if state.in_flight:
        state.current = state.oldest
        state.place = limits.land_at
        return True
    state.place = 0
    return _until_arrival(table)


@inner
def _has_requests_in_flight(table: Table) -> bool:
    """Return whether a step in flight is not empty; a pipeline is then filled with empty ones."""
    limits, state = table.limits[0], table.state[0]
    for number in range(state.in_flight):
        if table.steps[(state.oldest + number) % limits.depth].num_requests:
            return True
    return False


@inner
def _launched(table: Table) -> None:
    """Count the step as in flight, and launch another if there may be two.

    vLLM's engine loop schedules once more, possibly an empty batch, to flush finished ids.
    """
    limits, state = table.limits[0], table.state[0]
    has_work = state.num_running or state.num_waiting or state.num_loading or state.has_unflushed
    state.in_flight += 1
    if state.in_flight < limits.depth and (table.steps[state.current].num_requests or has_work):
        state.place = 0
    else:
        state.current = state.oldest
        state.place = limits.land_at


@inner
def _until_arrival(table: Table) -> bool:
    """Set the clock to the next arrival; False if something outside may happen before."""
    state = table.state[0]
    at = inf
    if state.first_arrival < state.num_arrivals:
        at = max(state.now, table.arrivals[state.first_arrival].at)
    if state.num_ended and at > state.now:
        settle_ended(table)  # vLLM schedules once more, an empty step
    return _until(table, at)


@inner
def _until(table: Table, instant: float) -> bool:
    """Set the clock to `instant`; False, without doing so, if the replica has to stop before.

    It has to if something outside may happen first, or if ends have to be announced first.
    """
    state = table.state[0]
    is_awaited = table.limits[0].announces_ends and state.unannounced
    if instant >= state.until or (is_awaited and instant > state.now):
        state.next_at = instant
        return False
    state.now = instant
    return True


@inner
def _overhead(table: Table) -> bool:
    """Add the engine's overhead to the clock; the step begins on the GPU once that is free."""
    state = table.state[0]
    step = table.steps[state.current]
    if step.overhead_time and not _until(table, state.now + step.overhead_time):
        return False
    if len(table.stages) > 1:
        _pass_stages(table)
        return True
    step.started_at = max(state.now, state.gpu_free_at)
    state.gpu_free_at = step.started_at + step.target_time + step.draft_time
    step.ended_at = state.gpu_free_at
    return True


@inner
def _pass_stages(table: Table) -> None:
    """Time the step through the pipeline: a stage begins when it is free and the last one ends.

    The first one needs the tokens that the last one has sampled for the sequences of the step, and
    their drafts, which are made there (vLLM 0.32.0 ``v1/worker/gpu/pp_utils.py``).
    """
    state = table.state[0]
    step = table.steps[state.current]
    step.ended_at = max(state.now, table.stages[0].free_at)
    for place in range(step.num_requests):
        row = table.entries[state.current, place].row
        step.ended_at = max(step.ended_at, table.sequences[row].sampled_at)
    step.started_at = step.ended_at
    for number in range(len(table.stages)):
        stage = table.stages[number]
        step.ended_at = max(step.ended_at, stage.free_at) + stage.share * step.target_time
        stage.free_at = step.ended_at
    step.ended_at += step.draft_time
    table.stages[len(table.stages) - 1].free_at = step.ended_at
    for place in range(step.num_requests):
        entry = table.entries[state.current, place]
        if not entry.is_partial:
            table.sequences[entry.row].sampled_at = step.ended_at


@inner
def _wait(table: Table) -> bool:
    """Set the clock to the end of the step that was launched first; False: wait."""
    limits, state = table.limits[0], table.state[0]
    step = table.steps[state.current]
    if limits.depth > 1:
        if step.ended_at > state.now:
            return _until(table, state.now + (step.ended_at - state.now))
        return True
    if step.num_requests:
        total = step.target_time + step.draft_time + step.overhead_time
        return _until(table, state.now + total)
    if step.preemptions or state.has_unflushed:  # blocks have been given back
        return True
    return _until_arrival(table)  # nothing can run before something changes
