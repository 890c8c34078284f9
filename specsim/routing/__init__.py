"""Routing: which replica serves a request; what a router is shown, and what it decides."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.core.families import Family, Member
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

    @property
    def kv_use(self) -> float:
        """Share of its KV blocks that unfinished requests hold (``vllm:kv_cache_usage_perc``)."""

    def cached_len(self, prompt: "PromptView") -> int:
        """Return how many leading tokens of a prompt its prefix cache holds."""


def loads(replicas: Sequence[ReplicaView], name: str) -> NDArray[Any]:
    """Return a property of all replicas, shape (n,); at once, where it lies in a column."""
    column: NDArray[Any] | None = getattr(replicas, name, None)
    if column is None:
        return np.array([getattr(replica, name) for replica in replicas])
    return column


class PromptView:
    """What a router may know of a request: its prompt, not where its answer will end."""

    __slots__ = ("_requests", "index")

    def __init__(self, index: int, requests: Sequence[Request]) -> None:
        self.index = index  # number of the request
        self._requests = requests

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return self._requests[self.index].prompt_len

    @property
    def session(self) -> int | None:
        """The session that it is a turn of, which clients name in a header."""
        return self._requests[self.index].session

    def shared_block_keys(self, block_size: int) -> Sequence[BlockKey]:
        """Return, as the prefix cache has it, what identifies the blocks that others may share."""
        request = self._requests[self.index]
        return request.shared_block_keys(block_size)[: request.prompt_len // block_size]


_LEAST_REFRESH_MS = 0.1


class Router(Member):
    """Chooses a replica for each request as it arrives, and again if that replica fails."""

    kind: str
    looks_at_replicas: ClassVar[bool] = True
    """Whether its choice depends on what the replicas have done since the last one."""

    refresh_ms: float | None = Field(default=None, ge=0)
    """How often it reads replicas' metrics, on which it relies until the next time; left out or 0,
    they are always up to date."""

    @model_validator(mode="after")
    def _check_refresh(self) -> Self:
        if self.refresh_ms and self.refresh_ms < _LEAST_REFRESH_MS:
            raise ValueError(
                f"refresh_ms = {self.refresh_ms:g} must be 0, for metrics that are always up to "
                f"date, or at least {_LEAST_REFRESH_MS}"
            )
        if self.refresh_ms is not None and not self.looks_at_replicas:
            raise ValueError(
                f"refresh_ms = {self.refresh_ms:g} is not used by routing '{self.kind}', which "
                "looks at no metrics; leave it out"
            )
        return self

    @property
    def index_delay(self) -> float | None:
        """How old what it knows of prefix caches is at least, seconds; None if it never asks."""
        return None

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


ROUTING = Family("routing", Router)
