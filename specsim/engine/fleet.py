"""Fleet: replicas that start, drain and go, as an autoscaler decides."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import ceil, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.autoscaling import Autoscaler, PoolView
from specsim.core.errors import ConfigError
from specsim.engine.answers import asked_autoscaler
from specsim.engine.cluster import Cluster, EventClock

FREE, STARTING, UP, DRAINING, FAILED = range(5)


class Count(NamedTuple):
    """How many replicas there are from an instant on, seconds since the start of the run."""

    at: float
    up: int
    starting: int
    draining: int
    failed: int
    """Slots that are out of service."""
    wanted: int


@dataclass
class Scaling:
    """What an autoscaler has made of a run."""

    counts: list[Count] = field(default_factory=list)
    """One for every change."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """When each replica was paid for: from the decision to start it until it was gone."""

    @classmethod
    def fixed(cls, replicas: int) -> "Scaling":
        """Return that of replicas that neither come nor go, whatever happens to them."""
        return cls([Count(0.0, replicas, 0, 0, 0, replicas)], [(0.0, inf)] * replicas)

    def replica_seconds(self, end: float) -> float:
        """Return the time of all replicas together up to the end of the run, seconds."""
        return sum(max(0.0, min(until, end) - start) for start, until in self.spans)


class Fleet:
    """The slots of a cluster, and what is in each; incidents happen to slots.

    Args:
        recent: Returns `PoolView.limit_use`.
        is_over: Tells whether all requests have ended, as far as replicas have been looked at.
        fleets: Of the run, to which it is added.
        name: Of the pool.
        most_looks: How often it may look.
    """

    def __init__(
        self,
        clock: EventClock,
        cluster: Cluster,
        policy: Autoscaler,
        started: int,
        *,
        recent: Callable[[], NDArray[np.float64]],
        is_over: Callable[[], bool],
        fleets: "list[Fleet]",
        name: str | None = None,
        most_looks: float = inf,
    ) -> None:
        self.scaling = Scaling()
        self._name, self._fleets = name, fleets
        fleets.append(self)
        self._clock = clock
        self._cluster = cluster
        self._policy = policy
        self._asked = asked_autoscaler(policy)
        self._recent = recent
        self._is_over = is_over
        self._looks_left = most_looks
        self._states = [UP] * started + [FREE] * (policy.max_replicas - started)
        self._since = [0.0] * policy.max_replicas
        """When what is in a slot was started."""
        self._drained_at = [0.0] * policy.max_replicas
        self._order = list(range(started))
        """Slots in the order in which what is in them was started."""
        self._factors: dict[int, float] = {}
        """How many times as long everything takes in slots that have got slow."""
        self._wanted = started
        self._said = deque([(0.0, started)])
        """How many replicas were wanted at the last looks."""
        self._note()
        clock.call_after(policy.interval_s, self._look)

    def _count(self, *states: int) -> int:
        return sum(state in states for state in self._states)

    def _note(self) -> None:
        up, starting, draining, failed = map(self._count, (UP, STARTING, DRAINING, FAILED))
        count = Count(self._clock.now, up, starting, draining, failed, self._wanted)
        counts = self.scaling.counts
        if counts and counts[-1].at == count.at:
            counts.pop()
        if not counts or counts[-1][1:] != count[1:]:
            counts.append(count)

    def _look(self) -> None:
        """See how replicas do, decide how many there are to be, and look again later."""
        replicas = self._cluster.look()
        self._retire_empty()
        unrouted = self._cluster.num_stranded
        if self._is_over():
            return
        self._count_look()
        pool = PoolView(
            self._clock.now,
            replicas,
            name=self._name,
            num_starting=self._count(STARTING),
            num_draining=self._count(DRAINING),
            num_unrouted=unrouted,
            **({"limit_use": self._recent()} if self._policy.looks_at_ends else {}),
        )
        enough = self._asked.answer(pool)
        self._wanted = self._decided(enough, pool)
        self._adjust()
        if not self._is_stuck():
            self._clock.call_after(self._policy.interval_s, self._look)

    def _is_stuck(self) -> bool:
        """Tell whether nothing happens any more but that fleets look, of which nothing comes."""
        if self._clock.num_pending >= len(self._fleets):
            return False
        return all(each._cluster.is_at_rest and not each._can_help() for each in self._fleets)

    def _can_help(self) -> bool:
        """Tell whether requests wait for a replica, and there is a slot for one."""
        self._retire_empty()
        return self._cluster.num_stranded > 0 and self._count(FREE) > 0

    def _count_look(self) -> None:
        """Raise a ConfigError if a run that is mostly waiting would be looked at without end."""
        self._looks_left -= 1
        if self._looks_left < 0:
            raise ConfigError(
                f"autoscaling.interval_s = {self._policy.interval_s:g}: too many looks at the "
                f"replicas up to {self._clock.now:,.4g} s, and the run is not over; raise it, "
                "shorten start_up_s or the pauses of workload and incidents, or go on with "
                "`specsim --large` before the command"
            )

    def _decided(self, enough: float, pool: PoolView) -> int:
        """Return how many replicas are wanted: out at once, in after the delay."""
        policy, wanted = self._policy, pool.num_present
        if abs(enough - wanted) > policy.tolerance * wanted:
            wanted = ceil(min(enough, policy.max_replicas) - 1e-9)  # not one more by rounding
        least = max(policy.min_replicas, int(pool.num_unrouted > 0))
        wanted = min(max(wanted, least), policy.max_replicas)
        self._said.append((pool.now, wanted))
        while self._said[0][0] < pool.now - policy.scale_in_delay_s:
            self._said.popleft()
        if wanted >= self._wanted:
            return wanted
        return min(self._wanted, max(said for _, said in self._said))

    def _adjust(self) -> None:
        """Start or take away replicas until there are as many as wanted, as far as slots allow."""
        free = (slot for slot, state in enumerate(self._states) if state == FREE)
        for _ in range(self._wanted - self._count(UP, STARTING)):
            slot = next(free, None)
            if slot is not None:
                self._start(slot)
        surplus = self._count(UP, STARTING) - self._wanted
        last = [slot for slot in reversed(self._order) if self._states[slot] in (UP, STARTING)]
        last.sort(key=lambda slot: self._states[slot])  # what has not come up goes first
        for slot in last[: max(0, surplus)]:
            if self._states[slot] == STARTING:
                self._gone(slot, FREE, self._clock.now)
            else:
                self._states[slot], self._drained_at[slot] = DRAINING, self._clock.now
                self._cluster.drain(slot)
        self._retire_empty()
        self._note()

    def _start(self, slot: int) -> None:
        self._states[slot], self._since[slot] = STARTING, self._clock.now
        self._order.append(slot)
        begun = self._clock.now
        if self._policy.start_up_s:
            self._clock.call_after(self._policy.start_up_s, partial(self._bring_up, slot, begun))
        else:
            self._bring_up(slot, begun)

    def _bring_up(self, slot: int, begun: float) -> None:
        if self._states[slot] != STARTING or self._since[slot] != begun:
            return  # it was given up
        self._states[slot] = UP
        self._cluster.restore(slot)
        if slot in self._factors:
            self._cluster.slow_down(slot, self._factors[slot])
        self._note()

    def _gone(self, slot: int, state: int, at: float) -> None:
        self._states[slot] = state
        self._order.remove(slot)
        self.scaling.spans.append((self._since[slot], at))

    def _retire_empty(self) -> None:
        for slot, state in enumerate(self._states):
            if state == DRAINING and (done_at := self._cluster.retire(slot)) is not None:
                self._gone(slot, FREE, max(done_at, self._drained_at[slot]))

    def fail(self, number: int) -> None:
        """Let what is in a slot die; another is started elsewhere, if there is a free slot."""
        self._retire_empty()
        if self._states[number] in (UP, DRAINING):
            self._cluster.fail(number)
        if self._states[number] == FREE:
            self._states[number] = FAILED
        else:
            self._gone(number, FAILED, self._clock.now)
        self._adjust()

    def restore(self, number: int) -> None:
        """Let a slot be used again."""
        self._states[number] = FREE
        self._adjust()

    def slow_down(self, number: int, factor: float) -> None:
        """Let whatever is in a slot take `factor` times as long from now on."""
        self._factors[number] = factor
        if self._states[number] in (UP, DRAINING):
            self._cluster.slow_down(number, factor)

    def finish(self) -> Scaling:
        """Return what came of it, after the last request has ended; before the cluster finishes."""
        self._cluster.look()
        self._retire_empty()
        for slot in list(self._order):
            self._gone(slot, FREE, inf)
        return self.scaling
