"""Lock-step: data-parallel ranks of a mixture of experts, which make every pass together.

Each rank is a replica with a scheduler and a KV cache of its own. A forward pass needs all of them,
since each holds some of the experts of every layer: it begins when the last rank has come to it,
and lasts as long as the slowest. A rank without work makes a dummy pass (vLLM 0.32.0
``v1/engine/core.py DPEngineCoreProc.run_busy_loop``). That a server without requests goes on with
dummy passes until ranks agree to stop is left out. Passes are counted, from 0 for a server that was
idle, so that all ranks hold back their prompts in the same ones (``prefill_schedule_interval``).
"""

from collections.abc import Mapping
from functools import cached_property, partial
from math import inf, nextafter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import (
    Bound,
    Hooks,
    Loop,
    Pointers,
    Rows,
    inner,
    record_of,
    run_at,
    types_of,
)
from specsim.core.step import Pieces, StepLoad
from specsim.engine.order import (
    BEGUN,
    CHARGE_FORWARD,
    DONE,
    FAR,
    WAITING_FOR_OTHERS,
    goes_on,
    wait_for_others,
)
from specsim.engine.replica import Handler, Replica
from specsim.engine.table import State
from specsim.profile import StepCosts

LASTS = DONE + 1
"""What the loop of a group says, too: Python is to say how long the next pass lasts."""


class RanksState(Protocol):
    """Where the ranks of a server are."""

    until: float  # when something may happen outside next; nothing is done then or later
    goes_to: float  # that, or just beyond what happens next, if somebody waits for ends
    is_underway: int  # whether some ranks may not have come that far
    next_at: float  # when any would go on by itself; infinite if all wait for requests
    is_awaited: int  # whether somebody waits for ends
    has_told: int  # whether they have been told of some, which may change what happens outside
    is_async: int
    rank: int  # the one that needs Python
    slowest_up_to: float  # batched tokens up to which a pass lasts as long as the slowest rank's
    dummy_time: float
    dummy_tokens: int
    pass_time: float  # as Python says
    is_timed: int  # whether it has said


class Ranks(NamedTuple):
    """The ranks of a server, as its loop sees them."""

    group: Rows[RanksState]  # one row
    states: Rows[State]
    comes: Hooks  # the loop of each rank


@inner
def _look(ranks: Ranks) -> bool:
    """Find when any rank would go on by itself; return whether some wait at a pass for others."""
    going_at = resting_at = inf
    met_at = -inf
    is_there = is_going = False
    for rank in range(len(ranks.states)):
        state = ranks.states[rank]
        if goes_on(state):
            is_going = True
            going_at = min(going_at, state.next_at)
        if state.pass_state != FAR:
            is_there = True
        resting_at = min(resting_at, state.next_at)
        met_at = max(met_at, state.now)  # those that rest come after their own last step
    if not (is_going or is_there):
        for rank in range(len(ranks.states)):
            ranks.states[rank].num_passes = 0
    ranks.group[0].next_at = going_at if is_going else met_at if is_there else resting_at
    return is_there


@inner
def _begins(ranks: Ranks) -> bool:
    """Let a pass begin, of ranks that come with a step and of dummies; False to ask how long."""
    group, num_ranks = ranks.group[0], len(ranks.states)
    time, most, num_there = 0.0, 0, 0
    begins_at, overhead_time = -inf, 0.0
    for rank in range(num_ranks):
        state = ranks.states[rank]
        begins_at = max(begins_at, state.gpu_free_at)
        if state.pass_state == WAITING_FOR_OTHERS:
            num_there += 1
            time = max(time, state.pass_time)
            most = max(most, state.pass_tokens)
            overhead_time = max(overhead_time, state.pass_overhead)
    if num_there < num_ranks:
        time, most = max(time, group.dummy_time), max(most, group.dummy_tokens)
    if group.is_timed:
        time = group.pass_time
    elif most > group.slowest_up_to:
        return False
    group.is_timed = 0
    # Under asynchronous scheduling the engine's own time comes before the pass.
    own_time = overhead_time if group.is_async else 0.0
    begins_at = max(begins_at, group.next_at + own_time)
    for rank in range(num_ranks):
        state = ranks.states[rank]
        state.num_passes += 1
        state.now = group.next_at
        state.gpu_free_at = begins_at
        if state.pass_state == WAITING_FOR_OTHERS:
            state.pass_time, state.pass_state = time, BEGUN
        else:
            state.gpu_free_at += time
    return True


@inner
def _come(ranks: Ranks) -> int:
    """Let all ranks come to the next pass, or as far as they go; return what one asks for."""
    group = ranks.group[0]
    for rank in range(len(ranks.states)):
        state = ranks.states[rank]
        is_early = goes_on(state) and state.next_at < group.goes_to
        if is_early or state.is_midway or state.pass_state == BEGUN:
            state.comes_by = group.goes_to
            group.rank = rank
            asked = run_at(ranks.comes, rank)
            if asked != DONE:
                return asked
    return DONE


def _find_next(ranks: Ranks) -> int:
    return int(_look(ranks))


