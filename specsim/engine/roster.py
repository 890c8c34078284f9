"""Roster: the replicas that a router chooses from, with what it looks at as columns."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import Ints
from specsim.engine.replica import Replica
from specsim.engine.setup import zeros


class States:
    """The state of every replica of a cluster side by side, so that all are looked at at once."""

    def __init__(self, count: int) -> None:
        self.rows: NDArray[np.void] = zeros("state", count)

    def take_in(self, number: int, replica: Replica) -> None:
        """Let a new replica keep its state here."""
        replica.keep_state_in(self.rows[number : number + 1])


class Roster(Sequence[Replica]):
    """Replicas that take requests; of their columns, each is of shape (n,).

    Args:
        numbers: Their rows in `states`.
    """

    def __init__(self, states: States, replicas: Sequence[Replica], numbers: Sequence[int]) -> None:
        self._replicas = replicas
        self._rows = states.rows
        self._numbers = None if len(numbers) == len(states.rows) else np.array(numbers, dtype=int)

    def __len__(self) -> int:
        return len(self._replicas)

    @overload
    def __getitem__(self, place: int) -> Replica: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Replica]: ...
    def __getitem__(self, place: int | slice) -> Replica | Sequence[Replica]:
        return self._replicas[place]

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
            self._replicas[place].advance(now)
