"""Step controllers: one token more after a success, one less after a failure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from struct import pack
from typing import ClassVar, Literal, NamedTuple, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import inner
from specsim.core.desk import Desk, Ints, PerRequest, loop_on
from specsim.core.step import BatchView, StepOutcome
from specsim.policies.base import Policy, ServerView


@dataclass(frozen=True, slots=True)
class _Memory:
    k_max: int
    lens: PerRequest


@final
class StepController(Policy):
    """Per request: any rejection takes one token off its draft, full acceptance adds one.

    A saturating counter as in branch prediction, blind to cost. A draft of length 0 has nothing to
    reject, so a request climbs back from it; a step that verified nothing although the counter
    stands higher, such as a request's prefill, says nothing. "A Drop-in Solution for On-the-fly
    Adaptation of Speculative Decoding", section 4.2, which calls it a finite state machine.
    """

    kind: Literal["step_controller"] = "step_controller"
    aliases: ClassVar[tuple[str, ...]] = ("fsm",)
    k_start: int | None = Field(default=None, ge=0)
    """First draft length of a request, tokens; by default the longest."""

    def start(self, server: ServerView) -> _Memory:
        """Return the draft lengths of all requests, none of them known yet."""
        k_max = server.max_draft_len
        start = k_max if self.k_start is None else min(self.k_start, k_max)
        return _Memory(k_max, PerRequest(start, dtype=np.int64))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> Ints:
        """Return the counter of each request."""
        return memory.lens.of(batch.requests)

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Count each request up or down."""
        all_lens, requests = memory.lens.up_to(outcome.requests), outcome.requests
        lens, drafted = all_lens[requests], outcome.draft_lens
        moved = lens + np.where(outcome.accepted_lens == drafted, 1, -1)
        np.minimum(np.maximum(moved, 0, out=moved), memory.k_max, out=moved)
        all_lens[requests] = np.where((drafted > 0) | (lens == 0), moved, lens)


@inner
def _hashed(table: Ints, key: int) -> int:
    """Return where to look for a key first."""
    return (((key & 0x7FFFFFFF) * 2654435761 >> 12) + (key >> 32) * 40503) & (len(table) - 1)


@inner
def _entry(table: Ints, key: int) -> int:
    """Return where a key is, or where it belongs."""
    place = _hashed(table, key)
    while table[place] >= 0 and table[place] != key:
        place = (place + 1) & (len(table) - 1)
    return place


class Moving(NamedTuple):
    """Two tables of `Seeing`."""

    table: Ints
    larger: Ints


@loop_on(Moving)
def move_entries(desk: Moving) -> int:
    """Enter all that is in one table of tokens into another."""
    for index in range(len(desk.table)):
        key = desk.table[index]
        if key >= 0:
            desk.larger[_entry(desk.larger, key)] = key
    return 0


class Seeing(NamedTuple):
    """Which tokens requests have seen, and those of a step."""

    table: Ints
    """By hash, request and token in one number; -1 where nothing is. A power of two, never full."""
    lens: Ints
    """Of each request: moved up or down, and kept from 0 to the longest."""
    requests: Ints
    """Each below 2^31."""
    draft_lens: Ints
    accepted_lens: Ints
    tokens: Ints
    """Of the first request, then of the second and so on."""
    num_tokens: Ints
    """Of each request, at least one."""
    sizes: Ints
    """n, longest, and what keeps the compiler from leaving out a look ahead."""


@inner
def _look_ahead(desk: Seeing) -> int:
    """Look all tokens up once: the memory then loads them side by side, not one by one."""
    found = 0
    start = 0
    for row in range(desk.sizes[0]):
        for index in range(start, start + desk.num_tokens[row]):
            key = (desk.requests[row] << 32) | (desk.tokens[index] & 0x7FFFFFFF)
            found ^= desk.table[_hashed(desk.table, key)]
        start += desk.num_tokens[row]
    return found


@inner
def _enter(desk: Seeing, row: int, start: int, end: int) -> int:
    """Enter tokens of one request; return how many were new."""
    table = desk.table
    num_new = 0
    for index in range(start, end):
        key = (desk.requests[row] << 32) | (desk.tokens[index] & 0x7FFFFFFF)
        place = _entry(table, key)
        if table[place] < 0:
            table[place] = key
            num_new += 1
    return num_new


@loop_on(Seeing)
def enter_all(desk: Seeing) -> int:
    """Enter the tokens of each request into the table; return how many were new."""
    num_new = 0
    start = 0
    for row in range(desk.sizes[0]):
        end = start + desk.num_tokens[row]
        num_new += _enter(desk, row, start, end)
        start = end
    return num_new


