"""Step controllers: one token more after a success, one less after a failure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np
from pydantic import Field

from specsim.core.desk import Ints, PerRequest
from specsim.core.step import BatchView, StepOutcome
from specsim.decisions.policy import Policy, ServerView


@dataclass(frozen=True, slots=True)
class _Memory:
    k_max: int
    lens: PerRequest


@final
class StepController(Policy[_Memory]):
    """Per request: any rejection takes one token off its draft, full acceptance adds one.

    A saturating counter as in branch prediction, which ignores cost. A draft of length 0 cannot be
    rejected, so a request climbs back from it; but a step that verified nothing although the
    counter was above 0, such as a prefill, is ignored. "A Drop-in Solution for On-the-fly
    Adaptation of Speculative Decoding", section 4.2, which calls it a finite state machine.
    """

    kind: Literal["step_controller"] = "step_controller"
    aliases = ("fsm",)
    k_start: int | None = Field(default=None, ge=0)
    """First draft length of a request, tokens; by default the longest."""

    def start(self, server: ServerView) -> _Memory:
        """Return a memory in which every request starts at `k_start`."""
        k_max = server.max_draft_len
        start = k_max if self.k_start is None else min(self.k_start, k_max)
        return _Memory(k_max, PerRequest(start, dtype=np.int64))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> Ints:
        return memory.lens.of(batch.requests)

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Count each request up or down."""
        all_lens, requests = memory.lens.up_to(outcome.requests), outcome.requests
        lens, drafted = all_lens[requests], outcome.draft_lens
        moved = lens + np.where(outcome.accepted_lens == drafted, 1, -1)
        np.minimum(np.maximum(moved, 0, out=moved), memory.k_max, out=moved)
        all_lens[requests] = np.where((drafted > 0) | (lens == 0), moved, lens)


@dataclass(frozen=True, slots=True)
class _Seen(_Memory):
    prompt_token_ids: Callable[[int], Iterable[int]]
    tokens: dict[int, set[int]] = field(default_factory=dict)
    """Token ids in each request's prompt and output so far."""


@final
class CachedStepController(Policy[_Seen]):
    """Per request: longer drafts while the answer repeats tokens that it has seen before.

    A cache of tokens, filled with the prompt, takes in every output token. The draft length grows
    by one if an accepted token was in the cache already, by another one if the whole draft was
    accepted, and shrinks by one if no accepted token was in the cache. "A Drop-in Solution for
    On-the-fly Adaptation of Speculative Decoding", section 4.2. The bonus token does not count,
    except where nothing was drafted: then it may only raise the length, so that a request climbs
    back from a draft length of 0.
    """

    kind: Literal["cached_step_controller"] = "cached_step_controller"
    uses_tokens = True

    def start(self, server: ServerView) -> _Seen:
        longest = server.max_draft_len
        return _Seen(longest, PerRequest(longest, dtype=np.int64), server.prompt_token_ids)

    def draft_lens(self, batch: BatchView, memory: _Seen) -> Ints:
        return memory.lens.of(batch.requests)

    def observe(self, outcome: StepOutcome, memory: _Seen) -> None:
        """Count each request up or down, and remember its tokens."""
        lens = memory.lens.up_to(outcome.requests)
        columns = (outcome.requests, outcome.draft_lens, outcome.accepted_lens)
        rows = zip(*(column.tolist() for column in columns), outcome.token_ids, strict=True)
        for request, draft_len, accepted_len, ids in rows:
            seen = memory.tokens.get(request)
            if seen is None:
                seen = memory.tokens[request] = set(memory.prompt_token_ids(request))
            is_repeated = not seen.isdisjoint(ids[:accepted_len] if draft_len else ids[-1:])
            change = 1 if is_repeated else -1 if draft_len else 0
            change += draft_len > 0 and accepted_len == draft_len
            lens[request] = min(max(lens[request] + change, 0), memory.k_max)
            seen.update(ids)
