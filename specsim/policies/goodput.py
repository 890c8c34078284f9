"""SmartSpec: the draft length of highest estimated goodput."""

from typing import Any, ClassVar, Literal, final

from pydantic import Field

from specsim.core.step import BatchView, Ints
from specsim.policies._budget import best_common_len, best_lens
from specsim.policies._estimate import AlphaPerRequest, AlphaWindow, EstimatesAlpha, Estimating
from specsim.policies.base import ServerView

_Memory = Estimating[AlphaWindow] | Estimating[AlphaPerRequest]


@final
class Goodput(EstimatesAlpha):
    """Estimated emitted tokens over estimated step time, maximised over k = 0..V.

    Liu et al. (2024), "Optimizing Speculative Decoding for Serving Large Language Models Using
    Goodput", algorithms 1 and 2: emitted tokens by eq. 8 and 9 with a moving average of past
    acceptance, T_batch = T_draft(k) + T_target by eq. 4 to 7 from the profile. With `granularity`
    step, all requests share one alpha and one k; with request, each has its own, found by the
    search of `goodput_exact` from estimates that lean less on all requests together.

    k = 0 is among the candidates: the text requires speculation to be switched off under load,
    though TurboSpec's listing 2 starts at 1. A k whose KV slots are not free is left out (line 5).
    The paper's candidate batches, prefixes of the queue, need not be enumerated: vLLM's scheduler
    has settled the batch, and of its sequences all or none should draft, since the goodput of m
    drafting sequences, (n + m g) / (t + m c), is monotone in m.
    """

    kind: Literal["goodput"] = "goodput"
    examples: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"granularity": "request"})
    granularity: Literal["step", "request"] = "step"
    window: int = Field(default=50, ge=1)
    """Steps that the moving average goes over; the paper finds it uncritical."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before anything has been seen."""

    def start(self, server: ServerView) -> _Memory:
        """Return the prior."""
        if self.granularity == "step":
            return Estimating(server, AlphaWindow(self.window, self.prior))
        return Estimating(server, AlphaPerRequest(self.window, self.prior, prior_trials=5.0))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int | Ints:
        """Return the length of highest goodput for the step that will verify it."""
        server, alphas, load = memory.server, memory.alphas, batch.decode_load()
        if isinstance(alphas, AlphaPerRequest):
            return best_lens(
                alphas.survival(batch, server.max_draft_len),
                load,
                server.step_times,
                free_slots=batch.free_slots,
                one_cost=server.drafts_at_one_cost,
                step_time=server.step_time,
            )
        return best_common_len(server, load, alphas.alpha, batch.free_slots)
