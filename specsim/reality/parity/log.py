"""Logs: a scheduler's decisions, step by step, written and compared."""

from dataclasses import dataclass
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from specsim.core.errors import TraceError
from specsim.core.request import Request
from specsim.core.settings import load_mapping
from specsim.engine.integrity import free_order
from specsim.engine.table import FINISHED, NO_BLOCK, WAITING, Table
from specsim.engine.view import StepView


def load_log(path: Path) -> dict[str, Any]:
    """Return a recorded log from its JSON file; a TraceError if it is none."""
    log = load_mapping(path, TraceError)
    for field in ("steps", "requests"):
        rows = log.get(field)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TraceError(f"{path}: '{field}' is not a list of objects; is it a recorded log?")
    return log


class LogWriter:
    """Writes the log in the format of the recordings (which explain its fields)."""

    def __init__(self, requests: list[Request], *, has_groups: bool = False) -> None:
        self.steps: list[dict[str, Any]] = []
        self.ended: dict[int, dict[str, Any]] = {}
        self._requests = requests
        self._has_groups = has_groups  # whether block numbers are lists by KV cache group
        self._first_step: dict[int, int] = {}
        self._first_token: dict[int, int] = {}
        self._cached: dict[int, list[int]] = {}  # prefix-cache hit of each admission
        self._following = b""  # the free queue as last written
        self._free = [0, 0]

    def scheduled(self, step: StepView) -> None:
        index, requests = int(step.record["index"]), step.requests.tolist()
        is_new, is_resumed = step["is_admitted"].tolist(), step["is_resumed"].tolist()
        starts, asked = step["start"].tolist(), step["asked_len"].tolist()
        for request, new, resumed, start in zip(requests, is_new, is_resumed, starts, strict=True):
            if new or resumed:
                self._cached.setdefault(request, []).append(start)
            if new:
                self._first_step[request] = index
        rows = zip(
            map(self._id, requests),
            step["scheduled_len"].tolist(),
            step["draft_len"].tolist(),
            starts,
            self._num_blocks(step),
            strict=True,
        )
        skips = {"skip_drafts": True} if step.record["skips_drafts"] else {}
        self.steps.append(
            {
                "i": index,
                "t": int(step.record["scheduled_at"]),
                "t1": None,
                "sched": [list(row) for row in rows],
                "new": list(map(self._id, compress(requests, is_new))),
                "resumed": list(map(self._id, compress(requests, is_resumed))),
                "preempted": self._preempted(step.table, index),
                "K": asked[0] if asked else int(step.table.limits["max_draft_len"][0]),
                "s": self._state(step.table),
                **skips,
            }
        )

    def delivered(self, step: StepView) -> None:
        ended_at = int(step.record["ended_at"])
        requests, emitted_lens = step.requests.tolist(), step["emitted_len"].tolist()
        rows = list(zip(requests, emitted_lens, step["accepted_len"].tolist(), strict=True))
        status = step.of_sequences("status").tolist()
        ended = [
            (request, row)
            for request, emitted_len, row, where in zip(
                requests, emitted_lens, step.rows.tolist(), status, strict=True
            )
            if where == FINISHED and emitted_len
        ]
        self.steps[int(step.record["index"])] |= {
            "t1": ended_at,
            "u": self._state(step.table),
            "out": [[self._id(r), emitted, accepted] for r, emitted, accepted in rows if emitted],
            "finished": [self._id(request) for request, _ in ended],
        }
        for request, emitted, _ in rows:
            if emitted:
                self._first_token.setdefault(request, ended_at)
        for request, row in ended:
            self.ended[request] = self._request_row(step.table, request, row, ended_at)

    def _request_row(self, table: Table, request: int, row: int, ended_at: int) -> dict[str, Any]:
        sequence: Any = table.sequences[row]
        cached = self._cached[request]
        return {
            "id": self._id(request),
            "arrival_ns": self._requests[request].arrived_at,
            "first_step": self._first_step[request],
            "first_token_ns": self._first_token[request],
            "finish_ns": ended_at,
            "preemptions": int(sequence["preemptions"]),
            "cached": cached[0],
            "out": int(sequence["known_len"] - sequence["prompt_len"]),
            "reason": "length",
            "recomputed_hits": cached[1:],
        }

    def _id(self, request: int) -> str:
        return self._requests[request].id

    def _num_blocks(self, step: StepView) -> list[int] | list[list[int]]:
        """Return how many blocks each sequence of a step holds, without null blocks."""
        holdings, num_groups = step.table.holdings, int(step.table.limits["num_groups"][0])
        tables_at = step.of_sequences("tables_at")[:, np.newaxis] + np.arange(num_groups)
        places = np.arange(step.table.tables.shape[1])
        is_held = places < holdings["num_blocks"][tables_at][..., np.newaxis]
        held = (is_held & (step.table.tables[tables_at] != NO_BLOCK)).sum(axis=-1)
        numbers: list[Any] = (held if self._has_groups else held[:, 0]).tolist()
        return numbers

    def _preempted(self, table: Table, index: int) -> list[str]:
        """Return the preempted requests of a step, in order."""
        sequences = table.sequences
        is_mine = (sequences["status"] == WAITING) & (sequences["preempted_in"] == index)
        mine = sequences[is_mine]
        in_turn = mine["request"][np.argsort(mine["preempted_as"])]
        return [self._id(request) for request in in_turn.tolist()]

    def _state(self, table: Table) -> list[int]:
        following = table.blocks["following"].tobytes()
        if following != self._following:  # walking along the queue takes most of the time
            free, names = free_order(table), _names(len(table.blocks))
            crc = crc32(",".join([names[block] for block in free]).encode())
            self._following, self._free = following, [len(free), crc]
        num_waiting = int(sum(table.state[n][0] for n in ("num_waiting", "num_loading")))
        return [int(table.state["num_running"][0]), num_waiting, *self._free]


