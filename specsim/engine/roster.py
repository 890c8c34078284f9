"""What routers and autoscalers see of replicas: of each alone, of all of them as columns, and late.

A router may read their metrics only now and then (`Scraped`).
"""

from collections import deque
from collections.abc import Callable, Sequence, Set
from functools import cached_property, partial
from math import inf
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.core.step import Ints
from specsim.engine.replica import Replica
from specsim.engine.setup import zeros
from specsim.engine.table import LOADED, LOADING, REQUEST, RUNNING, WAITING
from specsim.routing import PromptView, ReplicaView


class VisibleReplica:
    """A replica as others see it (`specsim.routing.ReplicaView`)."""

    def __init__(self, replica: Replica) -> None:
        self._replica, self._ledger, self._facts = replica, replica.ledger, replica.facts

    @property
    def num_running(self) -> int:
        """Requests that run."""
        return self._replica.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that have been submitted but do not run."""
        return self._replica.num_waiting

    @property
    def outstanding_tokens(self) -> int:
        """Prompts of its unfinished requests, and what those that run have answered so far."""
        sequences = self._ledger.table.sequences
        status = sequences["status"]
        unseen = self._ledger.unseen
        unseen = unseen["request"][unseen["kind"] == REQUEST]
        is_waiting = (status == WAITING) | (status == LOADING) | (status == LOADED)
        waiting = sequences["prompt_len"][is_waiting].sum()
        running = sequences["known_len"][status == RUNNING].sum()
        return int(waiting + running + self._facts.rows["prompt_len"][unseen].sum())

    @property
    def kv_use(self) -> float:
        """Share of the KV blocks that sequences hold."""
        return 1.0 - self._ledger["num_free"] / self.most_blocks if self.most_blocks else 0.0

    @property
    def most_blocks(self) -> int:
        """KV blocks that sequences may hold."""
        return len(self._ledger.table.blocks) - 1

    def published_keys(self) -> Ints:
        """Return the keys of what its prefix cache holds that others may share."""
        keys: Ints = self._ledger.table.blocks["key"][: self._ledger["blocks_used"]]
        return keys[keys < 0]

    def cached_len(self, prompt: PromptView, keys: Set[int] | None = None) -> int:
        """Return how many leading tokens of a prompt its first KV cache group holds.

        Args:
            keys: What the cache holds; by default what it holds now.
        """
        known = set(self.published_keys().tolist()) if keys is None else keys
        fact, groups = self._facts.rows[prompt.index], self._ledger.table.groups
        first, end = int(fact["key_at"]), int(fact["key_at"]) + int(fact["num_keys"])
        width, size = int(groups["hashes"][0]), int(groups["block_size"][0])
        length = 0
        for key in self._facts.keys[first + width - 1 : end : width].tolist():
            if key not in known or length + size > prompt.prompt_len:
                break
            length += size
        return length


class States:
    """The state of every replica of a cluster side by side, so that all are looked at at once."""

    def __init__(self, count: int) -> None:
        self.rows: NDArray[np.void] = zeros("state", count)
        self.seen: dict[int, VisibleReplica] = {}

    def take_in(self, number: int, replica: Replica) -> None:
        """Let a new replica keep its state here."""
        replica.keep_state_in(self.rows, number)
        self.seen[number] = VisibleReplica(replica)


class Roster(Sequence[VisibleReplica]):
    """Replicas that take requests; of their columns, each is of shape (n,).

    Args:
        numbers: Their rows in `states`.
    """

    def __init__(self, states: States, replicas: Sequence[Replica], numbers: Sequence[int]) -> None:
        self.replicas = replicas
        self._seen = [states.seen[number] for number in numbers]
        self._rows = states.rows
        self._numbers = None if len(numbers) == len(states.rows) else np.array(numbers, dtype=int)

    def __len__(self) -> int:
        return len(self._seen)

    @overload
    def __getitem__(self, place: int) -> VisibleReplica: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[VisibleReplica]: ...
    def __getitem__(self, place: int | slice) -> VisibleReplica | Sequence[VisibleReplica]:
        return self._seen[place]

    def _column(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = self._rows[name]
        return column if self._numbers is None else column[self._numbers]

    @property
    def num_running(self) -> Ints:
        """Requests that run."""
        return self._column("num_running")

    @property
    def num_waiting(self) -> Ints:
        """Requests that have been submitted but do not run."""
        unseen: Ints = self._column("num_arrivals") - self._column("first_arrival")
        waiting: Ints = self._column("num_waiting") + self._column("num_loading")
        return waiting + unseen

    @property
    def kv_use(self) -> NDArray[np.float64]:
        """Share of the KV blocks that sequences hold."""
        most = self._most_blocks
        return np.where(most, 1.0 - self._column("num_free") / np.maximum(most, 1), 0.0)

    @cached_property
    def _most_blocks(self) -> Ints:
        return np.array([replica.most_blocks for replica in self._seen])

    @property
    def outstanding_tokens(self) -> Ints:
        """What `VisibleReplica.outstanding_tokens` says of each.

        Counted again only of those that have done something, or been told something, since this was
        last asked: of hundreds of replicas few have between one arrival and the next.
        """
        states, tokens = self._counted
        now = self._states_now()
        for place in np.flatnonzero((now != states).any(axis=1)).tolist():
            tokens[place] = self._seen[place].outstanding_tokens
            states[place] = now[place]
        return tokens.copy()

    @cached_property
    def _counted(self) -> tuple[Ints, Ints]:
        tokens = [replica.outstanding_tokens for replica in self._seen]
        return self._states_now().copy(), np.array(tokens, dtype=np.int64)

    def _states_now(self) -> Ints:
        """Return the states as plain numbers, shape (n, fields); records take longer to compare."""
        rows = self._rows if self._numbers is None else self._rows[self._numbers]
        return rows.view(np.int64).reshape(len(rows), -1)

    def catch_up(self, now: float) -> None:
        """Let all of them do what happens before an instant."""
        next_at = self._column("next_at")
        for place in np.flatnonzero(next_at < now).tolist():
            if self._column("next_at")[place] < now:  # a rank before it may have taken it along
                self.replicas[place].advance(now)


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
        index_delay: See `specsim.routing.Router.index_delay`.
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
