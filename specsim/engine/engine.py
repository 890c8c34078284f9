"""Engine: one replica, driving its scheduler by the event clock.

    schedule -> target forward -> accept -> draft for the next step

One SimPy process per engine; a request is data, not a process. At one instant arrivals come
before ends of steps: a request that arrives exactly when a step ends is considered by the next
`schedule`. Incidents come before both: a step that ends exactly when its replica fails is lost.
"""

from collections import deque
from collections.abc import Callable, Generator
from typing import Protocol

from simpy import Environment, Event

from specsim.engine.costs import Costs, SlowedCosts
from specsim.engine.engine_step import EngineStep
from specsim.engine.scheduler import Scheduler
from specsim.engine.schedulers import AsyncScheduler
from specsim.engine.sequence import Sequence
from specsim.engine.speculation import Speculation
from specsim.request import Request
from specsim.step import StepLoad

__all__ = ["Engine", "Observer"]


class Observer(Protocol):
    """Whoever watches an engine: records, invariant checks, the parity log."""

    def scheduled(self, scheduler: Scheduler, step: EngineStep) -> None:
        """See a step that has just been scheduled."""

    def updated(self, scheduler: Scheduler, step: EngineStep, ended: list[Sequence]) -> None:
        """See a step whose output has just been taken in, and the sequences that it ended."""


