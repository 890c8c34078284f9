"""vLLM's adaptive verification: the surest drafts of the whole batch, as many as pay."""

from typing import Annotated, Any, Literal, NamedTuple, final

import numpy as np

from specsim.core.compiled import inner
from specsim.core.desk import Flags, FloatRows, PerRequest
from specsim.decisions.loops import LoopMemory, Loops, View
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.acceptance_estimator import (
    Estimator,
    estimator_desk,
    learn_fates,
    predict,
)
from specsim.policies.parts.everybody import ask_all, say_each, shown_tokens, verify_all
from specsim.policies.parts.spending import Spending, best_budget, spending_desk, take_largest
from specsim.profile.step_time import put_len, put_load


class Adapting(NamedTuple):
    """The policy's memory."""

    stale: FloatRows  # confidences of each request's last draft
    learns: Flags  # one flag: the field `learns` of the policy
    estimator: Annotated[Any, Estimator]
    spending: Annotated[Any, Spending]


def decide(view: View, memory: Adapting) -> None:
    """Ask for the longest drafts."""
    ask_all(view, view.step[0].max_draft_len)


@inner
def put_stale(view: View, memory: Adapting) -> None:
    """Set `gains` to the survival of each draft token by each request's previous confidences."""
    index = 0
    for row in range(view.step[0].num_rows):
        product = 1.0
        for place in range(view.draft_lens[row]):
            product *= memory.stale[view.requests[row], place]
            memory.spending.gains[index] = product
            index += 1


@inner
def put_fresh(view: View, memory: Adapting) -> None:
    """Set `gains` by this step's confidences, -1 beyond the end of a draft, and store them.

    Products are in single precision, as the drafter's confidences are.
    """
    step, gains = view.step[0], memory.spending.gains
    for row in range(step.num_rows):
        request, stated = view.requests[row], 1.0
        for place in range(step.width):
            at = place * step.num_rows + row
            gains[at] = -1.0
            if place < view.draft_lens[row]:
                confidence = view.confidences[row * step.width + place]
                if memory.learns[0]:
                    confidence = predict(memory.estimator, request, place, confidence)
                memory.stale[request, place] = confidence
                stated = float(np.float32(stated * confidence))
                gains[at] = stated


def verify(view: View, memory: Adapting) -> None:
    """Verify the draft tokens that are among the B likeliest of the batch."""
    step, spending, most = view.step[0], memory.spending, shown_tokens(view)
    put_stale(view, memory)
    tokens = step.batched_tokens - most
    put_load(view.pricing, step.context_tokens, tokens, step.num_requests, step.prefill_tokens)
    put_len(view.pricing, step.max_draft_len)
    spending.found[0], spending.sizes[0], spending.sizes[1] = step.num_decodes, most, most + 1
    budget = best_budget(spending)
    put_fresh(view, memory)
    spending.sizes[0], spending.sizes[2] = step.num_rows * step.width, step.num_rows
    verify_all(view)
    if budget < most:
        take_largest(spending, budget)
        say_each(view, spending.counts)


def observe(view: View, memory: Adapting) -> None:
    """Update the estimator with the fates of the drafts, if the policy `learns`."""
    if memory.learns[0]:
        learn_fates(memory.estimator, view.step[0].num_rows)


@final
class AdaptiveVerification(LoopPolicy):
    """Draft the longest length, verify the B drafts of highest survival S = product of confidences.

    B = argmax (n + sum of the B largest S) / (draft cost + verify cost of B draft tokens). The host
    must size the step before this step's confidences have come back from the GPU. So it chooses B
    by the confidences of each request's previous draft (1 for a new request), and the GPU then
    verifies the B likeliest draft tokens of this step. vLLM 0.32.0
    ``enable_adaptive_verification``, ``v1/worker/gpu/spec_decode/adaptive_verification.py
    get_num_tokens, reallocate_drafts``. All drafts are scheduled: dropped tokens save time, not
    token budget.

    vLLM allocates on the GPU and so can schedule asynchronously; here the step is synchronous.
    """

    kind: Literal["adaptive_verification"] = "adaptive_verification"
    uses_confidences = True
    needs_sync = True
    learns: bool = False
    """Whether acceptance is estimated from past drafts, with the drafter's confidence as feature.
    vLLM does so for every drafter but DSpark, which has a confidence head of its own."""

    loops = Loops(Adapting, decide=decide, verify=verify, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        longest = server.max_draft_len
        learns, stale = np.array([self.learns]), PerRequest(1.0, longest)
        parts = {"estimator": estimator_desk(longest), "spending": spending_desk()}
        return self.remember(server, learns=learns, stale=stale, **parts)
