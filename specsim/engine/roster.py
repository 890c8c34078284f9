"""What routers and autoscalers see of replicas: of each alone, and of all of them as columns."""

from collections.abc import Sequence, Set
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import Ints
from specsim.engine.replica import Replica
from specsim.engine.setup import zeros
from specsim.engine.table import LOADED, LOADING, REQUEST, RUNNING, WAITING
from specsim.routing.base import PromptView


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
        most = len(self._ledger.table.blocks) - 1
        return 1.0 - self._ledger["num_free"] / most if most else 0.0

    def published_keys(self) -> Ints:
        """Return the keys of what its prefix cache holds that others may share."""
        keys: Ints = self._ledger.table.blocks["key"]
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
        replica.keep_state_in(self.rows[number : number + 1])
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

    def catch_up(self, now: float) -> None:
        """Let all of them do what happens before an instant."""
        for place in np.flatnonzero(self._column("next_at") < now).tolist():
            self.replicas[place].advance(now)