def _advance(ranks: Ranks) -> int:
    """Do whatever happens before `RanksState.until`, or up to ends of which somebody is told.

    Returns `DONE`, `LASTS`, or what the loop of `RanksState.rank` asks for. The caller does that,
    and calls again.
    """
    group = ranks.group[0]
    _look(ranks)
    while True:
        if not group.is_underway:
            if group.has_told or group.next_at >= group.until:
                return DONE
            group.goes_to = nextafter(group.next_at, inf) if group.is_awaited else group.until
            group.is_underway = 1
        asked = _come(ranks)
        if asked != DONE:
            return asked
        is_there = _look(ranks)
        if group.next_at >= group.goes_to:
            group.is_underway = 0
        elif not is_there:
            for rank in range(len(ranks.states)):
                ranks.states[rank].now = max(ranks.states[rank].now, group.next_at)
        elif not _begins(ranks):
            return LASTS


_ROOMS = ("specsim.engine",)
advance = Loop(_advance, types_of(Ranks), name="ranks", rooms=_ROOMS)
find_next = Loop(_find_next, types_of(Ranks), name="ranks", rooms=_ROOMS)


class LockStep:
    """The ranks of one server, which join it as their replicas are made.

    Args:
        dummy_len: Tokens of a dummy pass: one, and drafts where every step verifies some (vLLM
            0.32.0 ``v1/worker/gpu_worker.py execute_dummy_batch``).
    """

    _states: Any

    def __init__(self, costs: StepCosts, dummy_len: int = 1) -> None:
        self._costs = costs
        self._dummy = StepLoad(0, dummy_len, 1, 0, Pieces([dummy_len], [0]))
        # Then each rank's own loop says what its pass takes: a run takes a fifth of the time.
        self._charges_alone = costs.compiled().target is not None and costs.target.waits_for_slowest
        self._ranks: list[Replica] = []
        self._group: Any = np.zeros(1, record_of(RanksState))
        group = self._group
        group["dummy_time"], group["dummy_tokens"] = costs.lock_step_time([self._dummy]), dummy_len
        group["slowest_up_to"] = costs.target.slowest_up_to if self._charges_alone else -inf

    def join(self, replica: Replica) -> Mapping[int, Handler]:
        """Take a replica in; return the verb for which it waits for the others."""
        self._ranks.append(replica)
        limits = replica.table.limits
        limits["charges_alone"], limits["counts_passes"] = self._charges_alone, 1
        self._group["is_awaited"] = limits["announces_ends"]
        self._group["is_async"] = replica.ledger.is_async
        return {CHARGE_FORWARD: partial(_arrive, replica)}

    def keep_states_in(self, states: NDArray[np.void]) -> None:
        """Know where the states of all ranks are side by side."""
        self._states = states

    def has_told(self) -> None:
        """Hear that a rank has told of ends, which may change what happens next outside."""
        self._group["has_told"] = 1

    @cached_property
    def _comes(self) -> Hooks:
        return Hooks([rank.ledger.come for rank in self._ranks])

    @cached_property
    def _pointers(self) -> Pointers:
        return Pointers(Ranks(self._group, self._states, self._comes), advance.types)

    @cached_property
    def _advance(self) -> Bound:
        return advance.bind(self._pointers)

    @cached_property
    def _find_next(self) -> Bound:
        return find_next.bind(self._pointers)

    @property
    def next_at(self) -> float:
        """When any rank would go on by itself; infinite if all wait for requests."""
        self._find_next()
        return float(self._group["next_at"][0])

    @property
    def leader(self) -> Replica:
        """The first rank."""
        return self._ranks[0]

    def advance(self, until: float) -> None:
        """Do whatever happens before an instant, or up to ends of which somebody is told."""
        group = self._group
        group["until"], group["has_told"] = until, 0
        self._bind_anew()
        while (asked := self._advance()) != DONE:
            if asked == LASTS:
                group["pass_time"], group["is_timed"] = self._pass_time(), 1
                continue
            self._ranks[int(group["rank"][0])].answer(asked)
            self._bind_anew()

    def _bind_anew(self) -> None:
        """Take the loops of ranks whose tables others have replaced since."""
        comes = [rank.ledger.come for rank in self._ranks]
        if comes != self._comes.hooks:
            self._comes.replace(comes)

    def _pass_time(self) -> float:
        """Return how long the next pass lasts, as the latency model says."""
        has_step = self._states["pass_state"] == WAITING_FOR_OTHERS
        if not self._charges_alone:
            pairs = zip(self._ranks, has_step, strict=True)
            loads = [
                rank.step.load._replace(pieces=rank.step.pieces()) if is_there else self._dummy
                for rank, is_there in pairs
            ]
            return self._costs.lock_step_time(loads)
        group, states = self._group, self._states
        times = np.where(has_step, states["pass_time"], group["dummy_time"])
        tokens = np.where(has_step, states["pass_tokens"], group["dummy_tokens"])
        return self._costs.time_of_ranks(times.tolist(), tokens.tolist())


def _arrive(rank: Replica) -> bool:
    """Let a rank wait for the others with a step, unless that is empty."""
    num_requests = int(rank.step.record["num_requests"])
    if not rank.step.record["batched_tokens"]:
        rank.verbs.charge_forward()
        return False
    wait_for_others(rank.ledger.records, 0.0, rank.costs.overhead_time(num_requests))
    return True
