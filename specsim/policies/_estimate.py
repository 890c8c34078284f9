"""What adaptive policies share: what a draft is worth, and how likely its tokens are accepted."""

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import BatchView, Ints, StepOutcome
from specsim.policies._kernels import (
    Desk,
    Fading,
    LocalDesk,
    Windows,
    add_fading,
    best_places,
    blank,
    survivals,
)

__all__ = [
    "PRIOR_TRIALS",
    "AlphaPerRequest",
    "AlphaWindow",
    "PerRequest",
    "best_windows",
    "expected_len",
]


def expected_len(alpha: float, draft_len: int) -> float:
    """Return the tokens that a draft emits on average, bonus token included.

    (1 - alpha^(k + 1)) / (1 - alpha), where alpha is P(a draft token is accepted | all before it
    were): Leviathan et al. (2023), eq. 1; SmartSpec, eq. 8.
    """
    if alpha >= 1.0:
        return draft_len + 1.0
    return float((1.0 - alpha ** (draft_len + 1)) / (1.0 - alpha))


def count_trials(outcome: StepOutcome) -> tuple[int, int]:
    """Return how many draft tokens of a step were accepted, and how many drafts were cut short.

    A rejected token ends a draft, so a step tries each of its drafts once more than it accepts,
    unless it accepts all of it: the maximum-likelihood alpha is accepted / (accepted + cut short)
    (on-the-fly, eq. 2).
    """
    accepted_lens = outcome.accepted_lens
    cut_short = (accepted_lens != outcome.draft_lens).sum()  # k = 0 tries nothing
    return int(accepted_lens.sum()), int(cut_short)


PRIOR_TRIALS = 5.0
"""Trials that a prior counts for in an estimate over all requests."""


class AlphaWindow:
    """The acceptance rate over the last steps, all requests together.

    The prior counts for a few trials, so that one unlucky draft does not end speculation; and
    steps that drafted nothing push old evidence out of the window, so that it is tried again.

    Args:
        window: Steps.
        prior: Rate before anything has been seen.
    """

    def __init__(self, window: int, prior: float) -> None:
        self._trials: deque[tuple[int, int]] = deque([(0, 0)] * window)
        self._prior = prior
        self._accepted = 0
        self._cut_short = 0

    def add(self, outcome: StepOutcome) -> None:
        """Take a step in."""
        accepted, cut_short = count_trials(outcome)
        old_accepted, old_cut_short = self._trials.popleft()
        self._trials.append((accepted, cut_short))
        self._accepted += accepted - old_accepted
        self._cut_short += cut_short - old_cut_short

    @property
    def alpha(self) -> float:
        """The estimate."""
        trials = self._accepted + self._cut_short
        return (self._accepted + PRIOR_TRIALS * self._prior) / (trials + PRIOR_TRIALS)


class PerRequest:
    """A number, or a row of numbers, for every request, in an array that grows.

    Args:
        initial: Value of a request that nothing is known of.
        *shape: Of its row, if it is one.
    """

    def __init__(self, initial: float, *shape: int, dtype: type = np.float64) -> None:
        self._initial = initial
        self._values: NDArray[Any] = np.full((1024, *shape), initial, dtype=dtype)

    def up_to(self, requests: Ints) -> NDArray[Any]:
        """Return the values of all requests, at least of these; good until it is asked again."""
        needed = int(np.maximum.reduce(requests)) + 1 if len(requests) else 0
        if needed > len(self._values):
            size = max(needed - len(self._values), len(self._values))
            shape = (size, *self._values.shape[1:])
            more = np.full(shape, self._initial, dtype=self._values.dtype)
            self._values = np.concatenate([self._values, more])
        return self._values


class AlphaPerRequest:
    """The acceptance rate of each request, shrunk towards that of all of them.

    Both are ratios of fading counts, so that old steps are forgotten, whether or not something
    was drafted since.

    Args:
        window: Steps of a request after which a count has faded to 1/e.
        prior: Rate before anything has been seen.
        prior_trials: Trials that the rate of all requests counts for in the rate of one.
    """

    def __init__(self, window: float, prior: float, prior_trials: float) -> None:
        self._keep = 1.0 - 1.0 / window
        self._prior = prior
        self._prior_trials = prior_trials
        self._counts = PerRequest(0.0, 2)
        """Accepted tokens, trials."""
        self._totals = np.zeros(2)
        """The same of all requests."""
        self._desk = Desk(self._arrays, add_fading, survivals)

    def _arrays(self, room: int, counts: NDArray[np.float64]) -> Fading:
        rates = np.array([self._keep, 0.0, self._prior_trials])
        return blank(Fading, room, counts=counts, totals=self._totals, rates=rates)

    def add(self, outcome: StepOutcome) -> None:
        """Take a step in."""
        requests, num = outcome.requests, len(outcome.requests)
        desk = self._desk.fit(num, self._counts.up_to(requests))
        desk.requests[:num] = requests
        desk.accepted_lens[:num] = outcome.accepted_lens
        desk.draft_lens[:num] = outcome.draft_lens
        desk.sizes[0] = num
        self._desk.runs[0]()

    @property
    def alpha(self) -> float:
        """The rate of all requests together."""
        accepted, trials = self._totals.tolist()
        rate: float = (accepted + PRIOR_TRIALS * self._prior) / (trials + PRIOR_TRIALS)
        return rate

    def alphas(self, requests: Ints) -> NDArray[np.float64]:
        """Return the rate of each of some requests."""
        accepted, trials = self._counts.up_to(requests)[requests].T
        weight = self._prior_trials
        rates: NDArray[np.float64] = (accepted + weight * self.alpha) / (trials + weight)
        return rates

    def survival(self, batch: BatchView, longest: int) -> NDArray[np.float64]:
        """Return the probability that each of the first tokens of some drafts is accepted.

        Shape (batch.size, longest); element (i, j) is alpha of the request ** (j + 1), or 0 in
        mid-prefill. Good until it is asked again.
        """
        num, size = batch.size, longest * batch.size
        desk = self._desk.fit(max(num, size), self._counts.up_to(batch.requests))
        desk.requests[:num] = batch.requests
        desk.in_prefill[:num] = batch.in_prefill
        desk.rates[1] = self._prior_trials * self.alpha
        desk.sizes[0], desk.sizes[1] = num, longest
        self._desk.runs[1]()
        return desk.powers[:size].reshape(longest, num).T


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


def _windows(room: int, _: None) -> Windows:
    return blank(Windows, room)


_WINDOWS = LocalDesk(_windows, best_places)
