"""The engine and policies of a simulation on the wall clock, with a real model under them."""

import gc
from collections.abc import Callable
from itertools import accumulate
from math import inf
from time import sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import InvariantError
from specsim.core.request import Request
from specsim.engine.order import CHARGE_DRAFTS, CHARGE_FORWARD, TAKE_IN, VERIFY, WAIT
from specsim.engine.replica import Replica
from specsim.engine.setup import Wiring
from specsim.engine.table import FINISHED, WAITING
from specsim.engine.view import StepView
from specsim.reality.calibration.torch_subject import Served
from specsim.reality.torch_engine.model_runner import ModelRunner, PassRow
from specsim.reality.torch_engine.speed_probe import Timing
from specsim.results.logs import Deliveries
from specsim.results.records import ReplicaRecords
from specsim.run.deployment import Deployment
from specsim.run.drafting import Drafting

_SPIN = 1e-3  # seconds before an arrival in which the clock is watched; sleeping is not that exact


class WallClockServer:
    """One run of one engine; steps are scheduled one after the other.

    The engine is that of a simulation. Where it would compute how long something takes, the server
    does it and looks at the clock. Drafting decides how much to draft and, if acceptance is
    synthetic, what is accepted, whatever the models say. Runner and drafting are fresh.
    """

    def __init__(
        self,
        runner: ModelRunner,
        deployment: Deployment,
        drafting: Drafting,
        timing: Timing,
        *,
        is_synthetic: bool,
    ) -> None:
        self._runner = runner
        self._speculates = deployment.proposer is not None
        self._clock, self._probe = timing.clock, timing.probe
        self._requests: list[Request] = []
        self._prompts: list[NDArray[np.int64]] = []
        self._agreed_lens: list[int] = []
        self._start = self._probed_at = self._overhead = 0.0
        self.served = Served()
        self._deliveries = Deliveries.room_for(drafting.facts.rows["output_len"])
        wiring = Wiring(
            facts=drafting.facts,
            records=ReplicaRecords(deployment.max_draft_len),
            fates=drafting.survival_lens if len(drafting.survival_lens) else None,
            offers=drafting.offers,
            deliveries=self._deliveries,
            observers=[self],
        )
        verbs = {
            TAKE_IN: self._take_in,
            CHARGE_FORWARD: self._run_target,
            CHARGE_DRAFTS: self._run_draft,
            WAIT: self._wait,
        }
        if not is_synthetic:
            verbs[VERIFY] = self._verify
        self._replica = Replica(
            deployment.setup, deployment.costs, drafting.start(0), wiring, verbs=verbs
        )

    def serve(
        self, requests: list[Request], prompt: Callable[[Request], NDArray[np.int64]]
    ) -> Served:
        """Serve the requests of `drafting` as they arrive, in seconds after the call."""
        self._requests = requests
        self._prompts = [prompt(request) for request in requests]  # not while the clock runs
        replica = self._replica
        arrived_at = np.array([request.arrived_at for request in requests], dtype=np.float64)
        replica.submit_all(np.arange(len(requests)), arrived_at)
        gc.collect()
        gc.disable()  # Python would look for garbage in the middle of a step
        try:
            self._start = self._clock.now()
            replica.advance(inf)
        finally:
            gc.enable()
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

    # What follows are the verbs that take time, in place of the engine's own.

    def _take_in(self) -> None:
        replica = self._replica
        self._wait_until(replica.now)  # the next arrival, where there is nothing to do before
        replica.now = now = self._now()
        if replica.next_arrival_at <= now:
            replica.verbs.take_in()
        if replica.has_unfinished:
            self._see_speed(now)
        replica.now = self._now()

    def _run_target(self) -> None:
        step = self._replica.step
        self._release_preempted(step)
        if not step.size:
            return
        for request in step.requests[step["is_admitted"] == 1].tolist():
            self._runner.add(request, self._prompts[request])
        self._agreed_lens = self._runner.verify(_rows(step))
        step.record["target_time"] = self._runner.target_time
        step.record["overhead_time"] = self._overhead  # of the step before; its own is not over

    def _release_preempted(self, step: StepView) -> None:
        if step.record["preemptions"]:
            sequences: Any = self._replica.table.sequences
            is_mine = sequences["status"] == WAITING
            is_mine &= sequences["preempted_in"] == step.record["index"]
            for request in sequences["request"][is_mine].tolist():
                self._runner.release(request)

    def _verify(self) -> None:
        self._replica.step["accepted_len"][:] = self._agreed_lens

    def _run_draft(self) -> None:
        step = self._replica.step
        if not step.size:
            return
        accepted_lens = step["accepted_len"].tolist()
        self._runner.accept(accepted_lens)
        if not self._speculates:
            return
        self._runner.draft(accepted_lens, step["asked_len"].tolist())
        step.record["draft_time"] = self._runner.draft_time

    def _wait(self) -> None:
        replica, step = self._replica, self._replica.step
        if not (step.size or step.record["preemptions"]):
            # Nothing can run before something arrives.
            if replica.next_arrival_at == inf:
                raise InvariantError("requests are left that can never run")
            self._wait_until(replica.next_arrival_at)
        replica.now = self._now()

    # As an observer it writes down what has been served.

    def scheduled(self, step: StepView) -> None:
        """See a step that the server has just run itself."""

    def delivered(self, step: StepView) -> None:
        """Write down a step that has come back, and the requests that it ended."""
        if not step.size:
            return
        sequences: Any = step.table.sequences
        for row in step.rows[step.of_sequences("status") == FINISHED].tolist():
            self._note_request(sequences[row])
        self._note_step(step)

    def _note_request(self, sequence: Any) -> None:
        request = self._requests[int(sequence["request"])]
        prompt_len, known_len = int(sequence["prompt_len"]), int(sequence["known_len"])
        answer = self._runner.end(request.index, prompt_len, known_len)
        made = self._deliveries
        first = made.starts[request.index]
        mine = slice(first, first + sequence["deliveries"])
        columns = (made.at, made.lens, made.drafted, made.accepted)
        times, lens, drafted, accepted = (column[mine].tolist() for column in columns)
        drafts = zip(accumulate(lens, initial=0), drafted, accepted, strict=False)
        self.served.requests.append(
            {
                "request_id": f"request-{request.index}",
                "input_toks": prompt_len,
                "output_toks": len(answer),
                "arrival_time": request.arrived_at,
                "queued_ts": request.arrived_at,
                "scheduled_ts": float(sequence["first_scheduled_at"]),
                "first_token_ts": times[0],
                "last_token_ts": times[-1],
                "deliveries": list(zip(times, lens, strict=True)),
                "accepted": [draft for draft in drafts if draft[1]],
                "preemptions": int(sequence["preemptions"]),
                "output_tok_ids": answer,
            }
        )

    def _note_step(self, step: StepView) -> None:
        record, load = step.record, step.load
        scheduled_at, target_time, draft_time = (
            float(record[name]) for name in ("scheduled_at", "target_time", "draft_time")
        )
        ended_at = self._now()  # with the notes: a server's answers cost time as well
        seconds = ended_at - scheduled_at
        self._overhead = seconds - target_time - draft_time
        self.served.target_seconds.append(target_time)
        self.served.steps.append(
            {
                "started_at": scheduled_at,
                "seconds": seconds,
                "context_tokens": load.context_tokens,
                "batched_tokens": load.batched_tokens,
                "num_requests": load.num_requests,
                "prefill_tokens": load.prefill_tokens,
                "draft_tokens": int(step["verified_len"].sum()),
                "accepted_tokens": int(step["accepted_len"].sum()),
                "num_waiting": int(record["num_waiting"]),
                "free_blocks": int(record["free_blocks"]),
                "draft_seconds": draft_time,
                "made_drafts": int(step["asked_len"].max()),
            }
        )


def _rows(step: StepView) -> list[PassRow]:
    """Return what the sequences of a step read, drafts that were trimmed left out."""
    trimmed_lens = step["draft_len"] - step["verified_len"]
    columns = (
        step["request"],
        step["start"],
        step["start"] + step["scheduled_len"] - trimmed_lens,
        step.of_sequences("known_len"),
        step["verified_len"],
        step["is_partial"] == 1,
        step["is_padded"] == 1,
    )
    return [PassRow(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
