"""Cluster: replicas behind a router, and the count of requests in them."""

from collections.abc import Callable, Generator, Iterable

from simpy import Environment, Event
from simpy.events import URGENT

from specsim.engine.engine import Engine
from specsim.engine.sequence import Sequence
from specsim.request import Request
from specsim.routing.base import Router

__all__ = ["ClosedLoopClients", "Cluster", "replay", "run_alone"]

MakeEngine = Callable[[int, Callable[[Sequence], None]], Engine]


class Cluster:
    """Replicas behind a router.

    Parameters
    ----------
    env : simpy.Environment
    replicas : int
    make_engine : callable
        Makes the engine of a replica, given its number and whom to tell when a sequence ends.
    router : Router
    seed : int
        For a router that draws.
    on_end : callable
        Told of every request that ends.
    """

    def __init__(
        self,
        env: Environment,
        replicas: int,
        make_engine: MakeEngine,
        *,
        router: Router,
        seed: int,
        on_end: Callable[[Sequence], None],
    ) -> None:
        self.env = env
        self.engines = [make_engine(number, self._end) for number in range(replicas)]
        self._router = router
        self._memory = router.start(seed)
        self._tell_end = on_end
        self.num_in_system = 0
        self.request_time = 0.0
        """Integral of `num_in_system` over time; Little's law says what it must be."""
        self._changed_at = env.now

    def submit(self, request: Request) -> None:
        """Route a request, now."""
        self._count(1)
        self.engines[self._router.choose(self.engines, self._memory)].submit(request)

    def _end(self, sequence: Sequence) -> None:
        self._count(-1)
        self._tell_end(sequence)

    def _count(self, change: int) -> None:
        now = self.env.now
        self.request_time += self.num_in_system * (now - self._changed_at)
        self.num_in_system += change
        self._changed_at = now


class _Arrival(Event):
    """An instant that comes before the end of any step at the same time."""

    def __init__(self, env: Environment, delay: float) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=URGENT, delay=delay)


def replay(
    env: Environment, requests: Iterable[Request], submit: Callable[[Request], None]
) -> Generator[Event, None, None]:
    """Submit each request at its time; the one process of all arrivals.

    Parameters
    ----------
    env : simpy.Environment
    requests : iterable of Request
        In order of arrival.
    submit : callable
    """
    for request in requests:
        if request.arrived_at > env.now:
            yield _Arrival(env, request.arrived_at - env.now)
        submit(request)


def run_alone(
    make_engine: Callable[[Environment], Engine], requests: Iterable[Request], start: float
) -> None:
    """Run one engine by itself until all requests have ended.

    Parameters
    ----------
    make_engine : callable
        Makes the engine, given the event clock.
    requests : iterable of Request
        In order of arrival.
    start : float
        Where the clock starts; a whole number keeps it in whole numbers.
    """
    env = Environment(initial_time=start)
    env.process(replay(env, requests, make_engine(env).submit))
    env.run()


class ClosedLoopClients:
    """A fixed number of clients that each wait for an answer before they send again.

    Parameters
    ----------
    env : simpy.Environment
    requests : list of Request
        Sent in this order, whichever client is free.
    think_times : list of float
        Time that a client waits before each request, seconds.
    submit : callable
    """

    def __init__(
        self,
        env: Environment,
        requests: list[Request],
        think_times: list[float],
        submit: Callable[[Request], None],
    ) -> None:
        self._env = env
        self._unsent = iter(zip(requests, think_times, strict=True))
        self._submit = submit

    def start(self, concurrency: int) -> None:
        """Let every client send its first request."""
        for _ in range(concurrency):
            self.answered()

    def answered(self) -> None:
        """Let the client that has its answer send the next request, after its think time."""
        request, think_time = next(self._unsent, (None, 0.0))
        if request is None:
            return
        arrival = _Arrival(self._env, think_time)
        assert arrival.callbacks is not None
        arrival.callbacks.append(lambda event: self._submit(request))