@loop_on(Seeing)
def count_repeats(desk: Seeing) -> int:
    """Count requests by whether they have seen their tokens; return how many are new."""
    table, lens, longest = desk.table, desk.lens, desk.sizes[1]
    draft_lens, accepted_lens = desk.draft_lens, desk.accepted_lens
    desk.sizes[2] = _look_ahead(desk)
    num_new = 0
    start = 0
    for row in range(desk.sizes[0]):
        request = desk.requests[row]
        end = start + desk.num_tokens[row]
        first, last = end - 1, end  # where nothing was drafted, the bonus token counts
        if draft_lens[row] > 0:
            first, last = start, min(start + accepted_lens[row], end)
        is_seen = False
        for index in range(first, last):
            key = (request << 32) | (desk.tokens[index] & 0x7FFFFFFF)
            if table[_entry(table, key)] == key:
                is_seen = True
        num_new += _enter(desk, row, start, end)
        change = 1 if is_seen else 0
        if draft_lens[row] > 0:
            change = 1 if is_seen else -1
            if accepted_lens[row] == draft_lens[row]:
                change += 1
        lens[request] = min(max(lens[request] + change, 0), longest)
        start = end
    return num_new


class SeenTokens:
    """Which tokens each request has seen, one table for all of them, and how it fares.

    Args:
        longest: Draft length that a request begins with, and that it does not exceed, in tokens.
        prompt_token_ids: Prompt of a request.
    """

    def __init__(self, longest: int, prompt_token_ids: Callable[[int], Iterable[int]]) -> None:
        self.lens = PerRequest(longest, dtype=np.int64)
        self._longest = longest
        self._prompt_token_ids = prompt_token_ids
        self._table = np.full(1024, -1, dtype=np.int64)
        self._has_prompt = PerRequest(False, dtype=np.bool_)
        self.num_entries = 0
        """Tokens remembered, of all requests."""
        self._desk = self._new_desk()

    def add(self, outcome: StepOutcome) -> None:
        """Count each request up or down, and remember its tokens."""
        requests, ids = outcome.requests, outcome.token_ids
        num = len(requests)
        counts, tokens = _packed(list(map(len, ids))), _packed(list(chain.from_iterable(ids)))
        self._add_prompts(requests)
        desk = self._put(requests, tokens, counts)
        desk.draft_lens[:num] = outcome.draft_lens
        desk.accepted_lens[:num] = outcome.accepted_lens
        self.num_entries += self._desk.runs[1]()

    def _add_prompts(self, requests: Ints) -> None:
        has_prompt = self._has_prompt.up_to(requests)
        is_known = has_prompt[requests]
        if not is_known.all():
            for request in requests[~is_known]:
                ids = np.fromiter(self._prompt_token_ids(int(request)), dtype=np.int64)
                self.enter(np.array([request]), ids, np.array([len(ids)]))
                has_prompt[request] = True

    def enter(self, requests: Ints, tokens: Ints, counts: Ints) -> None:
        """Remember so many tokens of each of some requests, end to end."""
        self._put(requests, tokens, counts)
        self.num_entries += self._desk.runs[0]()

    def _put(self, requests: Ints, tokens: Ints, counts: Ints) -> Seeing:
        num, num_tokens = len(requests), len(tokens)
        self._make_room(num_tokens)
        desk = self._desk.fit(max(num, num_tokens), requests)
        desk.tokens[:num_tokens] = tokens
        desk.num_tokens[:num] = counts
        desk.sizes[:2] = num, self._longest
        return desk

    def _make_room(self, num_tokens: int) -> None:
        needed = 2 * (self.num_entries + num_tokens)  # half of it stays empty
        if needed > len(self._table):
            larger = np.full(1 << needed.bit_length(), -1, dtype=np.int64)
            move_entries.bind(Moving(self._table, larger))()
            self._table = larger
            self._desk = self._new_desk()

    def _new_desk(self) -> Desk[Seeing]:
        return Desk(Seeing, enter_all, count_repeats, table=self._table, lens=self.lens)


def _packed(numbers: list[int]) -> Ints:
    """Return whole numbers as an array, in half the time that numpy takes."""
    return np.frombuffer(pack(f"{len(numbers)}q", *numbers), dtype=np.int64)


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

    def start(self, server: ServerView) -> SeenTokens:
        """Return empty caches."""
        return SeenTokens(server.max_draft_len, server.prompt_token_ids)

    def draft_lens(self, batch: BatchView, memory: SeenTokens) -> Ints:
        """Return the counter of each request."""
        return memory.lens.of(batch.requests)

    def observe(self, outcome: StepOutcome, memory: SeenTokens) -> None:
        """Count each request up or down, and remember its tokens."""
        memory.add(outcome)