class Engine:
    """One replica.

    Parameters
    ----------
    env : simpy.Environment
        Its clock counts in the unit of `costs`: seconds, or whole nanoseconds under parity.
    scheduler : Scheduler
    speculation : Speculation
    costs : Costs
    observers : list of Observer
    on_end : callable
        Told of every sequence that ends.
    """

    def __init__(
        self,
        env: Environment,
        scheduler: Scheduler,
        speculation: Speculation,
        costs: Costs,
        *,
        observers: list[Observer],
        on_end: Callable[[Sequence], None],
    ) -> None:
        self.env = env
        self.is_up = True
        """Whether it has not failed."""
        self.scheduler = scheduler
        self._speculation = speculation
        self._costs = self._usual_costs = costs
        self._uses_pieces = costs.uses_pieces
        self._observers = observers
        self._on_end = on_end
        self._inbox: list[Sequence] = []
        self._prompt_tokens = 0
        self._wake: Event | None = None
        self._last_draft_time = 0.0
        is_async = isinstance(scheduler, AsyncScheduler)
        self._steps = self._run_async() if is_async else self._run_sync()
        env.process(self._steps)

    def submit(self, request: Request) -> None:
        """Take in a request, now; the scheduler gets it when it is next asked to schedule."""
        self.take_over(self.scheduler.sequence_of(request, self.env.now))

    def take_over(self, sequence: Sequence) -> None:
        """Take in a request that arrived before, perhaps at a replica that has failed."""
        self._inbox.append(sequence)
        self._prompt_tokens += sequence.prompt_len
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def fail(self) -> list[Sequence]:
        """Stop for good: steps in flight are lost, and so are all caches.

        Returns
        -------
        list of Sequence
            Those that had not ended: what ran in order of admission, then what waited in its order.
        """
        self.is_up = False
        self._steps.close()  # what it was waiting for still happens, and wakes nobody
        waiting = [*self.scheduler.waiting, *self._inbox]
        left = [*self.scheduler.running, *waiting]
        for sequence in left:
            sequence.leave_failed_engine()
        return left

    def slow_down(self, factor: float) -> None:
        """Let every step that is scheduled from now on take `factor` times as long; 1 ends it."""
        self._costs = self._usual_costs if factor == 1 else SlowedCosts(self._usual_costs, factor)

    @property
    def num_running(self) -> int:
        """Requests that run."""
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that have been submitted but do not run."""
        return len(self._inbox) + len(self.scheduler.waiting)

    @property
    def outstanding_tokens(self) -> int:
        """Prompts of its unfinished requests, and what those that run have answered so far."""
        return self._prompt_tokens + sum(
            [s.known_len - s.prompt_len for s in self.scheduler.running]
        )

    def _take_in(self) -> None:
        for sequence in self._inbox:
            self.scheduler.waiting.add(sequence)
            self._speculation.prepare(sequence)
        self._inbox.clear()

    def _arrival(self) -> Event:
        """Return the event of the next `submit`."""
        self._wake = self.env.event()
        return self._wake

    def _run_sync(self) -> Generator[Event, None, None]:
        scheduler, speculation = self.scheduler, self._speculation
        while True:
            self._take_in()
            if not scheduler.has_unfinished:
                yield self._arrival()
                continue
            step = self._schedule()
            self._execute(step)
            self._tell_scheduled(step)
            if step.plan.sequences:
                yield self.env.timeout(step.target_time + step.draft_time + step.overhead_time)
            elif not step.plan.preempted and not self._inbox:
                yield self._arrival()  # nothing can run before something changes
            self._update(step)
            if not scheduler.drafts_early:
                scheduler.offer_drafts(step.plan, speculation.offered(step.plan, step.asked_lens))

    def _execute(self, step: EngineStep) -> None:
        """Verify, decide on the next drafts, and charge for it all; only the clock is left."""
        plan, speculation, drafts_early = step.plan, self._speculation, self.scheduler.drafts_early
        drafting_load = step.load
        if drafts_early:
            if not plan.prefill_lens:
                step.asked_lens = self._decide(step, None)
            self.scheduler.offer_drafts(plan, speculation.offered(plan, step.asked_lens))
            step.load = plan.load
        speculation.begin(step)
        self._charge_forward(step)
        if drafts_early:
            self._charge_drafting(step, drafting_load)
            step.verified_draft_time = step.draft_time
        step.accepted_lens = speculation.verify(plan)
        speculation.observe(step)
        if not drafts_early:
            step.asked_lens = self._decide(step, step.accepted_lens)
            self._charge_drafting(step, step.load)

    def _run_async(self) -> Generator[Event, None, None]:
        """Keep two steps in flight (vLLM 0.32.0 ``v1/engine/core.py step_with_batch_queue``)."""
        scheduler, speculation, env = self.scheduler, self._speculation, self.env
        in_flight: deque[EngineStep] = deque()
        gpu_free_at = env.now
        while True:
            self._take_in()
            if scheduler.has_requests:
                step = self._schedule()
                speculation.begin(step)
                step.asked_lens = self._decide(step, None)
                scheduler.offer_drafts(step.plan, step.asked_lens)
                self._tell_scheduled(step)
                self._charge_forward(step)
                self._charge_drafting(step, step.load)
                if step.overhead_time:
                    yield env.timeout(step.overhead_time)  # hidden while the GPU is busy
                step.started_at = max(env.now, gpu_free_at)
                gpu_free_at = step.started_at + step.target_time + step.draft_time
                step.ended_at = gpu_free_at
                in_flight.append(step)
                if len(in_flight) < 2 and (step.plan.sequences or scheduler.has_requests):
                    continue
            elif not in_flight:
                yield self._arrival()
                continue
            step = in_flight.popleft()
            if step.ended_at > env.now:
                yield env.timeout(step.ended_at - env.now)
            step.accepted_lens = speculation.verify(step.plan)
            speculation.observe(step)
            self._update(step)

    def _schedule(self) -> EngineStep:
        step = EngineStep(self.scheduler.schedule(), self.scheduler, self.env.now)
        step.verified_draft_time = self._last_draft_time
        return step

    def _decide(self, step: EngineStep, accepted_lens: list[int] | None) -> int | list[int]:
        return self._speculation.decide(step, accepted_lens, self.scheduler.kv)

    def _charge_forward(self, step: EngineStep) -> None:
        load = step.load
        if self._uses_pieces:
            load = load._replace(pieces=step.plan.pieces())
        step.target_time = self._costs.target_time(load)
        step.overhead_time = self._costs.overhead_time(step.load.num_requests)

    def _charge_drafting(self, step: EngineStep, load: StepLoad) -> None:
        draft_time, speculation = self._costs.draft_time, self._speculation
        if speculation.is_shared_out:
            step.draft_time = sum(
                draft_time(own_load, draft_lens, step.target_time, drafter)
                for drafter, own_load, draft_lens in speculation.drafter_loads(
                    step.plan, step.asked_lens
                )
            )
        else:
            step.draft_time = draft_time(load, step.asked_lens, step.target_time, 0)
        self._last_draft_time = step.draft_time

    def _tell_scheduled(self, step: EngineStep) -> None:
        for sequence in step.plan.admitted:
            sequence.first_scheduled_at = step.scheduled_at
        for observer in self._observers:
            observer.scheduled(self.scheduler, step)

    def _update(self, step: EngineStep) -> None:
        step.ended_at = self.env.now
        ended = self.scheduler.update(step.plan, step.accepted_lens)
        for observer in self._observers:
            observer.updated(self.scheduler, step, ended)
        for sequence in ended:
            self._prompt_tokens -= sequence.prompt_len
            self._speculation.end(sequence)
            self._on_end(sequence)
