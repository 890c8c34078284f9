"""What every router decides: which replica serves a request."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from specsim.families import Member

__all__ = ["ReplicaView", "Router"]


class ReplicaView(Protocol):
    """What a router may know of a replica; read when it is asked."""

    @property
    def num_running(self) -> int:
        """Requests that run."""

    @property
    def num_waiting(self) -> int:
        """Requests that have been submitted but do not run."""


class Router(Member):
    """Chooses a replica for each request as it arrives."""

    kind: str

    def start(self, seed: int) -> Any:
        """Return a fresh memory for one run.

        Parameters
        ----------
        seed : int
            The experiment's, for a router that draws.

        Returns
        -------
        object
            Whatever `choose` wants to be given.
        """
        return seed

    @abstractmethod
    def choose(self, replicas: Sequence[ReplicaView], memory: Any) -> int:
        """Return the index of the replica that serves the next request.

        Parameters
        ----------
        replicas : sequence of ReplicaView
        memory : object
            From `start`; change it in place.

        Returns
        -------
        int
            In [0, len(replicas)).
        """
