"""Routers that look at the prompt: who has seen its beginning, and who has the best score."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.core.request import BlockKey
from specsim.core.rng import indexed_hash, stream_id
from specsim.core.settings import Settings
from specsim.core.step import Ints
from specsim.routing import PromptView, ReplicaView, Router, loads


class SentIndex:
    """The blocks of prompts that each replica was sent, the ones sent longest ago forgotten first.

    The blocks that no other request can share are counted, not listed: the index of the request
    stands for all of them. Only the first `match_blocks` of a prompt are looked at.
    """

    def __init__(self, block_size: int, max_blocks: int, match_blocks: int | None = None) -> None:
        self._block_size, self._max_blocks = block_size, max_blocks
        self._match_blocks = match_blocks
        self._sent: dict[ReplicaView, OrderedDict[BlockKey, int]] = {}
        """How many blocks each key stands for, the one sent longest ago first."""
        self._sizes: dict[ReplicaView, int] = {}
        self._holders: dict[BlockKey, set[ReplicaView]] = {}

    def num_blocks(self, prompt: PromptView) -> int:
        """Return how many blocks of a prompt are looked at."""
        num = prompt.prompt_len // self._block_size
        return num if self._match_blocks is None else min(num, self._match_blocks)

    def _shared(self, prompt: PromptView) -> Sequence[BlockKey]:
        return prompt.shared_block_keys(self._block_size)[: self._match_blocks]

    def known_lens(self, prompt: PromptView, replicas: Sequence[ReplicaView]) -> Ints:
        """Return how many leading blocks of a prompt each replica was sent before, shape (n,)."""
        found: dict[ReplicaView, int] = {}
        shared = self._shared(prompt)
        left = set(self._holders.get(shared[0] if shared else prompt.index, ()))
        for depth, key in enumerate(shared):
            gone = left - self._holders.get(key, set())
            found.update(dict.fromkeys(gone, depth))
            left -= gone
            if not left:
                break
        for replica in left:
            found[replica] = len(shared) + self._sent[replica].get(prompt.index, 0)
        if not found:
            return np.zeros(len(replicas), dtype=np.int64)
        return np.array([found.get(replica, 0) for replica in replicas])

    def remember(self, prompt: PromptView, replica: ReplicaView) -> None:
        """Note the blocks of a prompt that a replica is sent."""
        shared = self._shared(prompt)
        sent = self._sent.setdefault(replica, OrderedDict())
        size = self._sizes.get(replica, 0)
        # The end of a prompt first, so that it is forgotten before what leads up to it.
        own: BlockKey = prompt.index
        entries = [(own, self.num_blocks(prompt) - len(shared))]
        entries += [(key, 1) for key in reversed(shared)]
        for key, count in entries:
            if count:
                size += count - sent.pop(key, 0)
                sent[key] = count
                self._holders.setdefault(key, set()).add(replica)
        self._sizes[replica] = self._forget(replica, sent, size)

    def _forget(self, replica: ReplicaView, sent: OrderedDict[BlockKey, int], size: int) -> int:
        """Forget blocks beyond the limit; return how many are left."""
        while size > self._max_blocks:
            key, count = next(iter(sent.items()))
            cut = min(count, size - self._max_blocks)
            size -= cut
            sent[key] = count - cut
            if cut == count:
                del sent[key]
                self._holders[key].discard(replica)
                if not self._holders[key]:
                    del self._holders[key]
        return size


@final
class PrefixAffinity(Router):
    """The replica that was sent most of the prompt before, unless the load is too uneven.

    Like the cache-aware router of SGLang, whose defaults these are: if a replica was sent at least
    `threshold` of the prompt, it gets the request; otherwise the one with the fewest requests does.
    While the busiest has `balance_abs` requests more than the least busy one and `balance_rel`
    times as many, that one gets it whatever it has seen. The router goes by what it has sent, not
    by what the replicas' caches still hold. It needs a workload with token ids or prefix ids;
    without, no two prompts agree.
    """

    kind: Literal["prefix_affinity"] = "prefix_affinity"
    threshold: float = Field(default=0.3, gt=0, le=1)
    """Share of the prompt, in full blocks."""
    balance_abs: int = Field(default=64, ge=0)
    balance_rel: float = Field(default=1.5, ge=1)
    block_size: int = Field(default=16, gt=0)
    """Tokens by which prompts are compared."""
    max_blocks: int = Field(default=1 << 20, gt=0)
    """Blocks remembered per replica; the ones sent longest ago are forgotten."""

    def start(self, seed: int) -> SentIndex:
        return SentIndex(self.block_size, self.max_blocks)

    def choose(self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: SentIndex) -> int:
        busy = loads(replicas, "num_running") + loads(replicas, "num_waiting")
        place, most = int(busy.argmin()), busy.max()
        if most - busy[place] <= self.balance_abs or most <= self.balance_rel * busy[place]:
            known_lens = memory.known_lens(prompt, replicas)
            best = known_lens.max()
            if best and best >= self.threshold * memory.num_blocks(prompt):
                place = int(np.where(known_lens == best, busy, most + 1).argmin())
        memory.remember(prompt, replicas[place])
        return place


_STREAM = stream_id("routing")
Scores = NDArray[np.float64]  # of each replica, from 0 to 1


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
        is_asked = self.index == "precise" and self.weights.prefix
        return self.index_delay_ms * 1e-3 if is_asked else None

    def start(self, seed: int) -> _Memory:
        return _Memory(seed, SentIndex(self.block_size, self.max_blocks, self.match_blocks))

    def choose(self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: _Memory) -> int:
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
        self, prompt: PromptView, replicas: Sequence[ReplicaView], memory: _Memory
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
