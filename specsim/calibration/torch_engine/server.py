"""Server: specsim's scheduler and policies on the wall clock, with a real model under them."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import sleep

import numpy as np
from numpy.typing import NDArray

from specsim.calibration.served import Served, Spans
from specsim.calibration.torch_engine.runner import Runner
from specsim.calibration.torch_engine.timing import Timing
from specsim.engine.engine_step import EngineStep
from specsim.engine.scheduler import Scheduler
from specsim.engine.sequence import Sequence
from specsim.engine.speculation import Speculation
from specsim.errors import InvariantError
from specsim.request import Request

__all__ = ["Server"]

_SPIN = 1e-3  # seconds before an arrival in which the clock is watched; sleeping is not that exact


@dataclass
class _Seen:
    """A request on its way."""

    scheduled_at: float | None = None
    deliveries: list[tuple[float, int]] = field(default_factory=list)
    accepted: list[tuple[int, int, int]] = field(default_factory=list)


class Server:
    """One run of one engine; steps are scheduled one after the other.

    Parameters
    ----------
    runner : Runner
        Fresh.
    scheduler : Scheduler
        Synchronous.
    speculation : Speculation
        Decides how much to draft and, if acceptance is synthetic, what is accepted.
    speculates : bool
        Whether there is a draft model to run.
    is_synthetic : bool
        Whether drafts are accepted as `speculation` says, whatever the models say.
    timing : Timing
        The probe is done between steps.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        speculation: Speculation,
        *,
        speculates: bool,
        is_synthetic: bool,
        timing: Timing,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._speculation = speculation
        self._speculates = speculates
        self._is_synthetic = is_synthetic
        self._seen: dict[int, _Seen] = {}
        self._clock, self._probe = timing.clock, timing.probe
        self._start = 0.0
        self._probed_at = 0.0
        self._overhead = 0.0
        self.served = Served()

    def serve(
        self,
        requests: list[Request],
        prompt: Callable[[Request], NDArray[np.int64]],
    ) -> Served:
        """Serve requests as they arrive, until the last has its answer.

        Parameters
        ----------
        requests : list of Request
            In order of arrival, seconds after the call.
        prompt : callable
            Returns the prompt's token ids.

        Returns
        -------
        Served
        """
        prompts = [prompt(request) for request in requests]  # not while the clock runs
        with _no_garbage_collection():
            self._start = self._clock.now()
            num_taken = 0
            while num_taken < len(requests) or self._scheduler.has_unfinished:
                now = self._now()
                while num_taken < len(requests) and requests[num_taken].arrived_at <= now:
                    self._take(requests[num_taken], prompts[num_taken])
                    num_taken += 1
                if self._scheduler.has_unfinished:
                    self._see_speed(now)
                if not (self._scheduler.has_unfinished and self._step()):
                    if num_taken == len(requests):
                        raise InvariantError("requests are left that can never run")
                    self._wait_until(requests[num_taken].arrived_at)
        return self.served

    def _now(self) -> float:
        return self._clock.now() - self._start

    def _see_speed(self, now: float) -> None:
        """See how fast the machine is, if that is due, and stop the clock for that long."""
        if self._probe is not None and now - self._probed_at > self._probe.every:
            at, seconds = self._probe.run()
            self._probed_at = at - self._start
            self.served.probes.append((self._probed_at, seconds))

    def _wait_until(self, instant: float) -> None:
        while (left := instant - self._now()) > 0:
            if left > _SPIN:
                sleep(left - _SPIN)

    def _take(self, request: Request, prompt: NDArray[np.int64]) -> None:
        sequence = self._scheduler.add(request, request.arrived_at)
        self._speculation.prepare(sequence)
        self._runner.add(sequence, prompt)
        self._seen[sequence.index] = _Seen()

    def _step(self) -> bool:
        """Run one step; False if nothing can run before something arrives."""
        scheduler, speculation, runner = self._scheduler, self._speculation, self._runner
        started_at = self._now()
        plan = scheduler.schedule()
        step = EngineStep(plan, scheduler, started_at)
        if not plan.sequences:
            scheduler.update(plan, [])
            return bool(plan.preempted)
        speculation.begin(step)
        agreed_lens = runner.verify(plan)
        step.target_time = runner.target_time
        step.overhead_time = self._overhead  # of the step before; its own is not over yet
        step.accepted_lens = speculation.verify(plan) if self._is_synthetic else agreed_lens
        runner.accept(step.accepted_lens)
        speculation.observe(step)
        if self._speculates:
            step.asked_lens = speculation.decide(step, step.accepted_lens, scheduler.kv)
            runner.draft(step.accepted_lens, step.asked_lens)
            step.draft_time = runner.draft_time
        self._finish(step)
        return True

    def _finish(self, step: EngineStep) -> None:
        plan, scheduler = step.plan, self._scheduler
        positions = [sequence.output_len for sequence in plan.sequences]
        ended = scheduler.update(plan, step.accepted_lens)
        scheduler.offer_drafts(plan, self._speculation.offered(plan, step.asked_lens))
        step.ended_at = self._now()
        self._note_deliveries(step, positions)
        for sequence in ended:
            self._speculation.end(sequence)
            self._note_request(sequence, self._runner.end(sequence))
        self._note_step(step)

    def _note_deliveries(self, step: EngineStep, positions: list[int]) -> None:
        plan = step.plan
        for sequence in plan.admitted:
            self._seen[sequence.index].scheduled_at = step.scheduled_at
        rows = zip(
            plan.sequences,
            positions,
            plan.verified_lens,
            step.accepted_lens,
            plan.emitted_lens,
            strict=True,
        )
        for sequence, position, draft_len, accepted_len, emitted_len in rows:
            seen = self._seen[sequence.index]
            if emitted_len:
                seen.deliveries.append((step.ended_at, emitted_len))
            if draft_len:
                seen.accepted.append((position, draft_len, accepted_len))

    def _note_request(self, sequence: Sequence, answer: list[int]) -> None:
        seen, request = self._seen.pop(sequence.index), sequence.request
        self.served.requests.append(
            {
                "request_id": f"request-{request.index}",
                "input_toks": sequence.prompt_len,
                "output_toks": len(answer),
                "arrival_time": request.arrived_at,
                "queued_ts": request.arrived_at,
                "scheduled_ts": seen.scheduled_at,
                "first_token_ts": seen.deliveries[0][0],
                "last_token_ts": seen.deliveries[-1][0],
                "deliveries": seen.deliveries,
                "accepted": seen.accepted,
                "preemptions": sequence.num_preemptions,
                "output_tok_ids": answer,
            }
        )

    def _note_step(self, step: EngineStep) -> None:
        plan, load = step.plan, step.load
        ended_at = self._now()  # with the notes: a server's answers cost time as well
        seconds = ended_at - step.scheduled_at
        self._overhead = seconds - step.target_time - step.draft_time
        asked = step.asked_lens
        self.served.spans.append(
            Spans(load.num_requests, step.target_time, step.draft_time, self._overhead)
        )
        self.served.steps.append(
            {
                "started_at": step.scheduled_at,
                "seconds": seconds,
                "context_tokens": load.context_tokens,
                "batched_tokens": load.batched_tokens,
                "num_requests": load.num_requests,
                "prefill_tokens": load.prefill_tokens,
                "draft_tokens": sum(plan.verified_lens),
                "accepted_tokens": sum(step.accepted_lens),
                "num_waiting": step.num_waiting,
                "free_blocks": step.free_blocks,
                "draft_seconds": step.draft_time,
                "made_drafts": asked if isinstance(asked, int) else max(asked, default=0),
            }
        )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep Python from looking for garbage in the middle of a step."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
