"""Joined: the verbs of `joint` from the engine's table to its desk and back, without Python.

What `specsim.engine.speculation` and `specsim.policies.joint` do, where drafts and their luck lie
in tables and loops can tell what a step costs. It is a loop of its own, not part of the engine's:
it takes as long to compile, and few runs need it.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import Loop, Pointers, inner, types_of
from specsim.core.desk import ByteRows, Ints, Singles
from specsim.core.draft_luck import CONFIDENCES, level_of
from specsim.engine.decide import free_slots_of
from specsim.engine.gather import (
    ACCEPTED_LEN,
    ACCEPTED_TOKENS,
    CONTEXT_TOKENS,
    DECODES,
    DRAFT_LEN,
    DRAFT_TOKENS,
    IN_CHUNK,
    IS_UNDRAFTED,
    KNOWN_LEN,
    PROMPT_LEN,
    REQUEST,
    SIZE,
    UNDRAFTED,
    VERIFIED_LEN,
)
from specsim.engine.order import ASK, OBSERVE
from specsim.engine.sources import DraftTables
from specsim.engine.table import TABLE_TYPES, Table
from specsim.policies._exchange import FREE_SLOTS
from specsim.policies._joining import act
from specsim.policies._joint_desk import (
    DRAFTS,
    DROPS,
    HAS_CONFIDENCES,
    HAS_FOUND,
    HAS_UNDRAFTED,
    IS_OFF,
    JOINING_ROOMS,
    LEARNS,
    MAY_STOP,
    NUM,
    STOPS,
    VERB,
    VERIFIES,
    WIDTH,
    Joining,
)


class _Tables(NamedTuple):
    """The drafts of a run; see `DraftTables`."""

    fates: Annotated[NDArray[np.uint8], 1]
    fate_starts: Ints
    levels: ByteRows
    level_starts: Ints
    steps: Singles
    looks_up: Ints


class Joined(NamedTuple):
    """A replica, what its policy remembers, and the drafts."""

    table: Annotated[Any, Table]
    joining: Annotated[Any, Joining]
    drafts: Annotated[Any, _Tables]


@inner
def _put(joined: Joined, verb: int, size: int) -> None:
    """Put down whom the verb is about."""
    desk, columns = joined.joining, joined.table.columns
    desk.sizes[VERB], desk.sizes[NUM] = verb, size
    for row in range(size):
        desk.requests[row] = columns[REQUEST, row]


@inner
def _put_loads(joined: Joined, context_tokens: int, tokens: int, num: int) -> None:
    """Put down the step that is running, and what that which is decided about decodes."""
    step, trade = joined.table.steps[joined.table.state[0].current], joined.joining.trade
    trade.running[0], trade.running[1] = step.context_tokens, step.batched_tokens
    trade.running[2], trade.running[3] = step.num_requests, step.prefill_tokens
    trade.decodes[0], trade.decodes[1], trade.decodes[2] = context_tokens, tokens, num
    trade.decodes[3] = 0


@inner
def _put_next(joined: Joined) -> None:
    """Put down a next step in which all that decode have one token."""
    sums = joined.table.sums
    _put_loads(joined, sums[CONTEXT_TOKENS] - sums[DECODES], sums[DECODES], sums[DECODES])


@inner
def _leave_out(joined: Joined, size: int) -> None:
    """Settle whom the drafter serves no more."""
    table, desk = joined.table, joined.joining
    current = table.state[0].current
    if not table.steps[current].prefill_tokens and not desk.state[IS_OFF]:
        return
    _put(joined, DROPS, size)
    _put_next(joined)
    if not act(desk):
        return
    for row in range(size):
        if desk.let_go[row]:
            table.sequences[table.entries[current, row].row].is_undrafted = 1


@inner
def _put_confidences(joined: Joined, size: int) -> None:
    """Put down how sure the drafter is of each token of the drafts on the desk."""
    desk, drafts, columns = joined.joining, joined.drafts, joined.table.columns
    width = 0
    for row in range(size):
        width = max(width, desk.draft_lens[row])
    desk.sizes[WIDTH] = width
    for row in range(size):
        request = columns[REQUEST, row]
        position = columns[KNOWN_LEN, row] - columns[PROMPT_LEN, row]
        at = drafts.fate_starts[request] + position
        failed_at = 0
        if position >= 0 and at < drafts.fate_starts[request + 1]:
            failed_at = int(drafts.fates[at])
        first = drafts.level_starts[request] + position
        draft_len = min(desk.draft_lens[row], drafts.level_starts[request + 1] - first)
        for place in range(width):
            level = 0
            if place < draft_len:
                level = level_of(drafts.levels, first, place, failed_at)
            desk.confidences[row * width + place] = drafts.steps[level]


@inner
def _trim(joined: Joined) -> None:
    """Settle what a scheduled step verifies, and whom the drafter will never serve."""
    table, desk, sums = joined.table, joined.joining, joined.table.sums
    current, size = table.state[0].current, table.steps[table.state[0].current].num_requests
    if table.limits[0].leaves_out:
        _leave_out(joined, size)
    if not sums[DRAFT_TOKENS] or not desk.sizes[HAS_CONFIDENCES]:
        return
    _put(joined, VERIFIES, size)
    for row in range(size):
        desk.draft_lens[row] = table.columns[DRAFT_LEN, row]
    _put_confidences(joined, size)
    step = table.steps[current]
    _put_loads(joined, step.context_tokens, 0, sums[DECODES])
    desk.trade.decodes[3] = step.prefill_tokens
    act(desk)
    dropped = sums[DRAFT_TOKENS]
    for row in range(size):
        table.entries[current, row].verified_len = desk.trade.lens[row]
        dropped -= desk.trade.lens[row]
    step.batched_tokens -= dropped
    if not step.drafts_on_top and dropped:
        step.drafter_batched_tokens = step.batched_tokens


@inner
def _ask(joined: Joined) -> None:
    """Decide for how many draft tokens the drafter is run at the end of a step."""
    table, desk, sums = joined.table, joined.joining, joined.table.sums
    current, size, length = table.state[0].current, sums[SIZE], 0
    step, longest = table.steps[current], table.limits[0].max_draft_len
    if table.limits[0].prefill_first and step.prefill_tokens:
        return
    has_undrafted = sums[UNDRAFTED] > 0
    if sums[DECODES] and longest:
        _put(joined, DRAFTS, size)
        for row in range(size):
            desk.in_prefill[row] = table.columns[IN_CHUNK, row] == 1
            desk.is_undrafted[row] = table.columns[IS_UNDRAFTED, row] == 1
        desk.sizes[HAS_FOUND], desk.sizes[HAS_UNDRAFTED] = joined.drafts.looks_up[0], has_undrafted
        if desk.sizes[HAS_FOUND]:
            for row in range(size):
                desk.draft_lens[row] = 0 if desk.in_prefill[row] else longest
            _put_confidences(joined, size)
        desk.trade.limits[FREE_SLOTS] = free_slots_of(table, size)
        _put_next(joined)
        length = act(desk)
        if desk.state[MAY_STOP]:
            length = _stop(joined, size, length)
    for row in range(size):
        entry = table.entries[current, row]
        entry.asked_len = desk.trade.lens[row] if length < 0 else length
        if has_undrafted and table.columns[IS_UNDRAFTED, row] == 1:
            entry.asked_len = 0
        entry.offered_len = entry.asked_len


@inner
def _stop(joined: Joined, size: int, length: int) -> int:
    """Return after how many of so many tokens the drafter stops."""
    desk, columns = joined.joining, joined.table.columns
    for row in range(size):
        is_out = columns[IN_CHUNK, row] == 1 or columns[IS_UNDRAFTED, row] == 1
        desk.draft_lens[row] = 0 if is_out else length
    _put_confidences(joined, size)
    desk.sizes[VERB] = STOPS
    return act(desk)


@inner
def _observe(joined: Joined) -> None:
    """Tell it what became of the drafts of a step, and what the step took."""
    table, desk, sums = joined.table, joined.joining, joined.table.sums
    step, outcome = table.steps[table.state[0].current], joined.joining.trade.outcome
    _put(joined, LEARNS, sums[SIZE])
    for row in range(sums[SIZE]):
        desk.draft_lens[row] = table.columns[VERIFIED_LEN, row]
        desk.accepted_lens[row] = table.columns[ACCEPTED_LEN, row]
    tokens = step.batched_tokens - step.prefill_tokens
    _put_loads(joined, step.context_tokens, tokens, step.num_requests)
    outcome[0], outcome[1] = sums[SIZE], sums[ACCEPTED_TOKENS] + sums[SIZE]
    outcome[2] = step.target_time + step.verified_draft_time + step.overhead_time
    act(desk)


def _act_on_table(joined: Joined) -> int:
    """Do the verb that the replica is at."""
    table = joined.table
    if not table.steps[table.state[0].current].num_requests:
        return 0
    verb = table.order[table.state[0].place]
    if verb == ASK:
        _ask(joined)
    elif verb == OBSERVE:
        _observe(joined)
    else:
        _trim(joined)
    return 0


_ROOMS = ("specsim.engine", "specsim.core.desk", "specsim.core.draft_luck", *JOINING_ROOMS)
_TYPES = {"table": TABLE_TYPES, "joining": types_of(Joining), "drafts": types_of(_Tables)}
act_on_table = Loop(_act_on_table, _TYPES, name="engine-joined", rooms=_ROOMS)


def bound_to(table: Pointers, joining: Pointers, drafts: DraftTables) -> Callable[[], int]:
    """Return what does the verb that a replica is at, on what its policy remembers."""
    looks_up = np.array([drafts.looks_up], dtype=np.int64)
    tables = Pointers(_Tables(*drafts[:4], CONFIDENCES, looks_up), _TYPES["drafts"])
    return act_on_table.bind(Pointers(Joined(table, joining, tables), _TYPES))
