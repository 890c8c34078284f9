"""IntegrityCheck: every invariant of an engine, after every step."""

from specsim.engine.engine import EngineStep
from specsim.engine.scheduler import Scheduler
from specsim.engine.sequence import Sequence
from specsim.errors import InvariantError

__all__ = ["IntegrityCheck"]


class IntegrityCheck:
    """Observer that raises as soon as blocks, tokens or times contradict each other."""

    def __init__(self) -> None:
        self._last_end = float("-inf")

    def scheduled(self, scheduler: Scheduler, step: EngineStep) -> None:
        """Check what the schedule left.

        Raises
        ------
        InvariantError
        """
        scheduler.check_integrity(in_step=True)
        plan, limits = step.plan, scheduler.limits
        if plan.batched_tokens != sum(plan.scheduled_lens):
            raise InvariantError("batched tokens of the step != sum over its sequences")
        # vLLM V0 pays for prompts only; its drafts come on top of the budget.
        if plan.batched_tokens > limits.max_num_scheduled_tokens and not plan.drafts_on_top:
            raise InvariantError(
                f"batched tokens ({plan.batched_tokens}) > max_num_scheduled_tokens "
                f"({limits.max_num_scheduled_tokens})"
            )
        if len(scheduler.running) > limits.max_num_running:
            raise InvariantError(
                f"running ({len(scheduler.running)}) > max_num_seqs ({limits.max_num_running})"
            )

    def updated(self, scheduler: Scheduler, step: EngineStep, ended: list[Sequence]) -> None:
        """Check what the update left.

        Raises
        ------
        InvariantError
        """
        scheduler.check_integrity(in_step=False)
        if not self._last_end <= step.ended_at or not step.scheduled_at <= step.ended_at:
            raise InvariantError(
                f"step {step.plan.index} ends at {step.ended_at}, before it was scheduled "
                f"({step.scheduled_at}) or the one before it ended ({self._last_end})"
            )
        self._last_end = step.ended_at
        for sequence in ended:
            times = (sequence.arrived_at, sequence.first_scheduled_at, step.ended_at)
            if None in times or list(times) != sorted(times):  # type: ignore[type-var]
                raise InvariantError(f"{sequence}: arrival, schedule and end out of order: {times}")
            if sequence.known_len != sequence.max_len:
                raise InvariantError(f"{sequence}: ended at {sequence.known_len} tokens")
