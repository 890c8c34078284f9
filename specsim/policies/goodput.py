"""SmartSpec: the draft length of highest estimated goodput, of all requests or of each its own."""

from typing import Any, ClassVar, Literal, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Ints
from specsim.core.step import BatchView, StepLoad, StepOutcome
from specsim.decisions.loops import Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, PicksPrefix, ServerView
from specsim.policies.parts import ROOMS
from specsim.policies.parts.budget import best_common_len, best_lens, emitted_of
from specsim.policies.parts.estimate import (
    AlphaPerRequest,
    WindowState,
    alpha_of,
    best_len,
    expected_len,
    note_trials,
    renew_alpha,
)
from specsim.policies.parts.trials import (
    BEGUN,
    FIRST_WAIT,
    KEPT,
    NOTHING,
    TRIAL_TOKENS,
    TRIED,
    TrialState,
    Weighing,
    WeighsDrafter,
    gives_up,
    is_timed,
    is_weighed,
    may_drop,
    note_reading,
    note_tried,
    settled,
    skips_prefill,
    weigh,
    weight_of,
)
from specsim.profile.step_time import Pricing, priced, priced_plain, put_load

# One length for all, in the engine's loop


class Known(WindowState, TrialState, Protocol):
    """What it knows of acceptance, and of whether drafting pays."""


class Weighed(NamedTuple):
    """What it remembers."""

    known: Rows[Known]
    """One row."""
    ring: Ints
    """Accepted tokens, and drafts cut short, of its last steps."""


