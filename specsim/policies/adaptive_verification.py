"""vLLM's adaptive verification: the surest drafts of the whole batch, as many as pay."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, final

import numpy as np

from specsim.core.desk import Desk, FloatRows, Floats, Ints, PerRequest, loop_on
from specsim.core.step import BatchView, DraftView, StepOutcome
from specsim.decisions.policy import Policy, ServerView
from specsim.policies.parts.acceptance_estimator import AcceptanceEstimator
from specsim.policies.parts.budget import best_spending, largest


class Stale(NamedTuple):
    """Confidences of this step, and of the last drafts."""

    stale: FloatRows
    """Of each request's last draft; those of this one take their place."""
    requests: Ints
    draft_lens: Ints
    confidences: Floats
    """Shape (n, longest)."""
    survival: Floats
    """Of the drafts of all sequences, in no particular order; filled in."""
    fresh: Floats
    """Shape (longest, n): the same by this step's confidences, -1 beyond the end of a draft."""
    sizes: Ints
    """n, longest."""


@loop_on(Stale)
def stale_survival(desk: Stale) -> int:
    """Work out how likely drafts are accepted, and were if one believed the last confidences.

    Returns how many tokens they have. Fresh products are as exact as what drafters state: single
    precision.
    """
    stale, fresh, num, longest = desk.stale, desk.fresh, desk.sizes[0], desk.sizes[1]
    index = 0
    for row in range(num):
        request = desk.requests[row]
        draft_len = desk.draft_lens[row]
        product = 1.0
        stated = 1.0
        for place in range(longest):
            if place >= draft_len:
                fresh[place * num + row] = -1.0
                continue
            confidence = desk.confidences[row * longest + place]
            product = product * stale[request, place]
            stale[request, place] = confidence
            desk.survival[index] = product
            index += 1
            stated = float(np.float32(stated * confidence))
            fresh[place * num + row] = stated
    return index


@dataclass(slots=True)
class _Memory:
    server: ServerView
    desk: Desk[Stale]
    estimator: AcceptanceEstimator


@final
class AdaptiveVerification(Policy[_Memory]):
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
    uses_confidences: ClassVar[Literal[False, True, "if known"]] = True
    needs_sync: ClassVar[bool] = True
    learns: bool = False
    """Whether confidences are learned from what became of drafts, starting from how sure the
    drafter was, as vLLM has it for all drafters; but for DSpark, which has a head for it."""

    def start(self, server: ServerView) -> _Memory:
        """Return confidence 1 for all."""
        stale = PerRequest(1.0, server.max_draft_len)
        desk = Desk(Stale, stale_survival, stale=stale)
        return _Memory(server, desk, AcceptanceEstimator(server.max_draft_len))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int:
        """Return the longest draft."""
        return memory.server.max_draft_len

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> Ints:
        """Return how many drafts of each request are among the B surest of the batch."""
        draft_lens, stated = drafts.draft_lens, drafts.confidences
        predict = memory.estimator.predict
        confidences = predict(batch.requests, stated) if self.learns else stated
        num, longest = confidences.shape
        desk = memory.desk.fit(max(num, num * longest), batch.requests)
        desk.draft_lens[:num] = draft_lens
        desk.confidences[: num * longest] = confidences.ravel()
        desk.sizes[0], desk.sizes[1] = num, longest
        survival = desk.survival[: memory.desk.runs[0]()]
        server, most = memory.server, len(survival)
        load = batch.load._replace(batched_tokens=batch.load.batched_tokens - most)
        emitted_before = batch.size - int(np.count_nonzero(batch.in_prefill))
        budget, *_ = best_spending(
            survival, server.step_times, load, server.max_draft_len, emitted_before, most
        )
        if budget >= most:
            return draft_lens
        return largest(desk.fresh[: num * longest], budget, num)

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Learn, if it does."""
        if self.learns:
            memory.estimator.learn(outcome)
