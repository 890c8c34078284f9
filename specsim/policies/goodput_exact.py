"""The exact optimum of estimated goodput over a length per request."""

from typing import Literal, final

from pydantic import Field

from specsim.core.step import BatchView, Ints
from specsim.policies._budget import best_lens
from specsim.policies._estimate import AlphaPerRequest, EstimatesAlpha, Estimating
from specsim.policies.base import ServerView


@final
class GoodputExact(EstimatesAlpha):
    """The k_1..k_n that maximise sum_i l(alpha_i, k_i) / T(N_context, n + sum_i k_i, max_i k_i).

    SmartSpec (Liu et al. 2024, section 5) shies away from lengths per request, whose enumeration
    is exponential. It need not be enumerated. Let g_ij = alpha_i^j be the gain of the j-th draft
    token of request i, so that l(alpha_i, k_i) = 1 + g_i1 + ... + g_ik_i.

    *Claim.* Fix v = max_i k_i and B = sum_i k_i. Then the B largest of the g_ij with j <= v, ties
    taken by smaller j, maximise the sum of gains. *Proof.* T is constant under v and B, and no B
    gains sum to more than the B largest. They are a legal choice of lengths, since g_ij does not
    rise with j: with (i, j + 1) the selection holds (i, j). Its longest draft may be shorter than
    v; it then costs no more than was charged and is met again at the smaller v. *So* the optimum
    is a prefix of one sorted list for some v, and trying all v and all prefixes finds it, in
    O(n V (V + log n V)).

    It is exact wherever T depends on the batch through sum k and max k: on every profile with one
    target cost per batched token. Where a profile charges each drafting pass only for the
    sequences that still draft, T is taken as if all drafted to the end, which vLLM's drafters do.
    alpha_i is a fading average of the request's own acceptance, shrunk towards that of all
    requests. It is the ceiling of the policies that decide by such an estimate.
    """

    kind: Literal["goodput_exact"] = "goodput_exact"
    window: int = Field(default=50, ge=1)
    """Steps of a request over which its past fades."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before anything has been seen."""
    prior_trials: float = Field(default=20.0, gt=0)
    """Trials that the rate of all requests counts for in the rate of one."""

    def start(self, server: ServerView) -> Estimating[AlphaPerRequest]:
        """Return the prior."""
        return Estimating(server, AlphaPerRequest(self.window, self.prior, self.prior_trials))

    def draft_lens(self, batch: BatchView, memory: Estimating[AlphaPerRequest]) -> Ints:
        """Return the best lengths for the step that will verify them."""
        server = memory.server
        return best_lens(
            memory.alphas.survival(batch, server.max_draft_len),
            batch.decode_load(),
            server.step_times,
            free_slots=batch.free_slots,
            one_cost=server.drafts_at_one_cost,
            step_time=server.step_time,
        )
