"""The draft lengths of highest estimated goodput, each request's its own."""

from typing import Literal, final

from pydantic import Field

from specsim.decisions.loops import LoopMemory, Loops, View
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.by_request import (
    ByRequest,
    by_request,
    foresee_each,
    learn_each,
    settle_each,
    spend_each,
)
from specsim.policies.parts.trials import let_go


def decide(view: View, memory: ByRequest) -> None:
    """Ask for the lengths of highest goodput, unless the drafter is given up or a trial runs."""
    step, spending = view.step[0], memory.spending
    foresee_each(view, memory)
    emitted = float(step.num_decodes)
    if step.num_decodes:
        spend_each(view, memory)
    for row in range(step.num_rows):
        view.lens[row] = spending.counts[row]
        for place in range(spending.counts[row]):
            emitted += memory.gains[place * step.num_rows + row]
    settle_each(view, memory, emitted)


def observe(view: View, memory: ByRequest) -> None:
    """Learn each request's acceptance, and how long the drafter takes to read prompts."""
    learn_each(view, memory)


def drop(view: View, memory: ByRequest) -> None:
    """Let go of the sequences for which drafting does not pay."""
    let_go(view, memory.known[0])


BY_REQUEST = Loops(ByRequest, decide=decide, observe=observe, drop=drop)


@final
class GoodputExact(LoopPolicy):
    """The k_1..k_n that maximise sum_i l(alpha_i, k_i) / T(N_context, n + sum_i k_i, max_i k_i).

    SmartSpec (Liu et al. 2024, section 5) avoids lengths per request, since enumerating them is
    exponential. No enumeration is needed. Let g_ij = alpha_i^j be the gain of the j-th draft token
    of request i, so that l(alpha_i, k_i) = 1 + g_i1 + ... + g_ik_i.

    *Claim.* Fix v = max_i k_i and B = sum_i k_i. Then the B largest of the g_ij with j <= v, ties
    taken by smaller j, maximise the sum of gains.

    *Proof.* T is constant under v and B, and no B gains sum to more than the B largest. They are a
    legal choice of lengths, since g_ij does not rise with j: with (i, j + 1) the selection holds
    (i, j). Its longest draft may be shorter than v; it then costs no more than was charged and is
    met again at the smaller v. *So* the optimum is a prefix of one sorted list for some v, and
    trying all v and all prefixes finds it, in O(n V (V + log n V)).

    It is exact wherever T depends on the batch through sum k and max k: on every profile with one
    target cost per batched token. Where a profile charges each drafting pass only for the
    sequences that still draft, T is taken as if all drafted to the end, which vLLM's drafters do.
    alpha_i is a fading average of the request's own acceptance, shrunk towards that of all
    requests. No policy that decides by this estimate can do better.
    """

    kind: Literal["goodput_exact"] = "goodput_exact"
    window: int = Field(default=50, ge=1)
    """Steps of a request after which an observation of it has faded to 1/e."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before any draft has been verified."""
    prior_trials: float = Field(default=20.0, gt=0)
    """Weight, in trials, of the rate of all requests in the rate of one."""

    loops = BY_REQUEST

    def start(self, server: ServerView) -> LoopMemory:
        memory = by_request(server, self.prior, self.window, self.prior_trials)
        return self.remember(server, **memory)
