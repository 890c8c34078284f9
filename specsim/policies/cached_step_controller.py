"""The step controller that also looks at which tokens come."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

from specsim.policies.base import Policy, ServerView
from specsim.step import BatchView, StepOutcome

__all__ = ["CachedStepController"]


@dataclass(slots=True)
class _Memory:
    server: ServerView
    lens: dict[int, int] = field(default_factory=dict)
    caches: dict[int, set[int]] = field(default_factory=dict)


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
        return _Memory(server)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> list[int]:
        """Return the counter of each request."""
        longest = memory.server.max_draft_len
        get = memory.lens.get
        return [get(request, longest) for request in batch.requests]

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Count each request up or down, and remember its tokens."""
        server, longest = memory.server, memory.server.max_draft_len
        caches, lens = memory.caches, memory.lens
        for request, draft_len, accepted_len, tokens in zip(
            outcome.requests,
            outcome.draft_lens,
            outcome.accepted_lens,
            outcome.token_ids,
            strict=True,
        ):
            cache = caches.get(request)
            if cache is None:
                cache = caches[request] = set(server.prompt_token_ids(request))
                lens[request] = longest
            if draft_len:
                change = -1 if cache.isdisjoint(tokens[:accepted_len]) else 1
                change += accepted_len == draft_len
            else:
                change = int(tokens[-1] in cache)
            moved = lens[request] + change
            lens[request] = 0 if moved < 0 else longest if moved > longest else moved
            cache.update(tokens)
