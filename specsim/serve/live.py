"""Live: the engine of an experiment on the wall clock, in an asyncio loop.

The replicas, router and incidents are those of a simulation, on the same event clock, which is
never ahead of the wall clock: it runs up to now when the next event is due, or a request comes or
goes. Long work for a request is done in slices of a few milliseconds, which all requests share in
turn, so that the loop and what else comes (a health check, a step) need not wait.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, count, cycle
from math import inf
from time import monotonic
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from specsim.core.blame import blamed
from specsim.core.errors import ConfigError
from specsim.core.request import Request
from specsim.core.rng import generator
from specsim.engine.cluster import Cluster, EventClock, schedule_incidents
from specsim.engine.replica import Replica
from specsim.engine.table import FINISHED
from specsim.engine.view import StepView
from specsim.reality.clock import Alarm
from specsim.results.records import ReplicaRecords
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.whole import lock_step
from specsim.serve.live_drafting import LiveDrafting
from specsim.serve.texts import Filler
from specsim.workload.lengths import drawn

SLICE = 0.005  # seconds

_Item = TypeVar("_Item")


class Turns:
    """Gives each request its turn to work, and limits the turn's time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._since = 0.0

    async def turn(self) -> None:
        """Wait for the caller's turn, after the loop has done its other work."""
        async with self._lock:
            if monotonic() - self._since > SLICE:
                await asyncio.sleep(0)
                self._since = monotonic()

    async def each(self, items: Iterable[_Item]) -> AsyncIterator[_Item]:
        """Yield items, with a wait for the next turn whenever a turn is used up."""
        for item in items:
            yield item
            if monotonic() - self._since > SLICE:
                await self.turn()


_AT_ONCE = 4  # deliveries sent before the loop looks for requests
_MOST_UNSENT = 4096  # unsent deliveries from which all are sent before anything else
_LENGTHS = 4096  # answer lengths drawn at once


class Sink(Protocol):
    """A receiver of answers."""

    def delivered(self, answer: "LiveAnswer", first: int, end: int) -> None:
        """Receive the tokens `first` to `end` of an answer, delivered by a step."""

    def failed(self, answer: "LiveAnswer", why: str) -> None:
        """Learn that an answer will not be completed, and why."""


class LiveAnswer:
    """One unfinished answer and its request; times are simulated seconds, lengths tokens."""

    def __init__(self, request: Request, place: int, filler: Filler, sink: Sink) -> None:
        self.request = request
        self.place = place  # index among the answers to its HTTP request
        self.filler = filler
        self.sink = sink
        self.finish = "length"
        self.text_len = len(filler.text)
        """Characters to send: fewer than the text has if a stop string ends it."""
        self.index = -1
        self.sent_len = 0
        self.first_token_at = self.last_token_at = 0.0
        self.deliveries: list[tuple[float, int]] = []
        self.drafts: list[tuple[int, int, int]] = []
        self.row: Any = None  # the engine's record of the request, once it has ended

    @property
    def num_tokens(self) -> int:
        """Tokens of its prompt and its whole output."""
        return self.request.prompt_len + self.request.output_len

    def metrics(self, speed: float, max_draft_len: int) -> dict[str, Any]:
        """Return vLLM's metrics of a request, with times of a clock `speed` times as fast.

        As with ``--enable-per-request-metrics --per-request-spec-decode-metrics detailed`` (vLLM
        0.32.0 ``entrypoints/generate/base/serving.py``).

        Args:
            max_draft_len: 0 without speculation.
        """
        started_at = float(self.row["first_scheduled_at"])
        first_ms, generation_ms, queue_ms = (
            1e3 * seconds / speed
            for seconds in (
                self.first_token_at - started_at,
                self.last_token_at - self.first_token_at,
                started_at - self.request.arrived_at,
            )
        )
        count = self.sent_len
        found: dict[str, Any] = {
            "time_to_first_token_ms": first_ms,
            "generation_time_ms": generation_ms,
            "queue_time_ms": queue_ms,
            "mean_itl_ms": generation_ms / (count - 1) if count > 1 else None,
            "tokens_per_second": 1e3 * count / (first_ms + generation_ms),
        }
        if max_draft_len:
            drafted, accepted = ([draft[part] for draft in self.drafts] for part in (1, 2))
            num_drafts, num_drafted, num_accepted = len(drafted), sum(drafted), sum(accepted)
            found["speculative_decoding"] = {
                "mean_acceptance_length": 1.0 + num_accepted / max(1, num_drafts),
                "draft_acceptance_rate": num_accepted / max(1, num_drafted),
                "acceptance_histogram": np.bincount(
                    np.array(accepted, dtype=np.int64), minlength=max_draft_len + 1
                ).tolist(),
                "num_spec_steps": num_drafts,
                "num_accepted_draft_tokens": num_accepted,
                "num_draft_tokens": num_drafted,
                "num_spec_tokens": max_draft_len,
            }
            if drafted:
                steps = {"per_step_accepted": accepted, "per_step_drafted": drafted}
                found["speculative_decoding"] |= steps
        return found

    def text(self, first: int, end: int) -> str:
        """Return the text of tokens `first` to `end`, as far as it is sent."""
        ends = self.filler.ends
        start = int(ends[first - 1]) if first else 0
        return self.filler.text[start : min(int(ends[end - 1]), self.text_len)]


