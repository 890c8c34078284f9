"""What adaptive policies share: what a draft is worth, and how likely its tokens are accepted."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import inner
from specsim.core.desk import Desk, Flags, FloatRows, Floats, Ints, LocalDesk, PerRequest, loop_on
from specsim.core.step import BatchView, StepOutcome
from specsim.decisions.policy import Policy, ServerView


@inner
def expected_len(alpha: float, draft_len: int) -> float:
    """Return the tokens that a draft emits on average, bonus token included.

    (1 - alpha^(k + 1)) / (1 - alpha), where alpha is P(a draft token is accepted | all before it
    were): Leviathan et al. (2023), eq. 1; SmartSpec, eq. 8.
    """
    if alpha >= 1.0:
        return draft_len + 1.0
    # Of a whole exponent compiled code would make a chain of products, with other last digits.
    return float((1.0 - alpha ** float(draft_len + 1)) / (1.0 - alpha))


@inner
def best_len(alpha: float, times: Sequence[float] | NDArray[np.float64], num_lens: int) -> int:
    """Return the k of highest goodput, by the seconds of steps that draft and verify 0, 1, ..."""
    best, best_rate = 0, -inf
    for k in range(num_lens):
        rate = expected_len(alpha, k) / times[k]
        if rate > best_rate:
            best, best_rate = k, rate
    return best


PRIOR_TRIALS = 5.0
"""Trials that a prior counts for in an estimate over all requests."""


class WindowState(Protocol):
    """What `AlphaWindow` remembers: there as attributes, in the engine's loop as a record."""

    prior: float
    accepted: int
    """Tokens over the window;"""
    cut_short: int
    """and drafts that ended there in a token that was not."""
    place: int
    """Of the oldest step of the window, in its ring: two such numbers for each."""


Ring = list[int] | NDArray[np.int64]


@inner
def alpha_of(window: WindowState) -> float:
    """Return the estimate."""
    trials = window.accepted + window.cut_short
    alpha: float = (window.accepted + PRIOR_TRIALS * window.prior) / (trials + PRIOR_TRIALS)
    return alpha


