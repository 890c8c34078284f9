"""What a router is shown, and what it decides."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from specsim.core.families import Member
from specsim.core.request import BlockKey, Request


class ReplicaView(Protocol):
    """What a router may know of a replica; read when it is asked.

    A replica that has failed and come back is another object, with empty caches.
    """

    @property
    def num_running(self) -> int:
        """Requests that run."""

    @property
    def num_waiting(self) -> int:
        """Requests that have been submitted but do not run."""

    @property
    def outstanding_tokens(self) -> int:
        """Prompts of its unfinished requests, and what those that run have answered so far."""


class PromptView:
    """What a router may know of a request: its prompt, not where its answer will end."""

    __slots__ = ("_requests", "index")

    def __init__(self, index: int, requests: Sequence[Request]) -> None:
        self.index = index
        """Number of the request."""
        self._requests = requests

    def block_keys(self, block_size: int) -> Sequence[BlockKey]:
        """Return the identity of each full block of the prompt, as the prefix cache has it."""
        request = self._requests[self.index]
        return request.block_keys(block_size)[: request.prompt_len // block_size]


class Router(Member):
    """Chooses a replica for each request as it arrives, and again if that replica fails."""

    kind: str
    looks_at_replicas: ClassVar[bool] = True
    """Whether its choice depends on what the replicas have done since the last one."""

    def start(self, seed: int) -> Any:
        """Return a fresh memory for `choose` in one run; by default the experiment's seed."""
        return seed

    @abstractmethod
    def choose(self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: Any) -> int:
        """Return the place, in [0, len(replicas)), of the replica that serves a request.

        Args:
            replicas: Those that are up, at least one.
            memory: From `start`; change it in place.
        """
