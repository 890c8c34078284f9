"""Cluster: replicas behind a router on the event clock, and the events that concern them.

Arrivals, waiting clients and failures are events of SimPy's clock; between them each replica runs
by itself. If nothing outside depends on what it does, it stays behind the clock until its state is
needed (`specsim.engine.replica.Replica.advance`); if clients wait for answers, it keeps up with the
clock.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from heapq import heappush
from math import inf, nextafter

from simpy import Environment, Event
from simpy.events import NORMAL, URGENT

from specsim.core.blame import held_to
from specsim.core.errors import CapacityError, InvariantError
from specsim.core.request import Request
from specsim.engine.answers import asked_router
from specsim.engine.incidents import Failure, Replicas, Slowdown
from specsim.engine.replica import Departure, Replica
from specsim.engine.roster import Roster, Scrapes, States
from specsim.routing import PromptView, ReplicaView, Router


class EventClock(Environment):
    """The event clock; events can be scheduled at an exact instant.

    Only this class writes to SimPy's private fields. `Environment.schedule`, `timeout` and `run`
    work with delays, and in floating point now + (instant - now) need not equal the instant, so
    that simultaneous events would be separated or change their order.
    """

    @property
    def num_pending(self) -> int:
        """Events that are still to happen."""
        return len(self._queue)

    def happens(self, event: Event, instant: float, *, first: bool = False) -> Event:
        """Let an event happen at an instant, before the end of any step then if it is `first`.

        Raises:
            InvariantError: Time has passed it.
        """
        if instant < self._now:
            raise InvariantError(f"something is to happen at {instant}, and it is {self._now}")
        event._ok = True
        event._value = None
        heappush(self._queue, (instant, URGENT if first else NORMAL, next(self._eid), event))
        return event

    def skip_to(self, instant: float) -> bool:
        """Set the clock to `instant`; False, without doing so, if an event is due by then."""
        if self.peek() <= instant:
            return False
        self._now = instant
        return True

    def call_at(self, instant: float, action: Callable[[], None]) -> None:
        """Call `action` at an instant, before any step that ends at that instant."""
        event = self.happens(Event(self), instant, first=True)
        assert event.callbacks is not None
        event.callbacks.append(lambda _: action())

    def call_after(self, delay: float, action: Callable[[], None]) -> None:
        """Call `action` after `delay` seconds, before any step that ends then."""
        self.call_at(self.now + delay, action)


class Cluster:
    """Replicas behind a router.

    `make_replica` gets a replica's number and its start time. With `keeps_up`, replicas keep up
    with the clock, since what they do has consequences outside. The first `started` replicas, by
    default all, run from the beginning.
    """

    is_alone = True
    """Whether the clock holds all events of this cluster beforehand, and no one else's."""
    has_notices = False
    """Whether the arrivals of replicas include news (`table.Arrival.kind`), not just requests."""

    def __init__(
        self,
        clock: EventClock,
        requests: list[Request],
        replicas: int,
        make_replica: Callable[[int, float], Replica],
        *,
        router: Router,
        seed: int,
        keeps_up: bool,
        started: int | None = None,
    ) -> None:
        self.clock = clock
        self._make_replica = make_replica
        self._router = router
        self._asked = asked_router(router, seed)
        self._keeps_up = keeps_up
        self._asleep: dict[Replica, Event] = {}
        """Replicas that wait for requests, and the event that wakes each of them."""
        self._draining: set[int] = set()
        """Replicas that take no more requests."""
        self._states = States(replicas)
        self._replicas: list[Replica | None] = [None] * replicas
        for number in range(replicas if started is None else started):
            self._replicas[number] = self._started(number)
        self._up = self._taking_requests()
        self._requests = requests
        self._stranded: list[Departure] = []
        """Requests that wait for any replica to be up."""
        self._scrapes = None
        if router.refresh_ms:
            period, delay = router.refresh_ms * 1e-3, router.index_delay
            is_right = delay is None or isinstance(delay, int | float)
            held_to(router, "index_delay", delay, is_right, "seconds, or None")
            self._scrapes = Scrapes(clock.call_at, self._looked_at, period, delay)

    def _started(self, number: int) -> Replica:
        replica = self._make_replica(number, self.clock.now)
        self._states.take_in(number, replica)
        if self._keeps_up and replica.leader is replica:
            is_one = len(self._replicas) == 1 or replica.is_grouped
            runs_ahead = is_one and self.is_alone
            run = self._run_ahead if runs_ahead else self._run_event_by_event
            self.clock.process(run(replica))
        return replica

    def _taking_requests(self) -> Roster:
        up = {
            number: replica
            for number, replica in enumerate(self._replicas)
            if replica is not None and replica.is_up and number not in self._draining
        }
        return Roster(self._states, list(up.values()), list(up))

    def number_of(self, request: Request) -> int:
        """Return the number of a request in the router's view."""
        return request.index

    def submit(self, request: Request) -> None:
        """Route a request to a replica now."""
        replica = self._chosen(request)
        if replica is None:
            self._stranded.append(Departure(request.index, self.clock.now))
            return
        replica.submit(request.index, self.clock.now, self.external_len(request.index))
        self._wake(replica)

    def external_len(self, request: int) -> int:
        """Return how many tokens of a request's KV entries a replica can load from elsewhere."""
        return 0

    def tell(self, replica: Replica, kind: int, request: int, row: int) -> None:
        """Send a replica that is up news of a row's KV entries (`table.REQUEST` has the kinds)."""
        replica.tell(kind, request, row, self.clock.now)
        self._wake(replica)

    def _move(self, departures: Iterable[Departure]) -> None:
        for departure in departures:
            replica = self._chosen(self._requests[departure.request])
            if replica is None:
                self._stranded.append(departure)
            else:
                external_len = self.external_len(departure.request)
                replica.take_over(departure, self.clock.now, external_len)
                self._wake(replica)

    def _chosen(self, request: Request) -> Replica | None:
        """Return the replica that the router chooses; None if none is up."""
        if not self._up:
            return None
        seen: Sequence[ReplicaView] = self._up
        if self._scrapes is not None:
            seen = self._scrapes.views(self._up, self.clock.now)
        elif self._router.looks_at_replicas:
            seen = self._looked_at(self.clock.now)
        if self.has_notices:
            seen = list(seen)
        prompt = PromptView(self.number_of(request), self._requests)
        return self._up.replicas[self._asked.answer(prompt, seen)]

    def _looked_at(self, now: float) -> Roster:
        """Return the replicas that are up, as they are now."""
        if not self._keeps_up:
            self._up.catch_up(now)
        return self._up

    def _wake(self, replica: Replica) -> None:
        if replica.leader in self._asleep:
            self._asleep.pop(replica.leader).succeed()

    def _run_event_by_event(self, replica: Replica) -> Generator[Event, None, None]:
        """Run a replica event by event, each at its time on the clock."""
        while replica.is_up:
            if replica.next_at == inf:
                self._asleep[replica] = self.clock.event()
                yield self._asleep[replica]
            else:
                yield self.clock.happens(Event(self.clock), replica.next_at)
            if replica.is_up:
                replica.advance(nextafter(self.clock.now, inf))

    def _run_ahead(self, replica: Replica) -> Generator[Event, None, None]:
        """Run the only replica, or group, up to the next event that is not an end of its own."""
        while replica.is_up:
            horizon = self.clock.peek()
            replica.advance(horizon)
            if replica.next_at < horizon or self.clock.peek() < horizon:
                continue  # requests have ended, which may have changed what happens next
            if horizon < inf:
                yield self.clock.happens(Event(self.clock), horizon)
            else:
                self._asleep[replica] = self.clock.event()
                yield self._asleep[replica]

    @property
    def up(self) -> list[Replica]:
        """The replicas that have not failed, those that drain among them."""
        return [replica for replica in self._replicas if replica is not None and replica.is_up]

    @property
    def is_at_rest(self) -> bool:
        """Whether no replica has anything to do by itself."""
        return all(replica.next_at == inf for replica in self.up)

    def check_stranded(self) -> None:
        """Raise if requests wait for a replica that will never come back.

        Raises:
            CapacityError
        """
        if self._stranded:
            raise CapacityError(
                f"incidents: every replica has failed for good and {len(self._stranded):,} "
                "requests are left unanswered; give a failure an 'until', or add replicas"
            )

    def finish(self) -> None:
        """Let all replicas do what is left, hand over their results, and go."""
        for replica in self.up:
            replica.finish()
        self._replicas = []
        self._up = self._taking_requests()

    def _at_now(self, number: int) -> Replica:
        """Return a replica that is up, after advancing it to the present."""
        replica = self._replicas[number]
        assert replica is not None
        replica.advance(self.clock.now)
        return replica

    def fail(self, number: int) -> None:
        """Let a replica fail; its requests are routed again, in the order of `Replica.fail`."""
        replica = self._at_now(number)
        left = replica.fail()
        self._asleep.pop(replica, None)
        self._draining.discard(number)
        self._up = self._taking_requests()
        self._move(left)

    def withdraw(self, request: int) -> int | None:
        """Drop a request whose client has gone; return the replica where it was, if at any."""
        self._stranded = [each for each in self._stranded if each.request != request]
        for number, replica in enumerate(self._replicas):
            if replica is not None and replica.is_up:
                replica.advance(self.clock.now)
                if replica.withdraw(request):
                    return number
        return None

    def restore(self, number: int) -> None:
        """Start a replica that is down; it gets the stranded requests."""
        self._replicas[number] = self._started(number)
        self._up = self._taking_requests()
        stranded, self._stranded = self._stranded, []
        self._move(stranded)

    def slow_down(self, number: int, factor: float) -> None:
        """Let every step that a replica schedules from now on take `factor` times as long."""
        replica = self._at_now(number)
        replica.slow_down(factor)

    def drain(self, number: int) -> None:
        """Let a replica take no more requests."""
        self._draining.add(number)
        self._up = self._taking_requests()

    def retire(self, number: int) -> float | None:
        """Remove a draining replica without requests; return when it was done, or None."""
        replica = self._at_now(number)
        if replica.num_running or replica.num_waiting:
            return None
        self.fail(number)
        self._replicas[number] = None
        return replica.now

    @property
    def num_stranded(self) -> int:
        """Requests that wait for any replica to be up."""
        return len(self._stranded)

    def look(self) -> Roster:
        """Return the replicas that take requests, in their present state, and flush all results."""
        for replica in self.up:
            replica.advance(self.clock.now)
            replica.flush()
        return self._up


def schedule_incidents(
    clock: EventClock, pools: Mapping[str | None, Replicas], incidents: Iterable[Failure | Slowdown]
) -> None:
    """Schedule incidents on the replicas of each pool; the key is None without pools.

    Call it before any request is submitted, so that incidents come first at any instant.
    """
    incidents = list(incidents)
    for incident in incidents:  # ends first: a replica can come back just when another fails
        if incident.until is not None:
            clock.call_after(incident.until, partial(incident.end, pools[incident.pool]))
    for incident in incidents:
        clock.call_after(incident.at, partial(incident.begin, pools[incident.pool]))
