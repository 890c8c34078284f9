"""Cluster: replicas behind a router, what happens to them, and the count of requests in them."""

from collections.abc import Callable, Generator, Iterable
from functools import partial

from simpy import Environment, Event
from simpy.events import URGENT

from specsim.engine.engine import Engine
from specsim.engine.incidents import Failure, Slowdown
from specsim.engine.sequence import Sequence
from specsim.request import Request
from specsim.routing.base import PromptView, Router

__all__ = ["ClosedLoopClients", "Cluster", "replay", "run_alone", "schedule_incidents"]

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
        self._make_engine = make_engine
        self._engines = [make_engine(number, self._end) for number in range(replicas)]
        self._up = self._engines
        """Those that have not failed."""
        self._stranded: list[Sequence] = []
        """Requests that wait for any engine to be up."""
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
        self._route(self._engines[0].scheduler.sequence_of(request, self.env.now))

    def _route(self, sequence: Sequence) -> None:
        if not self._up:
            self._stranded.append(sequence)
            return
        place = self._router.choose(PromptView(sequence.request), self._up, self._memory)
        self._up[place].take_over(sequence)

    @property
    def num_stranded(self) -> int:
        """Requests that wait because every replica has failed."""
        return len(self._stranded)

    def fail(self, number: int) -> None:
        """Let a replica die; its requests go to the others, in the order in which it had them.

        Parameters
        ----------
        number : int
            Of a replica that is up.
        """
        left = self._engines[number].fail()
        self._up = [engine for engine in self._engines if engine.is_up]
        for sequence in left:
            self._route(sequence)

    def restore(self, number: int) -> None:
        """Start a replica that has died; it gets what waited for any replica to be up.

        Parameters
        ----------
        number : int
        """
        self._engines[number] = self._make_engine(number, self._end)
        self._up = [engine for engine in self._engines if engine.is_up]
        stranded, self._stranded = self._stranded, []
        for sequence in stranded:
            self._route(sequence)

    def slow_down(self, number: int, factor: float) -> None:
        """Let a replica take `factor` times as long for what it schedules from now on.

        Parameters
        ----------
        number : int
        factor : float
            1 lets it run as usual.
        """
        self._engines[number].slow_down(factor)

    def _end(self, sequence: Sequence) -> None:
        self._count(-1)
        self._tell_end(sequence)

    def _count(self, change: int) -> None:
        now = self.env.now
        self.request_time += self.num_in_system * (now - self._changed_at)
        self.num_in_system += change
        self._changed_at = now


class _Instant(Event):
    """An instant that comes before the end of any step at the same time."""

    def __init__(self, env: Environment, delay: float) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=URGENT, delay=delay)


def _call_after(env: Environment, delay: float, action: Callable[[], None]) -> None:
    instant = _Instant(env, delay)
    assert instant.callbacks is not None
    instant.callbacks.append(lambda event: action())


def schedule_incidents(
    env: Environment, cluster: Cluster, incidents: Iterable[Failure | Slowdown]
) -> None:
    """Let incidents happen when their time comes.

    Call it before any request is submitted: at one instant incidents come first.

    Parameters
    ----------
    env : simpy.Environment
        At the start of the run.
    cluster : Cluster
    incidents : iterable of Failure or Slowdown
        As `specsim.engine.incidents.check_incidents` wants them.
    """
    incidents = list(incidents)
    for incident in incidents:  # ends first: a replica can come back just when another fails
        if incident.until is not None:
            _call_after(env, incident.until, partial(incident.end, cluster))
    for incident in incidents:
        _call_after(env, incident.at, partial(incident.begin, cluster))


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
            yield _Instant(env, request.arrived_at - env.now)
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
        _call_after(self._env, think_time, lambda: self._submit(request))
