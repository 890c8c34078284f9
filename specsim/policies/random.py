"""Drafts of random length: the lower reference."""

from typing import Literal, final

from specsim.core.step import BatchView, Ints
from specsim.policies.base import Policy, ServerView


@final
class Random(Policy):
    """Guess each accepted length at random and draft just that; goodput plays no part.

    The lower reference of Liu et al. (2024), "SmartSpec", section 7.2.1, fig. 14.
    """

    kind: Literal["random"] = "random"

    def draft_lens(self, batch: BatchView, memory: ServerView) -> Ints:
        """Return a length from 0 to the longest for each sequence, all equally likely."""
        return memory.rng.integers(0, memory.max_draft_len + 1, batch.size)
