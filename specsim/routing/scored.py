"""The replica with the best score: what gateways of Kubernetes clusters do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.core.rng import indexed_hash, stream_id
from specsim.core.settings import Settings
from specsim.routing._sent import SentIndex
from specsim.routing.base import PromptView, ReplicaView, Router, loads

_STREAM = stream_id("routing")
Scores = NDArray[np.float64]
"""Of each replica, from 0 to 1."""


class ScoreWeights(Settings):
    """What each score, from 0 to 1, counts for; without a weight it is not asked for."""

    queue: float = Field(default=2.0, ge=0)
    """Few requests that wait, between the most and the fewest of any replica."""
    kv_use: float = Field(default=2.0, ge=0)
    """Share of the KV blocks that is free."""
    prefix: float = Field(default=3.0, ge=0)
    """Share of the prompt that is cached."""
    running: float = Field(default=0.0, ge=0)
    """Few requests that run, between the most and the fewest of any replica."""
    session: float = Field(default=0.0, ge=0)
    """Whether it had the turn before of the same session."""

    @model_validator(mode="after")
    def _check_any(self) -> Self:
        if not any(self.model_dump().values()):
            raise ValueError("all weights are 0; give one of them")
        return self


@dataclass
class _Memory:
    seed: int
    sent: SentIndex
    sessions: dict[int, ReplicaView] = field(default_factory=dict)


@final
class Scored(Router):
    """The replica with the largest weighted sum of scores, of equals any by the seed.

    As the endpoint picker of the Gateway API inference extension and of llm-d does: scorers
    ``queue-scorer``, ``kv-cache-utilization-scorer``, ``prefix-cache-scorer``,
    ``running-requests-size-scorer`` and ``session-affinity-scorer``, then ``max-score-picker``
    (github.com/llm-d/llm-d-router, ``pkg/epp``). It does not know what it has sent since replicas'
    metrics were last read, which it does every 50 ms there; weights and sizes are the defaults
    there, too. `index` says how it knows what is cached: ``approximate``, from what it has sent
    where, or ``precise``, from what the replicas say of their caches (KV events).
    """

    kind: Literal["scored"] = "scored"
    weights: ScoreWeights = ScoreWeights()
    refresh_ms: float = Field(default=50.0, ge=0)
    """How often replicas' metrics are read; 0: they are always up to date."""
    index: Literal["approximate", "precise"] = "approximate"
    index_delay_ms: float = Field(default=0.0, ge=0)
    """How old what a precise index knows is at least; it is read when metrics are."""
    block_size: int = Field(default=16, gt=0)
    """Tokens by which an approximate index compares prompts."""
    match_blocks: int = Field(default=256, gt=0)
    """Leading blocks of a prompt that an approximate index looks at."""
    max_blocks: int = Field(default=31_250, gt=0)
    """Blocks remembered per replica; the ones sent longest ago are forgotten."""

    @model_validator(mode="after")
    def _check_delay(self) -> Self:
        if self.index_delay_ms and (self.index != "precise" or not self.refresh_ms):
            raise ValueError(
                f"index_delay_ms = {self.index_delay_ms:g} is of index precise with a refresh_ms "
                "above 0; set these, or leave it out"
            )
        return self

    @property
    def index_delay(self) -> float | None:
        """How old its knowledge of caches is at least, seconds; None if it does not ask."""
        is_asked = self.index == "precise" and self.weights.prefix
        return self.index_delay_ms * 1e-3 if is_asked else None

    def start(self, seed: int) -> _Memory:
        """Return a memory of what was sent: nothing."""
        return _Memory(seed, SentIndex(self.block_size, self.max_blocks, self.match_blocks))

    def choose(self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: _Memory) -> int:
        """Return the replica with the best score."""
        scorers: dict[str, Callable[[], Scores]] = {
            "queue": lambda: _fewest(loads(replicas, "num_waiting")),
            "kv_use": lambda: 1.0 - loads(replicas, "kv_use"),
            "prefix": lambda: self._cached_shares(prompt, replicas, memory),
            "running": lambda: _fewest(loads(replicas, "num_running")),
            "session": lambda: _is_last(prompt, replicas, memory),
        }
        scores = np.zeros(len(replicas))
        for name, scorer in scorers.items():
            if weight := getattr(self.weights, name):
                scores += weight * scorer()
        tied = np.flatnonzero(scores == scores.max())
        place = int(tied[indexed_hash(memory.seed, _STREAM, prompt.index, 0) * len(tied) >> 64])
        if self.index == "approximate" and self.weights.prefix:
            memory.sent.remember(prompt, replicas[place])
        if prompt.session is not None and self.weights.session:
            memory.sessions[prompt.session] = replicas[place]
        return place

    def _cached_shares(
        self,
        prompt: PromptView,
        replicas: Sequence[ReplicaView],
        memory: _Memory,
    ) -> Scores:
        if self.index == "precise":
            lens = np.array([replica.cached_len(prompt) for replica in replicas])
            return lens / prompt.prompt_len
        return memory.sent.known_lens(prompt, replicas) / max(1, memory.sent.num_blocks(prompt))


def _fewest(counts: NDArray[Any]) -> Scores:
    """Return 1 for the fewest, 0 for the most, and 1 for all if they are equal."""
    low, high = counts.min(), counts.max()
    return (high - counts) / (high - low) if high > low else np.ones(len(counts))


def _is_last(prompt: PromptView, replicas: Sequence[ReplicaView], memory: _Memory) -> Scores:
    last = None if prompt.session is None else memory.sessions.get(prompt.session)
    return np.array([float(replica is last) for replica in replicas])
