"""Order: in which order a step's verbs are done, for each scheduler.

A drafter that drafts while the target verifies has an order of its own.

    synchronous     vLLM V1 with a step scheduled only when the one before has come back
    overlapped      the same, but the drafter runs beside the target, and what it drafts is kept
                    where it guessed what the target would say (PEARL)
    prefill_first   vLLM V0: waiting prompts run first, whole, in a step of their own; drafts are
                    proposed and verified within one step. The papers of 2024 measured on it.
    asynchronous    vLLM V1 with step n + 1 scheduled while step n runs, as if it accepted
                    everything (0.32.0 ``v1/engine/core.py step_with_batch_queue``); in a pipeline
                    of n stages up to n + 1 steps are in flight, and a sequence decodes in every
                    nth (``config/vllm.py max_concurrent_batches``, ``async_scheduler.py``)

A step is launched, and later it comes back ("lands"). What a verb does stands in the module of its
name; a verb of which the latency model or the drafter is Python is done there
(`specsim.engine.python_verbs`), with the same state before and after.
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
    TRIM,  # the policy drops drafts from the step, or the draft prefill of who is admitted
    ASK,  # how many tokens to draft
    OFFER,  # what the proposer comes up with is to be verified
    CHARGE_FORWARD,
    CHARGE_ADAPTERS,  # LoRA adapters come to the GPU, and are computed with
    CHARGE_DRAFTS,
    VERIFY,
    OBSERVE,  # the policy learns from it
    SCHEDULED,  # whoever watches sees what has been scheduled
    OVERHEAD,  # the engine's own time, which a busy GPU hides
    LAUNCHED,
    WAIT,  # for the step to end
    CHECK,  # that results fit into their buffers
    DELIVER,
    DELIVERED,  # whoever watches sees what has been delivered
    LANDED,
) = range(VERBS)

WAITS, FULL, GROW, REFUSED = VERBS, VERBS + 1, VERBS + 2, VERBS + 3
"""What `advance` says besides a verb to be done in Python: nothing happens before `State.until`;
results have to be taken; there are more requests than rows; the policy has said what nobody can
do."""

DONE = VERBS + 4
"""What `come` says, too: the rank waits for the others, or does nothing before `State.comes_by`."""
FAR, WAITING_FOR_OTHERS, BEGUN = range(3)
"""Values of `State.pass_state`: whether a rank waits for others with a step, whose pass then
begins."""

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
"""What a step does until it is launched, and what when it lands."""


def order_of(kind: str, table: Table, in_python: Container[int]) -> list[int]:
    """Return the verbs of a replica in their order, without those in which it has nothing to do."""
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
    """Go on until something outside may happen, or a verb has to be done in Python.

    Returns that verb, or one of `WAITS`, `FULL`, `GROW` and `REFUSED`. The caller does what is
    asked for, moves `State.place` on if it was a verb, and calls again.
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
    """Take out the sequences that have been marked as withdrawn; return how many."""
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
    """Go on to the next pass that ranks make together, as far as it lies before `State.comes_by`.

    Returns what `advance` does, or `DONE`. From event to event where requests are there that the
    rank has not looked at: those that arrive while it is idle wait. It has looked for them when the
    last pass began; later ones wait for the pass after.
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
    return WAITS if is_to_tell(table) else DONE  # ends at which it had more to do


@inner
def is_to_tell(table: Table) -> bool:
    """Whether a rank that waits has something to say: ends, or that it will never end."""
    state = table.state[0]
    is_awaited = table.limits[0].announces_ends and state.unannounced
    return bool(is_awaited or state.preempted_in_vain >= IN_VAIN)


@inner
def goes_on(state: State) -> bool:
    """Whether a rank has something to do before the next pass, to which it has not come.

    If not, it makes a dummy pass if others make one. One that is in the midst of a step has, also
    if all who were in it are withdrawn.
    """
    has_work = state.num_running or state.place or state.next_at <= state.now
    return bool(has_work and state.pass_state == FAR)


@inner
def wait_for_others(table: Table, time: float, overhead_time: float) -> None:
    """Let a rank wait with a step, which would take so long by itself, unless that is empty."""
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
    """Choose between a new step, one that comes back, and nothing to do; False to wait."""
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
    """Whether a step in flight is not empty; a pipeline then is filled up, if with empty ones."""
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
    """Let time pass until the next request arrives; False if that may be too late."""
    state = table.state[0]
    at = inf
    if state.first_arrival < state.num_arrivals:
        at = max(state.now, table.arrivals[state.first_arrival].at)
    if state.num_ended and at > state.now:
        settle_ended(table)  # vLLM schedules once more, an empty step
    return _until(table, at)


@inner
def _until(table: Table, instant: float) -> bool:
    """Let time pass; False, and it stands still, if that may be too late.

    Something outside may happen before, or requests have ended that somebody waits for.
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
    """Let the engine's own time pass; then the GPU begins with the step when it is free."""
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
    """Let the step go through the pipeline: each stage begins when it and the one before end.

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
    """Let time pass until the step that was launched first ends."""
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
