"""The invariants of an engine: blocks and tokens conserved, times in order."""

from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from specsim.core.errors import InvariantError
from specsim.core.step import Ints
from specsim.engine.table import (
    BLOCKS_READ,
    FINISHED,
    LOADED,
    LOADING,
    NO_BLOCK,
    NO_KEY,
    RUNNING,
    WAITING,
    Table,
)
from specsim.engine.view import StepView

_THOROUGH = 100  # blocks of a pool that is small enough to be looked at whole in every step


def free_order(table: Table) -> list[int]:
    """Return the free queue of blocks, the next to be handed out first."""
    order: list[int] = []
    following = table.blocks["following"].tolist()
    number = following[NO_BLOCK]
    for _ in following:  # a broken queue may never end
        if number == NO_BLOCK:
            break
        order.append(number)
        number = following[number]
    return order


def check_integrity(table: Table, *, in_step: bool) -> None:
    """Raise unless blocks and tokens are conserved.

    Every call looks at every running sequence and its blocks; the larger the pool, the rarer the
    calls that look at the whole of it. `in_step`: a step's output is still to come.

    Raises:
        InvariantError: Names the equation that failed.
    """
    state, sequences = table.state, table.sequences
    status, tables_at = sequences["status"], sequences["tables_at"]
    # Few rows do more than wait, so that lists of them take less time than arrays of all.
    rows = ((status > WAITING) | (tables_at >= 0)).nonzero()[0]
    kinds = dict(zip(rows.tolist(), status[rows].tolist(), strict=True))
    running = table.running[: int(state["num_running"][0])].tolist()
    if sorted(running) != [row for row, kind in kinds.items() if kind == RUNNING]:
        raise InvariantError("the running list is not the sequences that run")
    places = zip(kinds.items(), tables_at[rows].tolist(), strict=True)
    holding = [row for (row, kind), place in places if kind != RUNNING and place >= 0]
    held = _blocks_of(table, [*running, *holding])
    _check_held(table, held)
    _check_loading(table, kinds, holding)
    if (state["num_steps"][0] + 1) % (1 + len(table.blocks) // _THOROUGH) == 0:
        _check_free(table, held)
    if running:
        slack = 1 + int(table.limits["max_draft_len"][0]) if in_step else 0
        _check_running(table, np.array(running), slack)
    waiting = (status == WAITING).nonzero()[0]
    if len(waiting) != state["num_waiting"][0]:
        raise InvariantError("the queue is not the sequences that wait")
    if not len(waiting):
        return
    holds = tables_at[waiting] != -1
    holds &= sequences["in_flight_len"][waiting] == 0  # blocks of others come back with their step
    holds &= sequences["known_len"][waiting] > 1  # see `specsim.engine.loading.let_wait`
    if holds.any() or sequences["computed_len"][waiting].any():
        raise InvariantError("a sequence waits but holds blocks or computed tokens")


def _blocks_of(table: Table, rows: list[int]) -> list[int]:
    """Return the blocks of some sequences in all groups, but for those that have left a window."""
    if not rows:
        return []
    groups = range(int(table.limits["num_groups"][0]))
    places = [first + n for first in table.sequences["tables_at"][rows].tolist() for n in groups]
    begins, ends = (table.holdings[name][places] for name in ("null_blocks", "num_blocks"))
    held: list[int] = []
    for place, begin, end in zip(places, begins.tolist(), ends.tolist(), strict=True):
        held += table.tables[place, begin:end].tolist()
    return [block for block in held if block != NO_BLOCK]  # states leave gaps


def _check_loading(table: Table, kinds: dict[int, int], holding: list[int]) -> None:
    """Raise unless whoever holds blocks without running loads, or has ended and is kept.

    `kinds` is the status of rows that do more than wait.
    """
    sequences = table.sequences
    loading = table.loading[: int(table.state["num_loading"][0])].tolist()
    if sorted(loading) != [row for row, kind in kinds.items() if kind in (LOADING, LOADED)]:
        raise InvariantError("the rows that load are not the sequences that do")
    for row in loading:
        held = table.holdings["num_blocks"][sequences["tables_at"][row]]
        if sequences["computed_len"][row] > held * table.groups["block_size"][0]:
            raise InvariantError(f"row {row} loads more tokens than its blocks hold")
    for row in holding:
        is_kept = any(sequences[name][row] for name in ("is_sending", "fence", "in_flight_len"))
        if kinds[row] == FINISHED and not is_kept:
            raise InvariantError(f"row {row} has ended and holds blocks that nobody will read")
    free = int(table.state["num_free_tables"][0])
    if len(holding) + int(table.state["num_running"][0]) + free != table.limits["most_holding"]:
        raise InvariantError("sequences that hold blocks + free block tables != block tables")


def _check_held(table: Table, held: list[int]) -> None:
    """Raise unless the blocks in use and the free ones add up, and holders are counted right."""
    blocks = table.blocks
    used, free = len(set(held)), int(table.state["num_free"][0])
    if used + free + 1 != len(blocks):
        raise InvariantError(
            f"blocks used ({used}) + free ({free}) + null (1) != total ({len(blocks)})"
        )
    ids, counts = np.sort(np.array(held, dtype=np.int64)), np.ones(used, dtype=np.int64)
    if used < len(held):
        ids, counts = np.unique(ids, return_counts=True)
    kept = np.where(blocks["key"][ids] != NO_KEY, blocks["holders"][ids], 1)
    for place in (counts != kept).nonzero()[0]:
        raise InvariantError(
            f"block {ids[place]}: {counts[place]} sequences hold it, kept is {kept[place]}"
        )


def _check_free(table: Table, held: list[int]) -> None:
    """Raise unless no block is in two places, and every published block can be found.

    Looks at every block of the pool, which `_check_held` does not.
    """
    blocks = table.blocks
    used, free = set(held), set(free_order(table))
    if used & free or len(used) + len(free) + 1 != len(blocks):
        raise InvariantError("a block is used and free, or twice in the free queue")
    found, next_alike = [], blocks["next_alike"].tolist()
    for first in table.chains[table.chains != NO_BLOCK].tolist():
        number = first
        while number != NO_BLOCK:
            found.append(number)
            number = next_alike[number]
    published = (blocks["key"] != NO_KEY).nonzero()[0].tolist()
    if sorted(found) != published:
        raise InvariantError(
            f"published blocks ({len(published)}) != blocks found by key ({len(found)})"
        )


def _check_running(table: Table, rows: Ints, slack: int) -> None:
    block_sizes = table.groups["block_size"]
    names = ("tables_at", "known_len", "computed_len", "placeholder_len", "prompt_len", "max_len")
    # By column: to copy whole rows takes as long as all the rest.
    running = {name: table.sequences[name][rows] for name in (*names, "capacity_len", "in_chunk")}
    tables_at = running["tables_at"][:, np.newaxis] + np.arange(len(block_sizes))
    room = (table.holdings["num_blocks"][tables_at] * block_sizes).min(axis=1)
    # The one block of a state ends where requests do at the latest, which need end no other block.
    capacity = np.minimum(running["capacity_len"], table.limits["max_model_len"])
    computed = running["computed_len"]
    room = np.minimum(room, table.limits["max_model_len"])
    known, has_windows = running["known_len"], bool(table.limits["has_windows"][0])
    # All but the last known token are computed, and everything in flight is counted.
    ahead = computed - (known + running["placeholder_len"] - 1)
    wrong = {
        # It is less where a block will leave a window before.
        "blocks x block_size != room": room < capacity if has_windows else room != capacity,
        "computed tokens do not fit its blocks": (computed <= 0) | (computed > room),
        "runs outside [prompt, end)": (
            (known < running["prompt_len"]) | (known >= running["max_len"])
        ),
        "computed tokens != known + in flight - 1": (
            (ahead > slack) | ((ahead < 0) & (running["in_chunk"] == 0))
        ),
    }
    if not reduce(or_, wrong.values()).any():
        return
    why = next(why for why, is_wrong in wrong.items() if is_wrong.any())
    sequence = table.sequences[rows[wrong[why]][0]]
    raise InvariantError(
        f"request {sequence['request']} ({sequence['computed_len']} computed of "
        f"{sequence['known_len']} known + {sequence['draft_len']} drafts, "
        f"{sequence['placeholder_len']} in flight, room for {sequence['capacity_len']}, "
        f"ends at {sequence['max_len']}): {why}"
    )


class IntegrityCheck:
    """Observer that raises as soon as blocks, tokens or times contradict each other.

    `is_alone`: its replica waits for no other before a forward pass.
    """

    def __init__(self, *, is_alone: bool = True) -> None:
        self._is_alone = is_alone
        self._last_end = self._scheduled_at = float("-inf")
        self._num_seen = 0
        """Arrivals in the buffer that an earlier step has seen."""

    def _check_at_work(self, table: Table, scheduled_at: float) -> None:
        """Raise if the replica has stood still since something came that it may work on."""
        num_seen, before = self._num_seen, max(self._last_end, self._scheduled_at)
        self._num_seen, self._scheduled_at = int(table.state["first_arrival"][0]), scheduled_at
        if table.state["in_flight"][0] or not self._is_alone or scheduled_at == before:
            return
        if num_seen > self._num_seen:  # the buffer has been emptied meanwhile
            num_seen = 0
        came: Any = table.arrivals[num_seen : self._num_seen]
        came_at = came["at"][came["kind"] != BLOCKS_READ].min(initial=scheduled_at)
        if max(came_at, before) < scheduled_at:
            raise InvariantError(
                f"the engine stood still from {max(came_at, before)} to {scheduled_at}, and work "
                "waited"
            )

    def scheduled(self, step: StepView) -> None:
        """Check what the schedule left."""
        table = step.table
        self._check_at_work(table, float(step.record["scheduled_at"]))
        check_integrity(table, in_step=True)
        limits = table.limits
        if (step["verified_len"] > step["draft_len"]).any():
            raise InvariantError("a step verifies more than was drafted")
        dropped = int((step["draft_len"] - step["verified_len"]).sum())
        batched_tokens = int(step.record["batched_tokens"])
        if batched_tokens + dropped != step["scheduled_len"].sum():
            raise InvariantError("batched tokens of the step != sum over its sequences")
        # vLLM V0 pays for prompts only; its drafts come on top of the budget.
        most = int(limits["max_num_scheduled_tokens"][0])
        if batched_tokens > most and not step.record["drafts_on_top"]:
            raise InvariantError(
                f"batched tokens ({batched_tokens}) > max_num_scheduled_tokens ({most})"
            )
        running, most_run = int(table.state["num_running"][0]), int(limits["max_num_running"][0])
        if running > most_run:
            raise InvariantError(f"running ({running}) > max_num_seqs ({most_run})")

    def delivered(self, step: StepView) -> None:
        """Check what the update left."""
        check_integrity(step.table, in_step=False)
        ended_at, scheduled_at = float(step.record["ended_at"]), float(step.record["scheduled_at"])
        if not self._last_end <= ended_at or not scheduled_at <= ended_at:
            raise InvariantError(
                f"step {step.record['index']} ends at {ended_at}, before it was scheduled "
                f"({scheduled_at}) or the one before it ended ({self._last_end})"
            )
        self._last_end = ended_at
        sequences = step.table.sequences
        for row in step.rows[(step.of_sequences("status") == FINISHED) & (step["emitted_len"] > 0)]:
            sequence: Any = sequences[row]
            first = sequence["first_scheduled_at"]
            if not sequence["arrived_at"] <= first <= ended_at:
                raise InvariantError(
                    f"request {sequence['request']}: arrived at {sequence['arrived_at']}, was "
                    f"scheduled at {first} and ended at {ended_at}"
                )
            if sequence["known_len"] != sequence["max_len"]:
                raise InvariantError(
                    f"request {sequence['request']}: ended at {sequence['known_len']} tokens"
                )