class Watcher:
    """Base of metrics and log; the methods do nothing by default."""

    def stepped(self, engine: int, step: StepView) -> None:
        """Called after each step."""

    def delivered(self, engine: int, answer: LiveAnswer, gap: float | None) -> None:
        """Called at each delivery; `gap` is the time since the previous one, seconds."""

    def ended(self, engine: int, answer: LiveAnswer) -> None:
        """Called when an answer is complete."""

    def broken_off(self, engine: int, answer: LiveAnswer, why: str) -> None:
        """Called when an answer is broken off; `engine` is 0 if it had not reached one."""

    def close(self) -> None:
        """Called when the server ends."""


class _WallClock(EventClock):
    """An event clock that follows the wall clock."""

    def catch_up(self, now: float) -> None:
        """Run events up to `now`, or as many as a moment is enough for."""
        until = monotonic() + SLICE
        while (due := self.peek()) <= now:
            if monotonic() > until and due > self.now:
                # Later arrivals must not fall on this instant.
                self.skip_to(self.now + (due - self.now) / 2)
                return
            self.step()
        self.skip_to(max(self.now, now))


class _UpToNow(Cluster):
    """A cluster whose requests come from clients outside."""

    is_alone = False
    numbers: NDArray[np.int64]
    """Number of the request at each index; replicas use the index, the router the number."""

    def number_of(self, request: Request) -> int:
        """Return the number of a request, which the router uses."""
        return int(self.numbers[request.index])


class _NoRecords(ReplicaRecords):
    """Discards records, which are not used here and would grow forever."""

    def add_requests(self, rows: NDArray[np.void]) -> None:
        """Discard requests."""

    add_gaps = add_seconds = add_requests


