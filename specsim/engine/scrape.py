"""Scrapes: what a router knows of replicas whose metrics it reads now and then."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.core.step import Ints
from specsim.engine.roster import VisibleReplica
from specsim.routing.base import PromptView, ReplicaView

MOST_ALIKE = 100_000
_NOTHING: Ints = np.zeros(0, dtype=np.int64)


class Scraped:
    """A replica as it was when its metrics were last read; before that, an empty one."""

    def __init__(self, replica: VisibleReplica) -> None:
        self._replica = replica
        self.num_running = 0
        self.num_waiting = 0
        self.outstanding_tokens = 0
        self.kv_use = 0.0
        self._contents: deque[tuple[float, Ints]] = deque()
        """What its prefix cache held, and when; the newest that may be known, and later ones."""
        self._known: tuple[Ints, frozenset[int]] = _NOTHING, frozenset()
        """Of those, the one that was asked for last, and as a set."""
        self._read_at = self._index_delay = 0.0

    def read(self, now: float, index_delay: float | None) -> bool:
        """Read the metrics, and what the prefix cache holds unless nobody asks.

        Returns whether the metrics have changed.
        """
        replica, before = self._replica, self._metrics()
        self.num_running, self.num_waiting = replica.num_running, replica.num_waiting
        self.outstanding_tokens, self.kv_use = replica.outstanding_tokens, replica.kv_use
        has_changed = before != self._metrics()
        if index_delay is None:
            return has_changed
        self._read_at, self._index_delay = now, index_delay
        self._contents.append((now, replica.published_keys()))
        while len(self._contents) > 1 and self._contents[1][0] <= now - index_delay:
            self._contents.popleft()
        return has_changed

    def _metrics(self) -> tuple[float, ...]:
        return self.num_running, self.num_waiting, self.outstanding_tokens, self.kv_use

    def cached_len(self, prompt: PromptView) -> int:
        """Return how many leading tokens of a prompt the cache held."""
        at, keys = self._contents[0] if self._contents else (inf, _NOTHING)
        if at > self._read_at - self._index_delay:
            keys = _NOTHING
        if self._known[0] is not keys:
            self._known = keys, frozenset(keys.tolist())
        return self._replica.cached_len(prompt, self._known[1])


class _Views(tuple[Scraped, ...]):
    """What is known of some replicas, and columns of it, which hold until the next scrape."""

    @cached_property
    def num_running(self) -> Ints:
        return np.array([view.num_running for view in self])

    @cached_property
    def num_waiting(self) -> Ints:
        return np.array([view.num_waiting for view in self])

    @cached_property
    def kv_use(self) -> NDArray[np.float64]:
        return np.array([view.kv_use for view in self])


class Scrapes:
    """Reads all replicas' metrics every so many seconds, as long as anything happens to them.

    Args:
        call_at: Lets something happen at an instant.
        read: Returns the replicas that are up, as they are now.
        index_delay: See `specsim.routing.base.Router.index_delay`.
    """

    def __init__(
        self,
        call_at: Callable[[float, Callable[[], None]], None],
        read: Callable[[float], Sequence[VisibleReplica]],
        period: float,
        index_delay: float | None,
    ) -> None:
        self._call_at = call_at
        self._read = read
        self._period = period
        self._index_delay = index_delay
        self._views: dict[VisibleReplica, Scraped] = {}
        self._is_due = False
        self._num_alike = 0
        """Scrapes in a row that found what the one before had found."""
        self._shown: tuple[Sequence[VisibleReplica], _Views] = ((), _Views())

    def views(self, replicas: Sequence[VisibleReplica], now: float) -> Sequence[ReplicaView]:
        """Return what is known of replicas, one of which is about to get a request."""
        if not self._is_due:
            self._schedule(now)
        if self._shown[0] is not replicas:
            for replica in replicas:
                if replica not in self._views:
                    self._views[replica] = Scraped(replica)
            self._shown = replicas, _Views(self._views[replica] for replica in replicas)
        return self._shown[1]

    def _schedule(self, now: float) -> None:
        instant = (int(now / self._period) + 1) * self._period
        if instant <= now:  # by rounding
            instant += self._period
        self._is_due = True
        self._call_at(instant, partial(self._scrape, instant))

    def _scrape(self, now: float) -> None:
        replicas = self._read(now)
        self._views = {each: self._views.get(each) or Scraped(each) for each in replicas}
        changes = [view.read(now, self._index_delay) for view in self._views.values()]
        self._num_alike = 0 if any(changes) else self._num_alike + 1
        if self._num_alike > MOST_ALIKE:
            raise ConfigError(
                f"routing.refresh_ms = {self._period * 1e3:g}: {MOST_ALIKE:,} times in a row up to "
                f"{now:,.4g} s, metrics were read and had not changed; raise it, or shorten what "
                "requests wait for"
            )
        self._is_due = False
        self._shown = (), _Views()
        if any(replica.num_running or replica.num_waiting for replica in replicas):
            self._schedule(now)
