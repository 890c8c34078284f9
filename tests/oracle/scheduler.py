"""The scheduler of vLLM V1, rule by rule.

Source: vLLM 0.32.0 ``v1/core/sched/scheduler.py`` and ``async_scheduler.py``, re-implemented from
a description of their behaviour and compared step by step with recordings of the real one
(``specsim parity``). One text-only decoder model, one full-attention KV cache, no pipeline
parallelism.

The scheduler has no clock and draws no random number: whoever drives it says how long a step took
and how many drafts survived.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from oracle.grouped import GroupedKVCache, Windows
from oracle.kv_cache import KVCache, KVLimits
from oracle.plan import StepPlan
from oracle.sequence import NEVER, Sequence
from oracle.waiting import FcfsQueue, PriorityQueue, WaitingQueue
from specsim.core.request import Request

__all__ = ["Scheduler", "SchedulerLimits"]


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Everything that bounds a step, in vLLM's own terms."""

    max_num_scheduled_tokens: int
    max_num_batched_tokens: int
    max_num_running: int
    """vLLM's max_num_seqs, or max_num_active_seqs where that is given."""
    kv: KVLimits
    windows: Windows | None = None
    """Of a model whose layers differ."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    max_draft_len: int = 0
    """Longest draft, tokens; 0 without speculation."""
    draft_slots: int = 0
    """Input slots that the drafting method takes per scheduled sequence."""
    pads_admissions: bool = False
    """Whether an admission that has one token to compute is padded with dummy drafts."""
    max_loras: int | None = None
    """LoRA adapters that the sequences of a step may be for."""


class Scheduler(ABC):
    """What every scheduler shares: the queues, admission, preemption and the running loop.

    Drive it like this::

        scheduler.add(request, now)
        plan = scheduler.schedule()
        scheduler.offer_drafts(plan, draft_lens)   # before the step ends, or after the update
        scheduler.update(plan, accepted_lens)

    Parameters
    ----------
    limits : SchedulerLimits
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.kv = (
            GroupedKVCache(limits.kv, limits.windows) if limits.windows else KVCache(limits.kv)
        )
        self.running: list[Sequence] = []
        """In order of admission."""
        self.waiting: WaitingQueue = PriorityQueue() if limits.policy == "priority" else FcfsQueue()
        self.num_steps = 0
        self._has_unflushed = False

    @property
    def has_unfinished(self) -> bool:
        """Whether any request runs or waits."""
        return bool(self.running or self.waiting)

    @property
    def has_requests(self) -> bool:
        """Whether any request runs, waits, or ended since the last `schedule`.

        vLLM's engine loop schedules once more, possibly an empty batch, to flush finished ids.
        """
        return self.has_unfinished or self._has_unflushed

    def add(self, request: Request, arrived_at: float) -> Sequence:
        """Queue a request.

        Parameters
        ----------
        request : Request
        arrived_at : float
            Instant, in the driver's unit of time; it breaks ties of priority.

        Returns
        -------
        Sequence
        """
        sequence = Sequence(request, arrived_at, self.limits.kv.max_model_len)
        self.waiting.add(sequence)
        return sequence

    def schedule(self) -> StepPlan:
        """Decide the next step and count its tokens as computed.

        Returns
        -------
        StepPlan
            Empty if nothing can run.
        """
        limits = self.limits
        plan = StepPlan(
            self.num_steps,
            tokens_left=limits.max_num_scheduled_tokens,
            inputs_left=limits.max_num_batched_tokens,
            piece_limit=self._piece_limit(),
        )
        self._fill(plan)
        plan.count_tokens()
        for sequence, scheduled_len in zip(plan.sequences, plan.scheduled_lens, strict=True):
            sequence.in_flight_len += scheduled_len
        self.num_steps += 1
        self._has_unflushed = False
        return plan

    @abstractmethod
    def _fill(self, plan: StepPlan) -> None:
        """Put running and waiting sequences into the plan."""

    @abstractmethod
    def offer_drafts(self, plan: StepPlan, draft_lens: list[int]) -> None:
        """Give the sequences of a step their next drafts, one length per sequence of the plan."""

    def update(self, plan: StepPlan, accepted_lens: Iterable[int]) -> list[Sequence]:
        """Take in what a step produced; sets `plan.emitted_lens`.

        Output that comes back for a sequence that ended or was preempted meanwhile (asynchronous
        scheduling) is dropped or delivered, as in vLLM: delivered after a preemption, but without
        touching the counters that the preemption reset.

        Parameters
        ----------
        plan : StepPlan
            Steps are updated in the order in which they were scheduled.
        accepted_lens : iterable of int, tokens
            Accepted drafts, one entry per sequence of the plan.

        Returns
        -------
        list of Sequence
            Those that ended, in scheduling order.
        """
        ended: list[Sequence] = []
        for sequence, scheduled_len in zip(plan.sequences, plan.scheduled_lens, strict=True):
            sequence.in_flight_len -= scheduled_len
        index, partial, emitted_lens = plan.index, plan.partial, plan.emitted_lens
        for sequence, draft_len, accepted_len in zip(
            plan.sequences, plan.draft_lens, accepted_lens, strict=True
        ):
            if sequence.is_finished or (partial and sequence in partial):
                emitted_lens.append(0)
                continue
            emitted_len = accepted_len + 1
            known_len = sequence.known_len + emitted_len
            if known_len >= sequence.max_len:
                emitted_len -= known_len - sequence.max_len
                known_len = sequence.max_len
                ended.append(sequence)
            sequence.known_len = known_len
            emitted_lens.append(emitted_len)
            if sequence.preempted_in < index:
                rejected_len = draft_len - accepted_len
                sequence.computed_len -= rejected_len
                if sequence.placeholder_len:
                    sequence.placeholder_len -= rejected_len + emitted_len
                    settled_len = sequence.computed_len - sequence.placeholder_len
                    if settled_len >= sequence.next_publish_len:
                        self.kv.publish(sequence, settled_len)
            if known_len == sequence.max_len:
                self._finish(sequence)
        if ended:
            self.running = [sequence for sequence in self.running if not sequence.is_finished]
        return ended

    def _schedule_running(self, plan: StepPlan) -> None:
        slots, lookahead_len = self.limits.draft_slots, self.limits.kv.lookahead_len
        for sequence in tuple(self.running):
            if plan.tokens_left <= 0 or plan.inputs_left <= slots:
                break
            if not sequence.is_running:
                continue  # preempted a moment ago
            scheduled_len = self._next_piece(plan, sequence)
            if scheduled_len <= 0:
                continue
            end_len = sequence.computed_len + scheduled_len
            has_room = end_len + lookahead_len <= sequence.capacity_len
            has_room = has_room or self.kv.extend(sequence, end_len)
            if not has_room and not self._make_room(plan, sequence, end_len):
                break
            if end_len >= sequence.next_publish_len:
                self.kv.publish(sequence, end_len)
            known_len = sequence.known_len + sequence.placeholder_len
            draft_len = max(0, end_len - known_len) if sequence.draft_len else 0
            sequence.draft_len = 0
            if sequence.in_chunk or end_len < known_len:
                self._note_chunk(plan, sequence, scheduled_len, is_partial=end_len < known_len)
            plan.sequences.append(sequence)
            plan.scheduled_lens.append(scheduled_len)
            plan.draft_lens.append(draft_len)
            sequence.computed_len = end_len
            plan.tokens_left -= scheduled_len
            plan.inputs_left -= scheduled_len + slots

    def _next_piece(self, plan: StepPlan, sequence: Sequence) -> int:
        """Return how many tokens a running sequence may compute; 0 or less if none."""
        computed_len, placeholder_len = sequence.computed_len, sequence.placeholder_len
        if placeholder_len and computed_len + 2 - placeholder_len >= sequence.requested_len:
            return 0  # its end is already certain
        return min(
            sequence.known_len + placeholder_len + sequence.draft_len - computed_len,
            plan.piece_limit,
            plan.tokens_left,
            plan.inputs_left - self.limits.draft_slots,
            # One position stays free for the sampled token.
            self.limits.kv.max_model_len - 1 - computed_len,
        )

    def _note_chunk(
        self, plan: StepPlan, sequence: Sequence, scheduled_len: int, *, is_partial: bool
    ) -> None:
        if sequence.in_chunk:
            plan.has_chunk = True
            plan.prefill_lens[sequence] = scheduled_len
        sequence.in_chunk = is_partial
        if is_partial:
            plan.partial.add(sequence)

    def _piece_limit(self) -> int:
        """Return the longest piece that any sequence may get (vLLM: long prefill threshold)."""
        threshold = self.limits.long_prefill_token_threshold
        eligible = len(self.running) + len(self.waiting)
        if threshold == 0 or eligible <= 1:
            return NEVER
        if self.limits.long_prefill_token_threshold_adaptive:
            return max(threshold, self.limits.max_num_batched_tokens // eligible)
        return threshold

    def _make_room(self, plan: StepPlan, sequence: Sequence, end_len: int) -> bool:
        """Preempt until the blocks of `sequence` are there; False if it had to go itself."""
        while True:
            victim = self._victim()
            self.running.remove(victim)
            withdrawn_len = plan.withdraw(victim)
            if withdrawn_len is not None:
                plan.tokens_left += withdrawn_len
                plan.inputs_left += withdrawn_len + self.limits.draft_slots
            self._preempt(plan, victim)
            if victim is sequence:
                return False
            if self.kv.extend(sequence, end_len):
                return True

    def _victim(self) -> Sequence:
        if self.limits.policy == "fcfs":
            return self.running[-1]
        return max(self.running, key=lambda s: (s.request.priority, s.arrived_at))

    def _preempt(self, plan: StepPlan, victim: Sequence) -> None:
        self.kv.release(victim)
        victim.is_running = False
        victim.computed_len = 0
        victim.draft_len = 0
        victim.placeholder_len = 0
        victim.num_preemptions += 1
        victim.preempted_in = plan.index
        self.waiting.put_back(victim)
        plan.preempted.append(victim)

    def _schedule_waiting(self, plan: StepPlan) -> None:
        limits = self.limits
        plan.num_running_scheduled = len(plan.sequences)
        while (
            self.waiting
            and plan.tokens_left > 0
            and plan.inputs_left > limits.draft_slots
            and len(self.running) < limits.max_num_running
        ):
            sequence = self._next_waiting(plan)
            if sequence is None:
                break
            hit = self.kv.cached_prefix(sequence)
            cached_len = self.kv.hit_len(hit)
            scheduled_len = self._first_piece(plan, sequence.known_len - cached_len, cached_len)
            if scheduled_len == 0 or not self.kv.admit(
                sequence, hit, scheduled_len, is_busy=bool(self.running)
            ):
                break
            self._admit(plan, sequence, cached_len, scheduled_len)

    def _next_waiting(self, plan: StepPlan) -> Sequence | None:
        """Return the first whose adapter the step may serve; those before it keep their places."""
        most = self.limits.max_loras
        served = {each.request.adapter for each in plan.sequences} - {0}
        if most is None or len(served) < most:
            return self.waiting.peek()
        allowed = served | {0}
        return next((each for each in self.waiting if each.request.adapter in allowed), None)

    def _first_piece(self, plan: StepPlan, missing_len: int, cached_len: int) -> int:
        """Return how many tokens the next admission may compute; 0 if it has to wait."""
        limits = self.limits
        budget = min(plan.tokens_left, plan.inputs_left - limits.draft_slots)
        padded_len = 1 + limits.max_draft_len
        if (
            limits.pads_admissions
            and missing_len == 1
            and not plan.has_chunk
            and (plan.num_running_scheduled or cached_len)
            and cached_len + padded_len + 1 <= limits.kv.max_model_len
        ):
            # Keeps the batch uniform for the CUDA graph; vLLM rather waits than admits unpadded.
            return padded_len if padded_len <= budget else 0
        piece_len = min(missing_len, plan.piece_limit)
        if piece_len > budget and not limits.enable_chunked_prefill:
            return 0
        return min(piece_len, budget)

    def _admit(
        self, plan: StepPlan, sequence: Sequence, cached_len: int, scheduled_len: int
    ) -> None:
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.is_running = True
        (plan.resumed if sequence.cached_lens else plan.admitted).append(sequence)
        sequence.cached_lens.append(cached_len)
        sequence.computed_len = cached_len + scheduled_len
        draft_len = max(0, sequence.computed_len - sequence.known_len)
        if draft_len:
            plan.padded.add(sequence)
        sequence.in_chunk = sequence.computed_len < sequence.known_len
        if sequence.in_chunk:
            plan.partial.add(sequence)
        plan.prefill_lens[sequence] = scheduled_len
        plan.sequences.append(sequence)
        plan.scheduled_lens.append(scheduled_len)
        plan.draft_lens.append(draft_len)
        plan.tokens_left -= scheduled_len
        plan.inputs_left -= scheduled_len + self.limits.draft_slots

    def _finish(self, sequence: Sequence) -> None:
        """Free the blocks in place; a running sequence leaves its list after the update."""
        if not sequence.is_running:
            self.waiting.remove(sequence)
        self.kv.release(sequence)
        sequence.is_finished = True
        sequence.is_running = False
        self._has_unflushed = True
