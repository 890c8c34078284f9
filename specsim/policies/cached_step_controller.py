"""The step controller that also looks at which tokens come."""

from dataclasses import dataclass
from itertools import chain
from struct import pack
from typing import ClassVar, Literal, final

import numpy as np

from specsim.core.step import BatchView, Ints, StepOutcome
from specsim.policies._estimate import PerRequest
from specsim.policies._kernels import (
    Desk,
    Moving,
    Seeing,
    blank,
    count_repeats,
    enter_all,
    move_entries,
)
from specsim.policies.base import Policy, ServerView

__all__ = ["CachedStepController", "SeenTokens"]


class SeenTokens:
    """Which tokens each request has seen, one table for all of them, and how it fares.

    Args:
        longest: Draft length that a request begins with, and that it does not exceed, in tokens.
    """

    def __init__(self, longest: int) -> None:
        self.lens = PerRequest(longest, dtype=np.int64)
        self._longest = longest
        self._table = np.full(1024, -1, dtype=np.int64)
        self._has_prompt = PerRequest(False, dtype=np.bool_)
        self.num_entries = 0
        """Tokens remembered, of all requests."""
        self._desk = self._new_desk()

    def add(self, outcome: StepOutcome, server: ServerView) -> None:
        """Count each request up or down, and remember its tokens."""
        requests, ids = outcome.requests, outcome.token_ids
        num = len(requests)
        counts, tokens = _packed(list(map(len, ids))), _packed(list(chain.from_iterable(ids)))
        self._add_prompts(requests, server)
        desk = self._put(requests, tokens, counts)
        desk.draft_lens[:num] = outcome.draft_lens
        desk.accepted_lens[:num] = outcome.accepted_lens
        self.num_entries += self._desk.runs[1]()

    def _add_prompts(self, requests: Ints, server: ServerView) -> None:
        has_prompt = self._has_prompt.up_to(requests)
        is_known = has_prompt[requests]
        if not is_known.all():
            for request in requests[~is_known]:
                ids = np.fromiter(server.prompt_token_ids(int(request)), dtype=np.int64)
                self.enter(np.array([request]), ids, np.array([len(ids)]))
                has_prompt[request] = True

    def enter(self, requests: Ints, tokens: Ints, counts: Ints) -> None:
        """Remember so many tokens of each of some requests, end to end."""
        self._put(requests, tokens, counts)
        self.num_entries += self._desk.runs[0]()

    def _put(self, requests: Ints, tokens: Ints, counts: Ints) -> Seeing:
        num, num_tokens = len(requests), len(tokens)
        self._make_room(num_tokens)
        desk = self._desk.fit(max(num, num_tokens), self.lens.up_to(requests))
        desk.requests[:num] = requests
        desk.tokens[:num_tokens] = tokens
        desk.num_tokens[:num] = counts
        desk.sizes[0] = num
        return desk

    def _make_room(self, num_tokens: int) -> None:
        needed = 2 * (self.num_entries + num_tokens)  # half of it stays empty
        if needed > len(self._table):
            larger = np.full(1 << needed.bit_length(), -1, dtype=np.int64)
            move_entries.bind(Moving(self._table, larger))()
            self._table = larger
            self._desk = self._new_desk()

    def _new_desk(self) -> Desk[Seeing]:
        return Desk(self._arrays, enter_all, count_repeats)

    def _arrays(self, room: int, lens: Ints) -> Seeing:
        sizes = np.array([0, self._longest, 0], dtype=np.int64)
        return blank(Seeing, room, table=self._table, lens=lens, sizes=sizes)


def _packed(numbers: list[int]) -> Ints:
    """Return whole numbers as an array, in half the time that numpy takes."""
    return np.frombuffer(pack(f"{len(numbers)}q", *numbers), dtype=np.int64)


@dataclass(slots=True)
class _Memory:
    server: ServerView
    seen: SeenTokens


@final
class CachedStepController(Policy):
    """Per request: longer drafts while the answer repeats tokens that it has seen before.

    A cache of tokens, seeded with the prompt, takes in every token of the answer. The draft grows
    by one if an accepted token was in the cache already, by another one if all drafts were
    accepted, and shrinks by one if no accepted token was in it. "A Drop-in Solution for On-the-fly
    Adaptation of Speculative Decoding", section 4.2. The bonus token was not speculated and does
    not count; but where nothing was drafted it stands in for it and can only add, so that a request
    climbs back from a draft length of 0.
    """

    kind: Literal["cached_step_controller"] = "cached_step_controller"
    uses_tokens: ClassVar[bool] = True

    def start(self, server: ServerView) -> _Memory:
        """Return empty caches."""
        return _Memory(server, SeenTokens(server.max_draft_len))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> Ints:
        """Return the counter of each request."""
        lens: Ints = memory.seen.lens.up_to(batch.requests)[batch.requests]
        return lens

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Count each request up or down, and remember its tokens."""
        memory.seen.add(outcome, memory.server)
