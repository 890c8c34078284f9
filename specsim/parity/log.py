"""Logs: what a scheduler did, step by step, written and compared."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from specsim.engine.engine_step import EngineStep
from specsim.engine.scheduler import Scheduler
from specsim.engine.sequence import Sequence
from specsim.errors import TraceError
from specsim.settings import load_mapping

__all__ = ["Difference", "LogWriter", "compare_logs", "load_log"]


def load_log(path: Path) -> dict[str, Any]:
    """Return a recorded log from its JSON file.

    Parameters
    ----------
    path : Path

    Returns
    -------
    dict

    Raises
    ------
    TraceError
        The file is missing or is not a log.
    """
    log = load_mapping(path, TraceError)
    for field in ("steps", "requests"):
        rows = log.get(field)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TraceError(f"{path}: '{field}' is not a list of objects; is it a recorded log?")
    return log


class LogWriter:
    """Writes what happens in the format of the recordings (its fields are explained there)."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.ended: dict[int, dict[str, Any]] = {}
        self._first_step: dict[int, int] = {}
        self._first_token: dict[int, int] = {}

    def scheduled(self, scheduler: Scheduler, step: EngineStep) -> None:
        """Append the step."""
        plan = step.plan
        for sequence in plan.admitted:
            self._first_step[sequence.index] = plan.index
        rows = zip(plan.sequences, plan.scheduled_lens, plan.draft_lens, strict=True)
        self.steps.append(
            {
                "i": plan.index,
                "t": step.scheduled_at,
                "t1": None,
                "sched": [
                    [s.request.id, length, drafts, s.computed_len - length, len(s.blocks)]
                    for s, length, drafts in rows
                ],
                "new": [s.request.id for s in plan.admitted],
                "resumed": [s.request.id for s in plan.resumed],
                "preempted": [s.request.id for s in plan.preempted],
                "K": step.asked_lens,
                "s": self._state(scheduler),
            }
        )

    def updated(self, scheduler: Scheduler, step: EngineStep, ended: list[Sequence]) -> None:
        """Complete the step, and the requests that it ended."""
        plan = step.plan
        rows = list(zip(plan.sequences, plan.emitted_lens, step.accepted_lens, strict=True))
        self.steps[plan.index] |= {
            "t1": step.ended_at,
            "u": self._state(scheduler),
            "out": [[s.request.id, emitted, accepted] for s, emitted, accepted in rows if emitted],
            "finished": [s.request.id for s in ended],
        }
        for sequence, emitted, _ in rows:
            if emitted:
                self._first_token.setdefault(sequence.index, int(step.ended_at))
        for sequence in ended:
            self.ended[sequence.index] = {
                "id": sequence.request.id,
                "arrival_ns": sequence.request.arrived_at,
                "first_step": self._first_step[sequence.index],
                "first_token_ns": self._first_token[sequence.index],
                "finish_ns": step.ended_at,
                "preemptions": sequence.num_preemptions,
                "cached": sequence.cached_lens[0],
                "out": sequence.output_len,
                "reason": "length",
                "recomputed_hits": sequence.cached_lens[1:],
            }

    @staticmethod
    def _state(scheduler: Scheduler) -> list[int]:
        free = scheduler.kv.pool.free_order()
        crc = crc32(",".join(map(str, free)).encode())
        return [len(scheduler.running), len(scheduler.waiting), len(free), crc]


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
    """Return the first difference between our log and a recorded one, or None.

    Parameters
    ----------
    ours : dict
        From `run_scenario`.
    theirs : dict
        A recorded log.

    Returns
    -------
    Difference or None
    """
    for number, (our_step, their_step) in enumerate(
        zip(ours["steps"], theirs["steps"], strict=False)
    ):
        for field in their_step:
            if our_step.get(field) != their_step[field]:
                return _step_difference(number, field, our_step.get(field), their_step[field])
    if len(ours["steps"]) != len(theirs["steps"]):
        return Difference(
            min(len(ours["steps"]), len(theirs["steps"])),
            None,
            "number of steps",
            len(ours["steps"]),
            len(theirs["steps"]),
        )
    our_rows = {row["id"]: row for row in ours["requests"]}
    for row in theirs["requests"]:
        our_row = our_rows.get(row["id"], {})
        for field in row:
            if our_row.get(field) != row[field]:
                return Difference(None, row["id"], field, our_row.get(field), row[field])
    return None


def _step_difference(number: int, field: str, ours: Any, theirs: Any) -> Difference:
    """Narrow a difference in a list of per-request rows down to the request."""
    if field not in ("sched", "out"):
        return Difference(number, None, field, ours, theirs)
    names = ("id", "n", "s", "c", "b") if field == "sched" else ("id", "tokens", "accepted")
    for our_row, their_row in zip(ours, theirs, strict=False):
        for name, our_value, their_value in zip(names, our_row, their_row, strict=True):
            if our_value != their_value:
                return Difference(number, their_row[0], f"{field}.{name}", our_value, their_value)
    return Difference(number, None, field, ours, theirs)