@inner
def note_trials(window: WindowState, ring: Ring, accepted: int, cut_short: int) -> None:
    """Take in a step that tried so many tokens; one that drafted nothing tried none."""
    if not accepted + cut_short:
        return
    at = 2 * window.place
    window.accepted += accepted - ring[at]
    window.cut_short += cut_short - ring[at + 1]
    ring[at], ring[at + 1] = accepted, cut_short
    window.place = (window.place + 1) % (len(ring) // 2)


@inner
def renew_alpha(window: WindowState, ring: Ring) -> None:
    """Let what has been seen count no more than a prior does."""
    window.prior = alpha_of(window)
    window.accepted = window.cut_short = 0
    for at in range(len(ring)):
        ring[at] = 0


class AlphaWindow:
    """The acceptance rate over the last steps, all requests together.

    A rejected token ends a draft, so a step tries each of its drafts once more than it accepts,
    unless it accepts all of it: the maximum-likelihood alpha is accepted / (accepted + cut short)
    (on-the-fly, eq. 2). The prior counts for a few trials, so that one unlucky draft does not end
    speculation.

    Args:
        window: Steps that drafted something.
        prior: Rate before anything has been seen.
    """

    def __init__(self, window: int, prior: float) -> None:
        self.prior, self.accepted, self.cut_short, self.place = prior, 0, 0, 0
        self.ring = [0] * (2 * window)

    def renew(self) -> None:
        """Let what has been seen count no more than a prior does."""
        renew_alpha(self, self.ring)

    def add(self, outcome: StepOutcome) -> None:
        """Take a step in."""
        accepted = int(np.add.reduce(outcome.accepted_lens))
        cut_short = int(np.count_nonzero(outcome.accepted_lens != outcome.draft_lens))
        note_trials(self, self.ring, accepted, cut_short)

    @property
    def alpha(self) -> float:
        """The estimate."""
        return alpha_of(self)


class Fading(NamedTuple):
    """Counts that fade, and the step that is added to them."""

    counts: FloatRows
    """Accepted tokens and trials of each request, shape (requests, 2)."""
    totals: Floats
    """The same of all requests."""
    rates: Floats
    """Share that stays; trials that alpha counts for in the rate of each request; whether totals
    fade where nothing is tried; alpha."""
    requests: Ints
    accepted_lens: Ints
    draft_lens: Ints
    in_prefill: Flags
    """Whose drafts would be ignored."""
    gains: Floats
    """Shape (longest, n): the rate of each request to the power of 1, 2, ..."""
    sizes: Ints
    """n, longest."""


@inner
def fade(desk: Fading) -> None:
    """Let the counts of a step's requests fade, and add what became of their drafts."""
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


@inner
def survive(desk: Fading, alpha: float) -> None:
    """Work out how likely the first tokens of some drafts are accepted; 0 in mid-prefill."""
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
    """Return the rate of all requests together, by accepted tokens and trials."""
    rate: float = (totals[0] + PRIOR_TRIALS * prior) / (totals[1] + PRIOR_TRIALS)
    return rate


@loop_on(Fading)
def add_fading(desk: Fading) -> int:
    """Do what `fade` does."""
    fade(desk)
    return 0


@loop_on(Fading)
def survivals(desk: Fading) -> int:
    """Do what `survive` does; `rates` have alpha."""
    survive(desk, desk.rates[3])
    return 0


class AlphaPerRequest:
    """The acceptance rate of each request, shrunk towards that of all of them.

    Both are ratios of fading counts, so that old steps are forgotten, whether or not something
    was drafted since.

    Args:
        window: Steps of a request after which a count has faded to 1/e.
        prior: Rate before anything has been seen.
        prior_trials: Trials that the rate of all requests counts for in the rate of one.
        forgets: Whether the rate of all requests goes back to the prior where nothing is drafted,
            so that it is tried again; not where `DrafterTrials` sees to that.
    """

    def __init__(
        self, window: float, prior: float, prior_trials: float, *, forgets: bool = True
    ) -> None:
        self._prior = prior
        self._prior_trials = prior_trials
        self._counts = PerRequest(0.0, 2)
        """Accepted tokens, trials."""
        self._totals = np.zeros(2)
        """The same of all requests."""
        rates = np.array([1.0 - 1.0 / window, prior_trials, forgets, 0.0], dtype=np.float64)
        self._desk = Desk(
            Fading, add_fading, survivals, counts=self._counts, totals=self._totals, rates=rates
        )

    def add(self, outcome: StepOutcome) -> None:
        """Take a step in."""
        self._desk.put(outcome)
        self._desk.runs[0]()

    @property
    def alpha(self) -> float:
        """The rate of all requests together."""
        return float(alpha_of_all(self._totals, self._prior))

    def renew(self) -> None:
        """Let what has been seen of all requests together count no more than a prior does."""
        self._prior = self.alpha
        self._totals[:] = 0.0

    def alphas(self, requests: Ints) -> NDArray[np.float64]:
        """Return the rate of each of some requests."""
        accepted, trials = self._counts.of(requests).T
        weight = self._prior_trials
        rates: NDArray[np.float64] = (accepted + weight * self.alpha) / (trials + weight)
        return rates

    def survival(self, batch: BatchView, longest: int) -> NDArray[np.float64]:
        """Return the probability that each of the first tokens of some drafts is accepted.

        Shape (batch.size, longest); element (i, j) is alpha of the request ** (j + 1), or 0 in
        mid-prefill. Good until it is asked again.
        """
        num, size = batch.size, longest * batch.size
        desk = self._desk.fit(max(num, size), batch.requests)
        desk.in_prefill[:num] = batch.in_prefill
        desk.rates[3] = self.alpha
        desk.sizes[0], desk.sizes[1] = num, longest
        self._desk.runs[1]()
        return desk.gains[:size].reshape(longest, num).T


Alphas = TypeVar("Alphas", AlphaWindow, AlphaPerRequest)


@dataclass(slots=True)
class Estimating(Generic[Alphas]):
    """Memory of a policy that estimates acceptance rates."""

    server: ServerView
    alphas: Alphas


Estimator = TypeVar("Estimator", bound=Estimating[Any])


class EstimatesAlpha(Policy[Estimator]):
    """Base of the policies with such a memory."""

    def observe(self, outcome: StepOutcome, memory: Estimator) -> None:
        """Learn from what was accepted."""
        memory.alphas.add(outcome)

    def alpha_estimate(self, memory: Estimator) -> float:
        """Return the rate of all requests together."""
        alpha: float = memory.alphas.alpha
        return alpha


class Windows(NamedTuple):
    """Rates, and what windows of 0, 1, ... tokens take."""

    alphas: Floats
    times: Floats
    best: Ints
    """Filled in."""
    sizes: Ints
    """Rates, times."""


@loop_on(Windows)
def best_places(desk: Windows) -> int:
    """Find the first k that maximises (1 - alpha^(k + 1)) / time_k for each alpha."""
    alphas, times = desk.alphas, desk.times
    for row in range(desk.sizes[0]):
        alpha = alphas[row]
        power = alpha
        place = 0
        rate = (1.0 - power) / times[0]
        for k in range(1, desk.sizes[1]):
            power = power * alpha
            other = (1.0 - power) / times[k]
            if other > rate:
                place = k
                rate = other
        desk.best[row] = place
    return 0


_WINDOWS = LocalDesk(Windows, best_places)


def best_windows(
    alphas: NDArray[np.float64], longest: int, pass_time: float, verify_time: float
) -> Ints:
    """Return the k that maximises (1 - alpha^(k + 1)) / ((1 - alpha) (k a + b)) for each alpha.

    The longest is the largest k; a and b are `pass_time` and `verify_time`, seconds.
    """
    num = len(alphas)
    desk = _WINDOWS.fit(max(num, longest + 1))
    desk.alphas[:num] = alphas
    desk.times[: longest + 1] = np.arange(longest + 1) * pass_time + verify_time
    desk.sizes[0], desk.sizes[1] = num, longest + 1
    _WINDOWS.runs[0]()  # without 1 - alpha, which changes no argmax
    return desk.best[:num].copy()
