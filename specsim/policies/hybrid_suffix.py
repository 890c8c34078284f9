"""The lookup's draft where it is promising, else the fallback's."""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.step import BatchView, StepOutcome
from specsim.decisions.policy import PicksSource, ServerView
from specsim.policies.parts.estimate import PRIOR_TRIALS, expected_len


@dataclass(slots=True)
class HybridMemory:
    """Running mean of what the fallback's drafts had accepted."""

    max_draft_len: int
    accepted: float  # draft tokens
    drafts: float = PRIOR_TRIALS

    def add(self, accepted_len: int) -> None:
        """Count the accepted length of one draft of the fallback."""
        self.accepted += accepted_len
        self.drafts += 1


@final
class HybridSuffix(PicksSource[HybridMemory]):
    """Use the suffix tree's draft if its SCORE exceeds tau, else let the fallback draft.

    SCORE is the sum of the estimated survival probabilities of the draft's tokens: the number of
    them that it expects to be accepted. Oliaro et al. (2024), "SuffixDecoding", section "hybrid".
    Where the fallback's tokens per step are known, tau near them is best, and 0 where text repeats
    itself (appendix B.1). Without a `tau`, the tokens per step measured so far are used: one more
    than the fallback's mean accepted length, which makes up for SCORE being too confident
    (experiments/real-tokens).
    """

    kind: Literal["hybrid_suffix"] = "hybrid_suffix"
    examples = ({}, {"tau": 2.0})
    needs_sync = True
    tau: float | None = Field(default=None, ge=0)
    """Tokens; 0: never fall back; by default the fallback's mean tokens per step so far."""

    def start(self, server: ServerView) -> HybridMemory:
        """Return a memory that assumes a fallback with alpha = 0.7."""
        return self.new_memory(server.max_draft_len)

    def new_memory(self, max_draft_len: int) -> HybridMemory:
        """Return the memory of `start`, for callers without a `ServerView`."""
        typical = expected_len(0.7, max_draft_len) - 1.0
        return HybridMemory(max_draft_len, typical * PRIOR_TRIALS)

    def draft_lens(self, batch: BatchView, memory: HybridMemory) -> int:
        """Return the longest draft: each drafter makes its own."""
        return memory.max_draft_len

    def uses_lookup(self, scores: NDArray[np.float64], memory: HybridMemory) -> NDArray[np.bool_]:
        """Return whether each score exceeds tau."""
        if self.tau == 0:
            return np.ones(len(scores), dtype=bool)
        tau = 1.0 + memory.accepted / memory.drafts if self.tau is None else self.tau
        return scores > tau

    def observe(self, outcome: StepOutcome, memory: HybridMemory) -> None:
        """Count the accepted lengths of the fallback's drafts."""
        if not len(outcome.drafters):
            return
        by_fallback = (outcome.drafters > 0) & (outcome.draft_lens > 0)
        for accepted_len in outcome.accepted_lens[by_fallback].tolist():
            memory.add(accepted_len)
