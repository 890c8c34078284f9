"""Clients: who sends the requests of a run, and when: on time, or once an answer is there."""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import tee

from simpy import Event

from specsim.core.request import Request
from specsim.engine.cluster import EventClock
from specsim.engine.front_end import FrontEnd, instants


def replay(
    clock: EventClock,
    requests: Iterable[Request],
    submit: Callable[[Request], None],
    front_end: FrontEnd,
) -> Generator[Event, None, None]:
    """Submit each request, in order of arrival, at its time; the one process of all arrivals."""
    requests, again = tee(requests)
    reached_at = (front_end.passed(each.index, each.prompt_len, each.arrived_at) for each in again)
    for request, instant in zip(requests, instants(reached_at), strict=True):
        if instant > clock.now and not clock.skip_to(instant):
            yield clock.happens(Event(clock), instant, first=True)
        submit(request)


class Clients:
    """Whoever waits for answers: clients of a closed loop, and sessions, turn after turn.

    Args:
        requests: Of the run; turns of a session in their order.
    """

    def __init__(
        self,
        clock: EventClock,
        requests: list[Request],
        front_end: FrontEnd,
    ) -> None:
        self.submit: Callable[[Request], None]
        """Where requests go; to be set."""
        self._clock = clock
        self._front_end = front_end
        self._next_turns: dict[int, Request] = {}
        """By the index of the request that must have ended before."""
        latest: dict[int, int] = {}
        for request in requests:
            if request.session is not None:
                if request.session in latest:
                    self._next_turns[latest[request.session]] = request
                latest[request.session] = request.index
        self.starts = requests
        """Those that wait for no turn before them."""
        if self._next_turns:
            later = {request.index for request in self._next_turns.values()}
            self.starts = [request for request in requests if request.index not in later]
        self._unsent: Iterator[tuple[Request, float]] = iter(())

    @property
    def has_sessions(self) -> bool:
        """Whether any request waits for one before it."""
        return bool(self._next_turns)

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
        turn = self._next_turns.get(request)
        if turn is None:
            self._start_next(at)
        else:
            sent_at = max(at + turn.think_time, turn.arrived_at)
            self._send(turn, sent_at, sent_at + self._front_end.latency)

    def _start_next(self, at: float) -> None:
        request, think_time = next(self._unsent, (None, 0.0))
        if request is not None:
            latency = self._front_end.latency
            self._send(request, at + think_time, at + (think_time + latency))

    def _send(self, request: Request, sent_at: float, reached_at: float) -> None:
        """Let a request be sent, which reaches the engine then unless it has to wait."""
        if self._front_end.has_queue:
            self._clock.call_at(sent_at, partial(self._pass, request))
        else:
            self._clock.call_at(reached_at, partial(self.submit, request))

    def _pass(self, request: Request) -> None:
        instant = self._front_end.passed(request.index, request.prompt_len, self._clock.now)
        self._clock.call_at(instant, partial(self.submit, request))
