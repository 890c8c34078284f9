"""The invariants of an engine: blocks and tokens conserved, times in order."""

from collections import Counter
from typing import Any

import numpy as np

from specsim.core.errors import InvariantError
from specsim.engine.python_verbs import PythonVerbs
from specsim.engine.table import (
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
    state = table.state
    blocks = table.blocks
    order: list[int] = []
    number = int(state["first_free"][0])
    following = blocks["next_free"].tolist()
    while number != NO_BLOCK and len(order) < len(following):  # a broken queue may be a circle
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
    state = table.state
    sequences = table.sequences
    limits = table.limits
    running = [int(row) for row in table.running[: int(state["num_running"][0])]]
    if sorted(running) != np.flatnonzero(sequences["status"] == RUNNING).tolist():
        raise InvariantError("the running list is not the sequences that run")
    holding = np.flatnonzero((sequences["slot"] >= 0) & (sequences["status"] != RUNNING)).tolist()
    held = [_blocks_of(table, row) for row in [*running, *holding]]
    _check_held(table, held)
    _check_loading(table, holding)
    if state["num_steps"][0] % (1 + len(table.blocks) // _THOROUGH) == 0:
        _check_free(table, held)
    slack = 1 + int(limits["max_draft_len"][0]) if in_step else 0
    for row, blocks in zip(running, held, strict=False):
        if NO_BLOCK in blocks:
            raise InvariantError(f"row {row} holds the null block inside a window")
        _check_running(table, row, slack)
    waiting = sequences[sequences["status"] == WAITING]
    if len(waiting) != state["num_waiting"][0]:
        raise InvariantError("the queue is not the sequences that wait")
    if (waiting["slot"] != -1).any() or waiting["computed_len"].any():
        raise InvariantError("a sequence waits but holds blocks or computed tokens")


def _blocks_of(table: Table, row: int) -> list[int]:
    """Return the blocks of a sequence in all groups, without those that have left a window."""
    first = int(table.sequences["slot"][row])
    held: list[int] = []
    for slot in range(first, first + int(table.limits["num_groups"][0])):
        holding: Any = table.holdings[slot]
        held += table.tables[slot, holding["null_blocks"] : holding["num_blocks"]].tolist()
    return held


def _check_loading(table: Table, holding: list[int]) -> None:
    """Raise unless whoever holds blocks without running loads, or has ended and is kept."""
    sequences = table.sequences
    loading = table.loading[: int(table.state["num_loading"][0])].tolist()
    status = sequences["status"]
    if sorted(loading) != np.flatnonzero(np.isin(status, (LOADING, LOADED))).tolist():
        raise InvariantError("the rows that load are not the sequences that do")
    for row in loading:
        held = table.holdings["num_blocks"][sequences["slot"][row]]
        if sequences["computed_len"][row] > held * table.groups["block_size"][0]:
            raise InvariantError(f"row {row} loads more tokens than its blocks hold")
    for row in holding:
        is_kept = sequences["is_sending"][row] or sequences["in_flight_len"][row]
        if status[row] == FINISHED and not is_kept:
            raise InvariantError(f"row {row} has ended and holds blocks that nobody will read")
    free_slots = int(table.state["num_free_slots"][0])
    if len(holding) + int(table.state["num_running"][0]) + free_slots != table.limits["num_slots"]:
        raise InvariantError("sequences that hold blocks + free slots != slots")


def _check_held(table: Table, held: list[list[int]]) -> None:
    """Raise unless the blocks in use and the free ones add up, and holders are counted right."""
    blocks = table.blocks
    state = table.state
    holders = Counter(block for mine in held for block in mine)
    used, free = len(holders), int(state["num_free"][0])
    if used + free + 1 != len(blocks):
        raise InvariantError(
            f"blocks used ({used}) + free ({free}) + null (1) != total ({len(blocks)})"
        )
    for block, count in holders.items():
        kept = blocks["holders"][block] if blocks["key"][block] != NO_KEY else 1
        if count != kept:
            raise InvariantError(f"block {block}: {count} sequences hold it, kept is {kept}")


def _check_free(table: Table, held: list[list[int]]) -> None:
    """Raise unless no block is in two places, and every published block can be found.

    Looks at every block of the pool, which `_check_held` does not.
    """
    blocks = table.blocks
    used, free = {block for mine in held for block in mine}, free_order(table)
    if used & set(free) or len(used) + len(set(free)) + 1 != len(blocks):
        raise InvariantError("a block is used and free, or twice in the free queue")
    found = []
    for first in table.chains[table.chains != NO_BLOCK].tolist():
        number = first
        while number != NO_BLOCK:
            found.append(number)
            number = int(blocks["next_alike"][number])
    published = np.flatnonzero(blocks["key"] != NO_KEY).tolist()
    if sorted(found) != published:
        raise InvariantError(
            f"published blocks ({len(published)}) != blocks found by key ({len(found)})"
        )


def _check_running(table: Table, row: int, slack: int) -> None:
    sequences = table.sequences
    sequence: Any = sequences[row]
    block_sizes = table.groups["block_size"]
    held = table.holdings["num_blocks"][sequence["slot"] + np.arange(len(block_sizes))]
    room = int((held * block_sizes).min())
    who = (
        f"request {sequence['request']} ({sequence['computed_len']} computed of "
        f"{sequence['known_len']} known + {sequence['draft_len']} drafts, ends at "
        f"{sequence['max_len']})"
    )
    # It is less where a block will leave a window before.
    if room < sequence["capacity_len"] or (
        room > sequence["capacity_len"] and not table.limits["has_windows"][0]
    ):
        raise InvariantError(f"{who}: blocks x block_size != {sequence['capacity_len']}")
    if not 0 < sequence["computed_len"] <= room:
        raise InvariantError(f"{who}: computed tokens do not fit its blocks")
    if not sequence["prompt_len"] <= sequence["known_len"] < sequence["max_len"]:
        raise InvariantError(f"{who}: runs outside [prompt, end)")
    # All but the last known token are computed, and everything in flight is counted.
    settled_len = sequence["known_len"] + sequence["placeholder_len"] - 1
    ahead = sequence["computed_len"] - settled_len
    if ahead > slack or (ahead < 0 and not sequence["in_chunk"]):
        raise InvariantError(
            f"{who}: computed tokens ({sequence['computed_len']}) != known + in flight - 1 "
            f"({settled_len})"
        )


class IntegrityCheck:
    """Observer that raises as soon as blocks, tokens or times contradict each other."""

    def __init__(self) -> None:
        self._last_end = float("-inf")

    def scheduled(self, replica: PythonVerbs, step: StepView) -> None:
        """Check what the schedule left."""
        table = replica.table
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
        if replica.num_running > limits["max_num_running"][0]:
            raise InvariantError(
                f"running ({replica.num_running}) > max_num_seqs ({limits['max_num_running'][0]})"
            )

    def delivered(self, replica: PythonVerbs, step: StepView) -> None:
        """Check what the update left."""
        check_integrity(replica.table, in_step=False)
        ended_at, scheduled_at = float(step.record["ended_at"]), float(step.record["scheduled_at"])
        if not self._last_end <= ended_at or not scheduled_at <= ended_at:
            raise InvariantError(
                f"step {step.record['index']} ends at {ended_at}, before it was scheduled "
                f"({scheduled_at}) or the one before it ended ({self._last_end})"
            )
        self._last_end = ended_at
        sequences = replica.table.sequences
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
