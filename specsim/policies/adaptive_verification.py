"""vLLM's adaptive verification: the surest drafts of the whole batch, as many as pay."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import BatchView, DraftView, Ints
from specsim.policies._budget import best_spending, largest
from specsim.policies._estimate import PerRequest
from specsim.policies._kernels import Desk, Stale, blank, stale_survival
from specsim.policies.base import Policy, ServerView

__all__ = ["AdaptiveVerification"]


@dataclass(slots=True)
class _Memory:
    server: ServerView
    stale: PerRequest
    """Confidences of each request's last draft; 1 for new requests."""
    desk: Desk[Stale]


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
        return _Memory(server, PerRequest(1.0, server.max_draft_len), Desk(_stale, stale_survival))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int:
        """Return the longest draft."""
        return memory.server.max_draft_len

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> Ints:
        """Return how many drafts of each request are among the B surest of the batch."""
        draft_lens, confidences = drafts.draft_lens, drafts.confidences
        num, longest = confidences.shape
        desk = memory.desk.fit(max(num, num * longest), memory.stale.up_to(batch.requests))
        desk.requests[:num] = batch.requests
        desk.draft_lens[:num] = draft_lens
        desk.confidences[: num * longest] = confidences.ravel()
        desk.sizes[0], desk.sizes[1] = num, longest
        survival = desk.survival[: memory.desk.runs[0]()]
        budget = self._budget(batch, survival, memory)
        if budget >= len(survival):
            return draft_lens
        return largest(desk.fresh[: num * longest], budget, num)

    def _budget(self, batch: BatchView, survival: NDArray[np.float64], memory: _Memory) -> int:
        server, most = memory.server, len(survival)
        load = batch.load._replace(batched_tokens=batch.load.batched_tokens - most)
        emitted_before = batch.size - int(np.count_nonzero(batch.in_prefill))
        drafts = server.max_draft_len
        return best_spending(survival, server.step_times, load, drafts, emitted_before, most)[0]


def _stale(room: int, stale: NDArray[np.float64]) -> Stale:
    return blank(Stale, room, stale=stale)
