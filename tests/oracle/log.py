"""LogWriter: what the scheduler did, in the format of the recordings."""

from functools import cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

from oracle.scheduler import Scheduler
from oracle.sequence import Sequence

if TYPE_CHECKING:
    from oracle.engine import Step

__all__ = ["LogWriter"]


class LogWriter:
    """Writes what happens; checks that no block is lost."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.ended: dict[int, dict[str, Any]] = {}
        self._first_step: dict[int, int] = {}
        self._first_token: dict[int, int] = {}

    def scheduled(self, scheduler: Scheduler, step: "Step") -> None:
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
                    [s.request.id, length, drafts, s.computed_len - length, _held(s)]
                    for s, length, drafts in rows
                ],
                "new": [s.request.id for s in plan.admitted],
                "resumed": [s.request.id for s in plan.resumed],
                "preempted": [s.request.id for s in plan.preempted],
                "K": step.asked_len,
                "s": self._state(scheduler),
            }
        )

    def updated(self, scheduler: Scheduler, step: "Step", ended: list[Sequence]) -> None:
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
                self._first_token.setdefault(sequence.index, step.ended_at)
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
        pool = scheduler.kv.pool
        held = [scheduler.kv.blocks_of(sequence) for sequence in scheduler.running]
        pool.check_held(held)
        pool.check_free(held)
        free, names = pool.free_order(), _names(pool.num_blocks)
        crc = crc32(",".join([names[block] for block in free]).encode())
        return [len(scheduler.running), len(scheduler.waiting), len(free), crc]


@cache
def _names(num_blocks: int) -> list[str]:
    """Return the numbers of blocks as text, made once: there are thousands of steps."""
    return list(map(str, range(num_blocks)))


def _held(sequence: Sequence) -> int | list[int]:
    """Return the number of blocks, by group where there are several, null blocks left out."""
    if sequence.tables:
        return [sum(block != 0 for block in table) for table in sequence.tables]
    return len(sequence.blocks)
