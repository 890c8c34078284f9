"""Clients: who sends the requests of a run, and when: on time, or once an answer is there."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import chain
from math import inf

from simpy import Event

from specsim.core.request import Request
from specsim.engine.cluster import EventClock
from specsim.engine.front import Front


def instants(sent: Iterable[tuple[float, int, int]], front: Front) -> Iterator[tuple[int, float]]:
    """Yield requests in the order in which they reach the engine, and when the clock lets them.

    Nobody else may send requests through that front end. Of several tokenizers, one may be done
    with a short prompt before another is with a long one that came first.

    Args:
        sent: Of each its arrival, index and prompt length, in order of arrival.

    Yields:
        Indices, and instants in seconds.
    """
    now = 0.0
    on_the_way: list[tuple[float, int]] = []
    for arrived_at, index, prompt_len in chain(sent, [(inf, -1, 0)]):
        while on_the_way and on_the_way[0][0] <= arrived_at + front.front_time:
            reaches_at, first = heappop(on_the_way)
            if reaches_at > now:
                now += reaches_at - now  # as the clock counts; it need not be that very instant
            yield first, now
        if index >= 0:
            heappush(on_the_way, (front.reaches_at(arrived_at, index, prompt_len), index))


class Clients:
    """Whoever waits for answers: clients of a closed loop, and sessions, turn after turn.

    Args:
        requests: Of the run; turns of a session in their order.
        front: What they go through to reach the engine.
    """

    def __init__(self, clock: EventClock, requests: list[Request], front: Front) -> None:
        self.submit: Callable[[Request], None]
        """Where requests go; to be set."""
        self._clock = clock
        self._front = front
        self._requests = requests
        self._next_turns: dict[int, list[Request]] = {}
        """By the index of a request that must have ended before."""
        self._missing: dict[int, int] = {}
        """How many must end before a turn is sent, by its index."""
        self._open: Counter[int] = Counter()
        """How many requests of a session are not answered yet."""
        self._link(requests)
        self.starts = requests
        """Those that wait for no turn before them."""
        if self._missing:
            self.starts = [request for request in requests if request.index not in self._missing]
        self._unsent: Iterator[tuple[Request, float]] = iter(())

    def _link(self, requests: list[Request]) -> None:
        said: dict[int, list[int]] = {}
        for request in requests:
            if request.session is None:
                continue
            self._open[request.session] += 1
            turns = said.setdefault(request.session, [])
            before = turns[-1:]
            if request.after_turns is not None:
                before = [turns[turn - 1] for turn in dict.fromkeys(request.after_turns)]
            if before:
                self._missing[request.index] = len(before)
            for index in before:
                self._next_turns.setdefault(index, []).append(request)
            turns.append(request.index)

    @property
    def has_sessions(self) -> bool:
        """Whether any request waits for one before it."""
        return bool(self._next_turns)

    def arrivals(self) -> Generator[Event, None, None]:
        """Send what waits for nobody, in order of arrival; the one process of all arrivals."""
        starts = sorted(self.starts, key=lambda each: each.arrived_at)
        timed: Iterable[tuple[Request, float]]
        queues = self.has_sessions and self._front.has_queue
        if queues:  # turns come between them
            timed = ((request, request.arrived_at) for request in starts)
        else:
            sent = ((each.arrived_at, each.index, each.prompt_len) for each in starts)
            reached = instants(sent, self._front)
            timed = ((self._requests[index], instant) for index, instant in reached)
        for request, instant in timed:
            if instant > self._clock.now and not self._clock.skip_to(instant):
                yield self._clock.happens(Event(self._clock), instant, first=True)
            if queues:
                self._queue_up(instant, request)
            else:
                self.submit(request)

    def start(self, concurrency: int, think_times: list[float]) -> None:
        """Let a number of clients each send a request, or a session, and then the next one.

        They are sent in their order, whichever client is free; `think_times` is how long it waits
        before each, seconds.
        """
        self._unsent = zip(self.starts, think_times, strict=False)
        for _ in range(concurrency):
            self._start_next(self._clock.now)

    def answered(self, request: int, at: float) -> None:
        """Let the client that has its answer go on: with the next turn, or the next session."""
        session = self._requests[request].session
        if session is not None:
            self._open[session] -= 1
        if session is None or not self._open[session]:
            self._start_next(at)
        for turn in self._next_turns.get(request, ()):
            self._missing[turn.index] -= 1
            if not self._missing[turn.index]:
                self._send(max(at + turn.think_time, turn.arrived_at), 0.0, turn)

    def _start_next(self, at: float) -> None:
        request, think_time = next(self._unsent, (None, 0.0))
        if request is not None:
            self._send(at, think_time, request)

    def _send(self, at: float, think_time: float, request: Request) -> None:
        if not self._front.has_queue:
            instant = at + (think_time + self._front.front_time)
            self._clock.call_at(instant, partial(self.submit, request))
        else:  # who comes first is known when it comes
            sent_at = at + think_time
            self._clock.call_at(sent_at, partial(self._queue_up, sent_at, request))

    def _queue_up(self, sent_at: float, request: Request) -> None:
        instant = self._front.reaches_at(sent_at, request.index, request.prompt_len)
        self._clock.call_at(instant, partial(self.submit, request))
