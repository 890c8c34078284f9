"""Draft while the drafter is sure, then verify by goodput."""

from typing import ClassVar, Literal, final

import numpy as np
from pydantic import Field

from specsim.core.step import BatchView, DraftView, Ints
from specsim.policies.base import Policy, ServerView

__all__ = ["Confidence"]


@final
class Confidence(Policy):
    """Each request drafts until the drafter's confidence in a token falls to the threshold.

    Then the verification length v of highest goodput is chosen for the batch: the expected number
    of accepted tokens is the sum over all requests of the products of their confidences. Liu et
    al. (2024), "SmartSpec", appendix, algorithm 3. At least one token is always drafted (there,
    line 4: the confidence starts at 1), which is what the method pays for under load.
    """

    kind: Literal["confidence"] = "confidence"
    uses_confidences: ClassVar[bool] = True
    needs_sync: ClassVar[bool] = True
    threshold: float = Field(default=0.3, ge=0, le=1)
    """Confidence at or below which a request stops drafting."""

    @property
    def draft_threshold(self) -> float:
        """Confidence at or below which a request stops drafting."""
        return self.threshold

    def draft_lens(self, batch: BatchView, memory: ServerView) -> int:
        """Return the longest draft: the drafter stops by itself."""
        return memory.max_draft_len

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: ServerView) -> Ints:
        """Return what the verification length of highest goodput leaves of each draft."""
        survival = np.cumprod(drafts.confidences.T, axis=0).sum(axis=1)
        longest = len(survival)
        draft_lens = drafts.draft_lens
        ended = np.cumsum(np.bincount(draft_lens, minlength=longest + 1)[:longest])
        budgets, emitted = np.zeros(longest + 1, dtype=np.intp), np.zeros(longest + 1)
        np.cumsum(len(draft_lens) - ended, out=budgets[1:])
        np.cumsum(survival, out=emitted[1:])
        budgets += batch.load.batched_tokens - int(draft_lens.sum())
        emitted += batch.size - np.count_nonzero(batch.in_prefill)
        times = memory.step_times(batch.load, budgets, longest)
        verified: Ints = np.minimum(draft_lens, int((emitted / times).argmax()))
        return verified
