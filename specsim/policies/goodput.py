"""SmartSpec: the draft length of highest estimated goodput, of all requests or of each its own."""

from typing import Any, ClassVar, Literal, final

import numpy as np
from pydantic import Field

from specsim.core.step import BatchView, Ints, StepLoad
from specsim.policies._budget import best_common_len, best_lens, emitted_of
from specsim.policies._estimate import AlphaPerRequest, AlphaWindow, expected_len
from specsim.policies._times import StepTimes
from specsim.policies._trials import Weighing, WeighsDrafter
from specsim.policies.base import ServerView

_Memory = Weighing[AlphaWindow] | Weighing[AlphaPerRequest]


def _best_lens(batch: BatchView, memory: Weighing[AlphaPerRequest]) -> int | Ints:
    """Return the best length of each request, by its own estimate."""
    server, load = memory.server, batch.decode_load()
    survival = memory.alphas.survival(batch, server.max_draft_len)
    lens = best_lens(
        survival,
        load,
        server.step_times,
        free_slots=batch.free_slots,
        one_cost=server.drafts_at_one_cost,
        step_time=server.step_time,
    )
    emitted = load.num_requests + emitted_of(survival, lens)
    return memory.trials.settle(batch, load, lens, emitted, memory.alphas)


@final
class Goodput(WeighsDrafter):
    """Estimated emitted tokens over estimated step time, maximised over k = 0..V.

    Liu et al. (2024), "Optimizing Speculative Decoding for Serving Large Language Models Using
    Goodput", algorithms 1 and 2: emitted tokens by eq. 8 and 9 with a moving average of past
    acceptance, T_batch = T_draft(k) + T_target by eq. 4 to 7 from the profile. With `granularity`
    step, all requests share one alpha and one k; with request, each has its own, found by the
    search of `goodput_exact` from estimates that lean less on all requests together.

    k = 0 is among the candidates: the text requires speculation to be switched off under load,
    though TurboSpec's listing 2 starts at 1. A k whose KV slots are not free is left out (line 5).
    With `candidates` prefixes, the step holds the first-come prefix of the running sequences that
    has the highest goodput, each with its own best k (lines 2 to 11): a few long contexts at the
    end may cost more than they yield. They wait until those before them have ended. It is no
    default, since what is put off is not saved: a step's goodput says nothing of the next one.
    """

    kind: Literal["goodput"] = "goodput"
    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"granularity": "request"},
        {"candidates": "prefixes"},
    )
    granularity: Literal["step", "request"] = "step"
    candidates: Literal["batch", "prefixes"] = "batch"
    """Batches among which that of highest goodput is run."""
    window: int = Field(default=50, ge=1)
    """Steps that the moving average goes over; the paper finds it uncritical."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before anything has been seen."""

    def start(self, server: ServerView) -> _Memory:
        """Return the prior."""
        window, prior = self.window, self.prior
        if self.granularity == "step":
            return Weighing(server, AlphaWindow(window, prior), window)
        return Weighing(server, AlphaPerRequest(window, prior, 5.0, forgets=False), window)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int | Ints:
        """Return the length of highest goodput for the step that will verify it."""
        if isinstance(memory.alphas, AlphaPerRequest):
            return _best_lens(batch, memory)
        alphas, load = memory.alphas, batch.decode_load()
        k = best_common_len(memory.server, load, alphas.alpha, batch.free_slots)
        emitted = load.num_requests * expected_len(alphas.alpha, k)
        return memory.trials.settle(batch, load, k, emitted, alphas)

    def loop_memory(self, memory: _Memory) -> _Memory | None:
        """Return the memory, if the loop can tell what steps take and there is one alpha."""
        server = memory.server
        has_times = isinstance(server.step_times, StepTimes) and server.plain_time is not None
        is_one = isinstance(memory.alphas, AlphaWindow) and not self.picks_prefix
        return memory if has_times and is_one else None

    @property
    def picks_prefix(self) -> bool:
        """Whether batches smaller than vLLM's are looked at."""
        return self.candidates == "prefixes"

    def prefix_size(self, known_lens: Ints, memory: _Memory) -> int:
        """Return the prefix of highest goodput, all of its sequences taken to decode."""
        server, alpha = memory.server, memory.alphas.alpha
        context_lens = np.cumsum(known_lens - 1)
        best_size, best_rate, num = 1, 0.0, len(known_lens)
        for size in range(num, 0, -max(1, num // 32)):  # of a large batch, at even distances
            load = StepLoad(int(context_lens[size - 1]), size, size)
            k = best_common_len(server, load, alpha, server.max_draft_len * size)
            time = server.step_time(load._replace(batched_tokens=size * (1 + k)), k)
            rate = size * expected_len(alpha, k) / time
            if rate > best_rate:
                best_size, best_rate = size, rate
        return best_size


@final
class GoodputExact(WeighsDrafter):
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

    def start(self, server: ServerView) -> Weighing[AlphaPerRequest]:
        """Return the prior."""
        alphas = AlphaPerRequest(self.window, self.prior, self.prior_trials, forgets=False)
        return Weighing(server, alphas, self.window)

    def draft_lens(self, batch: BatchView, memory: Weighing[AlphaPerRequest]) -> int | Ints:
        """Return the best lengths for the step that will verify them."""
        return _best_lens(batch, memory)