@cache
def _names(num_blocks: int) -> list[str]:
    """Return the numbers of blocks as text; cached for thousands of steps."""
    return list(map(str, range(num_blocks)))


@dataclass(frozen=True)
class Difference:
    """The first place where two logs disagree."""

    step: int | None
    request: str | None
    field: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        where = f"request {self.request}" if self.step is None else f"step {self.step}"
        if self.step is not None and self.request is not None:
            where += f", request {self.request}"
        return f"{where}, field {self.field}: ours {self.ours!r}, theirs {self.theirs!r}"


def compare_logs(ours: dict[str, Any], theirs: dict[str, Any]) -> Difference | None:
    """Return the first difference between our log and a recorded one, or None."""
    for number, (our_step, their_step) in enumerate(
        zip(ours["steps"], theirs["steps"], strict=False)
    ):
        for field in {**their_step, **our_step}:
            if our_step.get(field) != their_step.get(field):
                return _step_difference(number, field, our_step.get(field), their_step.get(field))
    counts = len(ours["steps"]), len(theirs["steps"])
    if counts[0] != counts[1]:
        return Difference(min(counts), None, "number of steps", *counts)
    our_rows = {row["id"]: row for row in ours["requests"]}
    their_rows = {row.get("id"): row for row in theirs["requests"]}
    for name in {**their_rows, **our_rows}:
        ours_of, theirs_of = our_rows.get(name, {}), their_rows.get(name, {})
        for field in {**theirs_of, **ours_of}:
            if ours_of.get(field) != theirs_of.get(field):
                return Difference(None, name, field, ours_of.get(field), theirs_of.get(field))
    return None


def _step_difference(number: int, field: str, ours: Any, theirs: Any) -> Difference:
    """Return the difference at the request in which two lists of rows differ."""
    if field not in ("sched", "out"):
        return Difference(number, None, field, ours, theirs)
    names = ("id", "n", "s", "c", "b") if field == "sched" else ("id", "tokens", "accepted")
    for our_row, their_row in zip(ours, theirs if isinstance(theirs, list) else (), strict=False):
        if not isinstance(their_row, list) or len(their_row) != len(names):
            return Difference(number, None, field, our_row, their_row)
        for name, our_value, their_value in zip(names, our_row, their_row, strict=True):
            if our_value != their_value:
                return Difference(number, their_row[0], f"{field}.{name}", our_value, their_value)
    return Difference(number, None, field, ours, theirs)
