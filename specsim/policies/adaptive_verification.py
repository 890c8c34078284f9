"""vLLM's adaptive verification: the surest drafts of the whole batch, as many as pay."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from specsim.policies._budget import largest
from specsim.policies._estimate import PerRequest
from specsim.policies.base import Policy, ServerView
from specsim.step import BatchView, DraftView

__all__ = ["AdaptiveVerification"]


@dataclass(slots=True)
class _Memory:
    server: ServerView
    stale: PerRequest
    """Confidences of each request's last draft; 1 for new requests."""


@final
class AdaptiveVerification(Policy):
    """Draft the longest length, verify the B drafts of highest survival S = product of confidences.

    B = argmax (n + sum of the B largest S) / (draft cost + verify cost at B drafts). The engine has
    to size the step before this step's confidences have come back from the GPU, so B is chosen by
    the confidences of each request's previous draft, 1 for a new request, while the GPU gives the
    B places to the drafts of this step that are surest now. vLLM 0.32.0
    ``enable_adaptive_verification``, ``v1/worker/gpu/spec_decode/adaptive_verification.py
    get_num_tokens, reallocate_drafts``. All drafts are scheduled: what is dropped frees time, not
    token budget.

    vLLM allocates on the GPU and so can schedule asynchronously; here the step is synchronous.
    """

    kind: Literal["adaptive_verification"] = "adaptive_verification"
    uses_confidences: ClassVar[bool] = True
    needs_sync: ClassVar[bool] = True

    def start(self, server: ServerView) -> _Memory:
        """Return confidence 1 for all."""
        return _Memory(server, PerRequest(1.0, server.max_draft_len))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int:
        """Return the longest draft."""
        return memory.server.max_draft_len

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> list[int]:
        """Return how many drafts of each request are among the B surest of the batch."""
        draft_lens = np.array(drafts.draft_lens, dtype=np.intp)
        longest = drafts.confidences.shape[1]
        is_draft = np.arange(longest)[:, np.newaxis] < draft_lens
        rows = memory.stale.rows(batch.requests)
        stale = memory.stale[rows]
        survival = np.cumprod(stale[:, :longest].T, axis=0, dtype=np.float64)[is_draft]
        budget = self._budget(batch, survival, memory)
        stale[:, :longest] = np.where(is_draft.T, drafts.confidences, stale[:, :longest])
        memory.stale[rows] = stale
        if budget >= len(survival):
            return drafts.draft_lens
        fresh = np.where(is_draft, np.cumprod(drafts.confidences.T, axis=0), -1.0).ravel()
        lens: list[int] = largest(fresh, budget, len(draft_lens)).tolist()
        return lens

    def _budget(self, batch: BatchView, survival: NDArray[np.float64], memory: _Memory) -> int:
        emitted = np.empty(len(survival) + 1)
        emitted[0] = 0.0
        np.cumsum(np.sort(survival)[::-1], out=emitted[1:])
        emitted += batch.size - sum(batch.in_prefill)
        load = batch.load
        tokens = load.batched_tokens - len(survival) + np.arange(len(emitted))
        times = memory.server.step_times(load, tokens, memory.server.max_draft_len)
        return int((emitted / times).argmax())