def decide(view: View, memory: Weighed) -> None:
    """Ask for the drafts of highest goodput, none or a trial's."""
    step, known, pricing = view.step[0], memory.known[0], view.pricing
    num, asked_len, what = step.num_decodes, 0, KEPT
    if num:
        put_load(pricing, step.next_context_tokens, num, num, 0)
        alpha = alpha_of(known)
        num_lens = min(step.max_draft_len, step.free_slots // num) + 1
        asked_len = _best_common_len(pricing, alpha, num_lens)
        served = _num_served(view)
        if is_weighed(known):
            emitted = num * expected_len(alpha, asked_len)
            time = priced(pricing, num * (1 + asked_len), asked_len)
            times = (time, priced_plain(pricing, num))
            weigh(known, asked_len > 0, emitted / num, times, served / num)
        what = settled(known, served > 0 and asked_len > 0)
    if what == BEGUN:
        renew_alpha(known, memory.ring)
    step.alpha, step.may_drop = alpha_of(known), may_drop(known)
    if what == BEGUN or what == TRIED:  # noqa: PLR1714, SIM109 - as numba has it
        _try(view)
        return
    for row in range(step.num_rows):
        view.lens[row] = 0 if what == NOTHING else asked_len


@inner
def _best_common_len(pricing: Pricing, alpha: float, num_lens: int) -> int:
    """Return the length of highest goodput if all sequences of the load draft alike."""
    num = pricing.load[2]
    for k in range(num_lens):
        pricing.times[k] = priced(pricing, num * (1 + k), k)
    return best_len(alpha, pricing.times, num_lens)


@inner
def _num_served(view: View) -> int:
    """Return how many of the sequences that decode the drafter serves."""
    served = 0
    for row in range(view.step[0].num_rows):
        served += not view.in_prefill[row] and not view.is_undrafted[row]
    return served


@inner
def _try(view: View) -> None:
    """Draft a token for a few of them."""
    left = TRIAL_TOKENS
    for row in range(view.step[0].num_rows):
        is_out = view.in_prefill[row] or view.is_undrafted[row] or not left
        view.lens[row] = 0 if is_out else 1
        left -= view.lens[row]


def observe(view: View, memory: Weighed) -> None:
    """Learn from what was accepted, and what prompts take to be read by the drafter."""
    step, known, cut_short = view.step[0], memory.known[0], 0
    for row in range(step.num_rows):
        cut_short += view.accepted_lens[row] != view.draft_lens[row]
    note_trials(known, memory.ring, step.accepted_tokens, cut_short)
    if is_timed(known):
        time = 0.0
        if step.prefill_tokens:
            time = _drafter_time(view, step.batched_tokens, step.prefill_tokens)
            time -= _drafter_time(view, step.batched_tokens - step.prefill_tokens, 0)
        note_reading(known, time)
    note_tried(known, step.accepted_tokens + cut_short)
    step.may_drop = may_drop(known)


@inner
def _drafter_time(view: View, batched_tokens: int, prefills: int) -> float:
    """Return what the drafter takes to keep up with the step, its prefills cut to these."""
    if not batched_tokens:
        return 0.0
    step, pricing = view.step[0], view.pricing
    put_load(pricing, step.context_tokens, batched_tokens, step.num_requests, prefills)
    return priced(pricing, batched_tokens, 0) - priced_plain(pricing, batched_tokens)


def drop(view: View, memory: Weighed) -> None:
    """Let go of everybody where the drafter is given up; of whom is new, where it hardly pays."""
    known = memory.known[0]
    lets_all_go, skips = gives_up(known), skips_prefill(known)
    for row in range(view.step[0].num_rows):
        view.let_go[row] = lets_all_go or (skips and view.is_admitted[row])


# Each its own length


class _ByRequest(Weighing[AlphaPerRequest]):
    """What it remembers, and answers as a `LoopMemory` does."""

    def draft_lens(self, batch: BatchView) -> int | Ints:
        """Return the best length of each request, by its own estimate."""
        server, load = self.server, batch.decode_load()
        survival = self.alphas.survival(batch, server.max_draft_len)
        lens = best_lens(
            survival,
            load,
            server.step_times,
            free_slots=batch.free_slots,
            one_cost=server.drafts_at_one_cost,
            step_time=server.step_time,
        )
        emitted = load.num_requests + emitted_of(survival, lens)
        return self.trials.settle(batch, load, lens, emitted, self.alphas)

    def drops(self, batch: BatchView) -> NDArray[np.bool_] | None:
        """Return whom the drafter leaves alone."""
        return self.trials.drops(batch)

    @property
    def drops_now(self) -> bool:
        """Whether it names anybody."""
        return may_drop(self.trials)

    @property
    def alpha(self) -> float:
        """The rate of all requests together."""
        return self.alphas.alpha

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from what was accepted."""
        self.alphas.add(outcome)
        self.trials.observe(outcome)


@final
class Goodput(LoopPolicy, PicksPrefix):
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

    loops: ClassVar[Loops] = Loops(Weighed, decide=decide, observe=observe, drop=drop, rooms=ROOMS)

    def start(self, server: ServerView) -> Any:
        """Return the prior."""
        window, prior = self.window, self.prior
        if self.granularity == "request":
            alphas = AlphaPerRequest(window, prior, 5.0, forgets=False)
            return _ByRequest(server, alphas, window)
        known = row_of(Known, prior=prior, weight=weight_of(window), wait=FIRST_WAIT)
        return self.remember(server, known=known, ring=np.zeros(2 * window, dtype=np.int64))

    @property
    def picks_prefix(self) -> bool:
        """Whether batches smaller than vLLM's are looked at."""
        return self.candidates == "prefixes"

    def prefix_size(self, known_lens: Ints, memory: Any) -> int:
        """Return the prefix of highest goodput, all of its sequences taken to decode."""
        server, alpha = memory.server, memory.alpha
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
class GoodputExact(WeighsDrafter[_ByRequest]):
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

    def start(self, server: ServerView) -> _ByRequest:
        """Return the prior."""
        alphas = AlphaPerRequest(self.window, self.prior, self.prior_trials, forgets=False)
        return _ByRequest(server, alphas, self.window)

    def draft_lens(self, batch: BatchView, memory: _ByRequest) -> int | Ints:
        """Return the best lengths for the step that will verify them."""
        return memory.draft_lens(batch)
