"""Parts of adaptive policies: the expected length of a draft, and estimates of acceptance."""

from math import inf
from typing import NamedTuple, Protocol

import numpy as np

from specsim.core.compiled import inner
from specsim.core.desk import Desk, Flags, FloatRows, Floats, Ints, PerRequest
from specsim.decisions.loops import View
from specsim.profile.step_time import priced, put_load


@inner
def expected_len(alpha: float, draft_len: int) -> float:
    """Return the tokens that a draft emits on average, bonus token included.

    (1 - alpha^(k + 1)) / (1 - alpha), where alpha is P(a draft token is accepted | all before it
    were): Leviathan et al. (2023), eq. 1; SmartSpec, eq. 8.
    """
    if alpha >= 1.0:
        return draft_len + 1.0
    # With an integer exponent, compiled code would multiply, with different last digits.
    return float((1.0 - alpha ** float(draft_len + 1)) / (1.0 - alpha))


@inner
def put_decodes(view: View) -> None:
    """Load the next step into `pricing`: one token for each decoding sequence, no drafts."""
    num = view.step[0].num_decodes
    put_load(view.pricing, view.step[0].next_context_tokens, num, num, 0)


@inner
def time_of_k(view: View, k: int) -> float:
    """Return the time of the step of `put_decodes` if each sequence drafts and verifies k, s."""
    time: float = priced(view.pricing, view.step[0].num_decodes * (1 + k), k)
    return time


@inner
def best_common_len(view: View, alpha: float) -> int:
    """Return the common draft length of highest goodput among those with free KV slots, tokens.

    Leaves the next step without drafts in `pricing` (`put_decodes`).
    """
    step, num = view.step[0], view.step[0].num_decodes
    put_decodes(view)
    if not num:
        return 0  # all are in mid-prefill
    best, best_rate = 0, -inf
    for k in range(min(step.max_draft_len, step.free_slots // num) + 1):
        rate = expected_len(alpha, k) / time_of_k(view, k)
        if rate > best_rate:
            best, best_rate = k, rate
    return best


PRIOR_TRIALS = 5.0
"""Weight of a prior, in trials, in an estimate over all requests."""


class WindowState(Protocol):
    """The acceptance rate over a window of steps that verified drafts, all requests together.

    A draft is tried up to its first rejected token, so the maximum-likelihood alpha is accepted /
    (accepted + cut short) ("A Drop-in Solution for On-the-fly Adaptation of Speculative Decoding",
    eq. 2). The prior counts for a few trials, so that one unlucky draft does not end speculation.
    """

    prior: float
    accepted: int  # accepted tokens in the window
    cut_short: int  # drafts in the window with a rejected token
    place: int  # place of the oldest step in the ring, which holds both numbers of each step


@inner
def alpha_of(window: WindowState) -> float:
    """Return the estimate of alpha."""
    trials = window.accepted + window.cut_short
    alpha: float = (window.accepted + PRIOR_TRIALS * window.prior) / (trials + PRIOR_TRIALS)
    return alpha


@inner
def longest_of(view: View) -> int:
    """Return the longest of `view.draft_lens`, tokens."""
    longest = 0
    for row in range(view.step[0].num_rows):
        longest = max(longest, view.draft_lens[row])
    return longest


@inner
def note_trials(view: View, window: WindowState, ring: Ints) -> int:
    """Add a step to the window; return its trials: draft tokens accepted or rejected."""
    accepted, cut_short = view.step[0].accepted_tokens, 0
    for row in range(view.step[0].num_rows):
        cut_short += 1 if view.accepted_lens[row] != view.draft_lens[row] else 0
    if not accepted + cut_short:
        return 0
    at = 2 * window.place
    window.accepted += accepted - ring[at]
    window.cut_short += cut_short - ring[at + 1]
    ring[at], ring[at + 1] = accepted, cut_short
    window.place = (window.place + 1) % (len(ring) // 2)
    return int(accepted + cut_short)


@inner
def renew_alpha(window: WindowState, ring: Ints) -> None:
    """Make the current estimate the prior, and empty the window."""
    window.prior = alpha_of(window)
    window.accepted = window.cut_short = 0
    for at in range(len(ring)):
        ring[at] = 0


class Fading(NamedTuple):
    """Fading counts of acceptance, and the step that is added to them."""

    counts: FloatRows  # accepted tokens and trials of each request, shape (requests, 2)
    totals: Floats  # accepted tokens and trials of all requests
    rates: Floats
    """Share kept per step; weight, in trials, of alpha in a request's rate; 1 if totals fade also
    in steps without trials."""
    requests: Ints
    accepted_lens: Ints
    draft_lens: Ints
    in_prefill: Flags
    gains: Floats  # output, shape (longest, n): each request's rate to the power of 1, 2, ...
    sizes: Ints  # n, longest


@inner
def fade(desk: Fading) -> int:
    """Fade the counts of a step's requests, and add their accepted tokens and trials.

    Return the step's trials: draft tokens accepted or rejected.
    """
    counts, requests = desk.counts, desk.requests
    accepted_lens, draft_lens, keep = desk.accepted_lens, desk.draft_lens, desk.rates[0]
    all_accepted = 0
    all_trials = 0
    for row in range(desk.sizes[0]):
        request = requests[row]
        accepted = accepted_lens[row]
        trials = accepted
        if accepted < draft_lens[row]:
            trials += 1
        counts[request, 0] = keep * counts[request, 0] + accepted
        counts[request, 1] = keep * counts[request, 1] + trials
        all_accepted += accepted
        all_trials += trials
    if all_trials or desk.rates[2]:
        desk.totals[0] = keep * desk.totals[0] + all_accepted
        desk.totals[1] = keep * desk.totals[1] + all_trials
    return all_trials


@inner
def survive(desk: Fading, alpha: float) -> None:
    """Set `gains`: how likely the first j tokens of a draft are accepted; 0 in mid-prefill."""
    counts, requests, gains = desk.counts, desk.requests, desk.gains
    trials = desk.rates[1]
    accepted = trials * alpha
    num, longest = desk.sizes[0], desk.sizes[1]
    for row in range(num):
        request = requests[row]
        rate = 0.0
        if not desk.in_prefill[row]:
            rate = (counts[request, 0] + accepted) / (counts[request, 1] + trials)
        gains[row] = rate
    for place in range(1, longest):
        for row in range(num):
            gains[place * num + row] = gains[(place - 1) * num + row] * gains[row]


@inner
def alpha_of_all(totals: Floats, prior: float) -> float:
    """Return the acceptance rate of all requests, from accepted tokens and trials."""
    rate: float = (totals[0] + PRIOR_TRIALS * prior) / (totals[1] + PRIOR_TRIALS)
    return rate


@inner
def rate_of(desk: Fading, request: int, alpha: float) -> float:
    """Return a request's acceptance rate, shrunk towards `alpha`, that of all requests."""
    counts, trials = desk.counts, desk.rates[1]
    rate: float = (counts[request, 0] + trials * alpha) / (counts[request, 1] + trials)
    return rate


def fading_desk(window: float, prior_trials: float, *, forgets: bool = False) -> Desk[Fading]:
    """Return empty counts that fade to 1/e in `window` steps.

    The rate of all requests counts for `prior_trials` in the rate of one. With `forgets`, the rate
    of all returns to the prior in steps without drafts, so that drafting is tried again.
    """
    rates = np.array([1.0 - 1.0 / window, prior_trials, forgets], dtype=np.float64)
    return Desk(Fading, counts=PerRequest(0.0, 2), totals=np.zeros(2), rates=rates)
