"""The invariants of an engine: blocks and tokens conserved, times in order."""

from specsim.engine.engine_step import EngineStep
from specsim.engine.scheduler import Scheduler
from specsim.engine.sequence import Sequence
from specsim.errors import InvariantError

__all__ = ["IntegrityCheck", "check_integrity"]

_THOROUGH = 100  # blocks of a pool that is small enough to be looked at whole in every step


def check_integrity(scheduler: Scheduler, *, in_step: bool) -> None:
    """Raise unless blocks and tokens are conserved.

    Every call looks at every running sequence and its blocks; the larger the pool, the rarer the
    calls that look at the whole of it.

    Parameters
    ----------
    scheduler : Scheduler
    in_step : bool
        Whether a step has been scheduled whose output is still to come.

    Raises
    ------
    InvariantError
        Names the equation that failed.
    """
    limits = scheduler.limits
    held = [sequence.blocks for sequence in scheduler.running]
    scheduler.kv.pool.check_held(held)
    if scheduler.num_steps % (1 + limits.kv.num_blocks // _THOROUGH) == 0:
        scheduler.kv.pool.check_free(held)
    slack = 1 + limits.max_draft_len if in_step else 0
    for sequence in scheduler.running:
        _check_running(sequence, slack, limits.kv.block_size)
    for sequence in scheduler.waiting:
        if sequence.blocks or sequence.computed_len:
            raise InvariantError(f"{sequence} waits but holds blocks or computed tokens")


def _check_running(sequence: Sequence, slack: int, block_size: int) -> None:
    if len(sequence.blocks) * block_size != sequence.capacity_len:
        raise InvariantError(f"{sequence}: blocks x block_size != {sequence.capacity_len}")
    if not 0 < sequence.computed_len <= sequence.capacity_len:
        raise InvariantError(f"{sequence}: computed tokens do not fit its blocks")
    if not sequence.prompt_len <= sequence.known_len < sequence.max_len:
        raise InvariantError(f"{sequence}: runs outside [prompt, end)")
    # All but the last known token are computed, and everything in flight is counted.
    settled_len = sequence.known_len + sequence.placeholder_len - 1
    ahead = sequence.computed_len - settled_len
    if ahead > slack or (ahead < 0 and not sequence.in_chunk):
        raise InvariantError(
            f"{sequence}: computed tokens ({sequence.computed_len}) != known + in flight - 1 "
            f"({settled_len})"
        )


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
        check_integrity(scheduler, in_step=True)
        plan, limits = step.plan, scheduler.limits
        if any(map(int.__gt__, plan.verified_lens, plan.draft_lens)):
            raise InvariantError("a step verifies more than was drafted")
        dropped = sum(plan.draft_lens) - sum(plan.verified_lens)
        if plan.batched_tokens + dropped != sum(plan.scheduled_lens):
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
        check_integrity(scheduler, in_step=False)
        if not self._last_end <= step.ended_at or not step.scheduled_at <= step.ended_at:
            raise InvariantError(
                f"step {step.plan.index} ends at {step.ended_at}, before it was scheduled "
                f"({step.scheduled_at}) or the one before it ended ({self._last_end})"
            )
        self._last_end = step.ended_at
        for sequence in ended:
            scheduled_at = sequence.first_scheduled_at
            if scheduled_at is None or not sequence.arrived_at <= scheduled_at <= step.ended_at:
                raise InvariantError(
                    f"{sequence}: arrived at {sequence.arrived_at}, was scheduled at "
                    f"{scheduled_at} and ended at {step.ended_at}"
                )
            if sequence.known_len != sequence.max_len:
                raise InvariantError(f"{sequence}: ended at {sequence.known_len} tokens")
