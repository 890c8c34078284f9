"""The three schedulers: vLLM V1 synchronous and asynchronous, and vLLM V0's prefill first."""

from typing import final

from oracle.plan import StepPlan
from oracle.scheduler import Scheduler

__all__ = ["AsyncScheduler", "PrefillFirstScheduler", "SyncScheduler"]


@final
class SyncScheduler(Scheduler):
    """vLLM V1 with a step scheduled only when the one before has ended."""

    def _fill(self, plan: StepPlan) -> None:
        self._schedule_running(plan)
        if not plan.preempted:
            self._schedule_waiting(plan)

    def offer_drafts(self, plan: StepPlan, draft_lens: list[int]) -> None:
        """Set the drafts that the next step verifies; a sequence in mid-prefill ignores them."""
        for sequence, draft_len in zip(plan.sequences, draft_lens, strict=True):
            if not sequence.in_chunk:
                sequence.draft_len = draft_len


@final
class AsyncScheduler(Scheduler):
    """vLLM V1 with step n + 1 scheduled while step n runs, as if it accepted everything.

    Source: vLLM 0.32.0 ``v1/core/sched/async_scheduler.py``.
    """

    def _fill(self, plan: StepPlan) -> None:
        self._schedule_running(plan)
        if not plan.preempted:
            self._schedule_waiting(plan)

    def offer_drafts(self, plan: StepPlan, draft_lens: list[int]) -> None:
        """Count the output of this step as in flight and reserve the drafts of the next one."""
        for sequence, verified_len, draft_len in zip(
            plan.sequences, plan.draft_lens, draft_lens, strict=True
        ):
            if not sequence.in_chunk:
                sequence.placeholder_len += 1 + verified_len
                sequence.draft_len = draft_len


@final
class PrefillFirstScheduler(Scheduler):
    """vLLM V0: waiting prompts run first, whole, in a step of their own; decodes wait.

    Drafts are proposed and verified within one step, and their KV slots are reserved beforehand
    as look-ahead slots for every method. The papers of 2024 measured on this scheduler.

    Source: vLLM 0.6 ``core/scheduler.py _schedule_default``.
    """

    def _fill(self, plan: StepPlan) -> None:
        self._schedule_waiting(plan)
        if not plan.sequences:
            self._schedule_running(plan)

    def offer_drafts(self, plan: StepPlan, draft_lens: list[int]) -> None:
        """Add the drafts to the decodes of this very step; a prefill step has none."""
        if plan.prefill_lens:
            return
        last_len = self.limits.kv.max_model_len - 1
        for position, sequence in enumerate(plan.sequences):
            draft_len = min(draft_lens[position], last_len - sequence.computed_len)
            sequence.computed_len += draft_len
            plan.scheduled_lens[position] += draft_len
            plan.draft_lens[position] = draft_len
            plan.batched_tokens += draft_len