class Live:
    """An experiment's engines on the wall clock, or `speed` times as fast.

    At most `size` requests may be unfinished. Raises a SpecsimError if the experiment cannot be
    served.
    """

    def __init__(self, experiment: Experiment, *, speed: float = 1.0, size: int = 4096) -> None:
        self.experiment, self.speed = experiment, speed
        self.deployment = deployment = Deployment.of(experiment)
        self.drafting = LiveDrafting(experiment, deployment, size)
        self.front = deployment.front(experiment.num_engines, num_requests=1)
        self.watchers: list[Watcher] = []
        self.replicas: dict[int, Replica] = {}  # those that are up, by number
        self.lengths = _answer_lens(experiment)
        self.numbers = count()  # of the requests, as in a simulation of the same ones
        self._answers: dict[int, LiveAnswer] = {}  # unfinished ones, by index
        self.num_tokens = 0  # of unfinished requests, prompts included
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alarm: Alarm | None = None
        self._outbox: deque[tuple[LiveAnswer, int, int]] = deque()
        """Deliveries that have not been sent yet: (answer, first token, end)."""
        self._is_sending = False
        self.fault: Exception | None = None
        """The error that ended the engine: a bug here, or a PluginError."""
        self.on_fault: Callable[[], object] = lambda: None
        self._origin = self._sent_at = 0.0
        self._clock = _WallClock()
        self._group = lock_step(deployment)
        self._cluster = _UpToNow(
            self._clock,
            self.drafting.requests,
            experiment.num_engines,
            self._make_replica,
            router=experiment.routing,
            seed=experiment.seed,
            keeps_up=True,
        )
        self._cluster.numbers = self.drafting.numbers
        schedule_incidents(self._clock, {None: self._cluster}, experiment.incidents or ())

    def _make_replica(self, number: int, start: float) -> Replica:
        drafting = self.drafting
        records = _NoRecords(self.deployment.max_draft_len, replica=number)
        wiring = drafting.wiring(records, observers=[Deliverer(self, number)])
        setup, costs = self.deployment.setup, self.deployment.costs
        replica = Replica(setup, costs, drafting.start(number), wiring, start, group=self._group)
        self.replicas[number] = replica
        return replica

    @property
    def is_up(self) -> bool:
        return self.fault is None and any(replica.is_up for replica in self.replicas.values())

    @property
    def num_unfinished(self) -> int:
        return len(self._answers)

    @property
    def now(self) -> float:
        """Simulated seconds since `start`."""
        assert self._loop is not None
        return (self._loop.time() - self._origin) * self.speed

    def start(self) -> None:
        """Start the clock in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()
        self._alarm = Alarm(self._tick)
        self._tick()

    def stop(self) -> None:
        """Stop the clock."""
        if self._alarm is not None:
            self._alarm.close()
        self._alarm = None

    def submit(self, answer: LiveAnswer, at: float) -> None:
        """Send a request to the router, as arriving at `at` or as soon after it as possible."""
        if not self.drafting.num_free:  # other requests have come since that check
            answer.sink.failed(answer, "too many requests are unfinished")
            return
        self._sent_at = at = max(at, self._sent_at)  # bodies arrive in another order than heads
        reaches_at = self.front.reaches_at(at, 0, answer.request.prompt_len)
        instant = max(reaches_at, self._clock.now)
        arrived_at = instant - float(self.front.delays[0])
        answer.request = replace(answer.request, arrived_at=arrived_at)
        placed = self.drafting.take(answer.request)
        answer.index = placed.index
        self._answers[answer.index] = answer
        self.num_tokens += answer.num_tokens
        self._clock.call_at(instant, partial(self._submit, answer, placed))
        self._due(instant)

    def _submit(self, answer: LiveAnswer, placed: Request) -> None:
        if self._answers.get(answer.index) is answer:  # unless it was withdrawn on the way
            self._cluster.submit(placed)

    def withdraw(self, answer: LiveAnswer, why: str = "the client has gone") -> None:
        """Drop an answer whose receiver is gone."""
        if self._answers.get(answer.index) is answer:
            self._run()
            self._drop(answer, why)

    def _drop(self, answer: LiveAnswer, why: str) -> None:
        if self._answers.get(answer.index) is not answer:
            return  # it has just ended
        engine = None if self.fault else self._cluster.withdraw(answer.index)
        self._forget(answer)
        for watcher in self.watchers:
            watcher.broken_off(engine or 0, answer, why)
        self._due(self._clock.peek())

    def _forget(self, answer: LiveAnswer) -> None:
        del self._answers[answer.index]
        self.num_tokens -= answer.num_tokens
        self.drafting.give_back(answer.index)

    def _run(self) -> None:
        if self.fault is None:
            try:
                with blamed():
                    self._clock.catch_up(self.now)
            except Exception as error:  # all receivers must learn of it
                self.fault = error
                self.on_fault()
                self.fail_all("the engine has failed; see what the server says")
        if self._answers and not self.is_up:
            self.fail_all("no replica is up")

    def fail_all(self, why: str) -> None:
        for answer in list(self._answers.values()):
            answer.sink.failed(answer, why)
            self._drop(answer, why)

    def _tick(self) -> None:
        self._run()
        if not self._is_sending:
            self._send()
        self._due(self._clock.peek())

    def _due(self, instant: float) -> None:
        """Let the clock run at an instant, unless it does before."""
        if self._alarm is not None and instant < inf:
            self._alarm.set(self._origin + instant / self.speed)

    def land(self, engine: int, step: StepView) -> None:
        """Distribute the deliveries of a step."""
        at = float(step.record["ended_at"])
        # Latest admissions first, so that first tokens are on time.
        columns = (step[name][::-1].tolist() for name in _COLUMNS)
        for index, row, emitted_len, drafted, accepted in zip(*columns, strict=True):
            if not emitted_len:
                continue
            answer = self._answers[index]
            first = answer.sent_len
            gap = at - answer.last_token_at if first else None
            answer.last_token_at = at
            if gap is None:
                answer.first_token_at = at
            answer.sent_len = end = first + emitted_len
            answer.deliveries.append((at, emitted_len))
            if drafted:
                answer.drafts.append((first, drafted, accepted))
            is_ended = step.table.sequences["status"][row] == FINISHED
            if is_ended:
                answer.row = step.table.sequences[row : row + 1][0].copy()
                self._forget(answer)
            if first:
                self._outbox.append((answer, first, end))
            else:
                answer.sink.delivered(answer, first, end)
            for watcher in self.watchers:
                watcher.delivered(engine, answer, gap)
                if is_ended:
                    watcher.ended(engine, answer)
        for watcher in self.watchers:
            watcher.stepped(engine, step)

    def _send(self) -> None:
        """Send some deliveries, with pauses in which the loop accepts new requests in time."""
        outbox = self._outbox
        for _ in range(_AT_ONCE if len(outbox) < _MOST_UNSENT else len(outbox)):
            if not outbox:
                break
            answer, first, end = outbox.popleft()
            answer.sink.delivered(answer, first, end)
        if outbox and self._loop is not None:
            self._is_sending = True
            self._loop.call_soon(self._send)
        else:
            self._is_sending = False


_COLUMNS = ("request", "row", "emitted_len", "verified_len", "accepted_len")


class Deliverer:
    """Observes a replica, and reports its deliveries."""

    def __init__(self, live: Live, number: int) -> None:
        self._live, self._number = live, number

    def scheduled(self, step: StepView) -> None:
        """Do nothing: there is no delivery yet."""

    def delivered(self, step: StepView) -> None:
        self._live.land(self._number, step)


def _answer_lens(experiment: Experiment) -> Iterator[int]:
    """Yield lengths of answers without a limit, drawn from the workload, tokens."""
    workload, seed = experiment.workload, experiment.seed
    if workload.lengths is not None:
        rows = min(workload.lengths.num_rows or _LENGTHS, _LENGTHS)  # of a trace, which repeats
        parts = (
            drawn(workload.lengths, generator(seed, "serve", str(number)), rows)
            for number in count()
        )
        return chain.from_iterable(part.output_lens.tolist() for part in parts)
    recorded = workload.build(seed)
    if not len(recorded):
        raise ConfigError("workload: has no request, and so no length of an answer")
    return cycle(recorded.output_lens.tolist())
