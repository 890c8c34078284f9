"""Engine: one replica, driving its scheduler by a clock in whole nanoseconds.

    schedule -> target forward -> accept -> draft for the next step

At one instant arrivals come before ends of steps: a request that arrives exactly when a step ends
is considered by the next `schedule`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from oracle.log import LogWriter
from oracle.plan import StepPlan
from oracle.scheduler import Scheduler
from oracle.schedulers import AsyncScheduler, PrefillFirstScheduler
from specsim.core.request import Request

__all__ = ["DoesNotEnd", "Engine", "Script"]

_LONGEST = 5_000  # steps after which a run is taken never to end


class DoesNotEnd(Exception):
    """Requests preempt one another for ever, by vLLM's own rules."""


@dataclass(frozen=True)
class Script:
    """Everything that the scheduler does not decide."""

    step_time: Callable[[StepPlan], int]
    """Nanoseconds."""
    draft_len: Callable[[int], int]
    """Tokens to draft, by the number of sequences of a step; there is at least one."""
    offered_len: Callable[[int, int, int], int]
    """What is come up with for a request at an output position, of so many that were asked for."""
    fates: list[bytes]
    """By request and output position: drafts that survive."""
    max_draft_len: int


@dataclass
class Step:
    """One step on the clock."""

    plan: StepPlan
    scheduled_at: int
    ended_at: int = 0
    asked_len: int = 0
    accepted_lens: list[int] = field(default_factory=list)


class Engine:
    """One replica, which runs by itself until all requests have ended.

    Parameters
    ----------
    scheduler : Scheduler
    script : Script
    requests : list of Request
        In order of arrival.
    log : LogWriter
    """

    def __init__(
        self, scheduler: Scheduler, script: Script, requests: list[Request], log: LogWriter
    ) -> None:
        self._scheduler = scheduler
        self._script = script
        self._arrivals = deque(requests)
        self._log = log
        self._now = 0

    def run(self) -> None:
        """Do everything there is to do."""
        if isinstance(self._scheduler, AsyncScheduler):
            self._run_async()
        else:
            self._run_sync()

    def _take_in(self) -> None:
        while self._arrivals and self._arrivals[0].arrived_at <= self._now:
            request = self._arrivals.popleft()
            self._scheduler.add(request, request.arrived_at)

    def _sleep(self) -> bool:
        """Wait for the next arrival; False if there is none."""
        if not self._arrivals:
            return False
        self._now = max(self._now, int(self._arrivals[0].arrived_at))
        return True

    def _schedule(self) -> Step:
        plan = self._scheduler.schedule()
        if plan.index > _LONGEST:
            raise DoesNotEnd
        return Step(plan, self._now)

    def _run_sync(self) -> None:
        scheduler = self._scheduler
        is_late = isinstance(scheduler, PrefillFirstScheduler)
        while True:
            self._take_in()
            if not scheduler.has_unfinished:
                if not self._sleep():
                    return
                continue
            step = self._schedule()
            if not is_late or not step.plan.prefill_lens:
                step.asked_len = self._asked_len(step)
            if is_late:
                scheduler.offer_drafts(step.plan, self._offered_lens(step))
            step.accepted_lens = self._verify(step)
            self._log.scheduled(scheduler, step)
            if step.plan.sequences:
                self._now += self._script.step_time(step.plan)
            elif not step.plan.preempted and not self._sleep():
                raise AssertionError("nothing can run, and nothing is going to change")
            self._update(step)
            if not is_late:
                scheduler.offer_drafts(step.plan, self._offered_lens(step))

    def _run_async(self) -> None:
        """Keep two steps in flight (vLLM 0.32.0 ``v1/engine/core.py step_with_batch_queue``)."""
        scheduler = self._scheduler
        in_flight: deque[Step] = deque()
        gpu_free_at = 0
        while True:
            self._take_in()
            if scheduler.has_requests:
                step = self._schedule()
                step.asked_len = self._asked_len(step)
                scheduler.offer_drafts(step.plan, [step.asked_len] * len(step.plan.sequences))
                self._log.scheduled(scheduler, step)
                gpu_free_at = max(self._now, gpu_free_at) + self._script.step_time(step.plan)
                step.ended_at = gpu_free_at
                in_flight.append(step)
                if len(in_flight) < 2 and (step.plan.sequences or scheduler.has_requests):
                    continue
            elif not in_flight:
                if not self._sleep():
                    return
                continue
            step = in_flight.popleft()
            self._now = max(self._now, step.ended_at)
            step.accepted_lens = self._verify(step)
            self._update(step)

    def _asked_len(self, step: Step) -> int:
        size = len(step.plan.sequences)
        return self._script.draft_len(size) if size else self._script.max_draft_len

    def _offered_lens(self, step: Step) -> list[int]:
        return [
            self._script.offered_len(sequence.index, sequence.output_len, step.asked_len)
            for sequence in step.plan.sequences
        ]

    def _verify(self, step: Step) -> list[int]:
        """Return the accepted lengths; every earlier step has been updated."""
        plan = step.plan
        return [
            0
            if sequence in plan.padded or sequence.output_len >= len(self._fates_of(sequence.index))
            else min(self._fates_of(sequence.index)[sequence.output_len], draft_len)
            for sequence, draft_len in zip(plan.sequences, plan.draft_lens, strict=True)
        ]

    def _fates_of(self, request: int) -> bytes:
        return self._script.fates[request]

    def _update(self, step: Step) -> None:
        step.ended_at = self._now
        ended = self._scheduler.update(step.plan, step.accepted_lens)
        self._log.updated(self._scheduler, step, ended)
