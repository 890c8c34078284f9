"""What adaptive policies share: what a draft is worth, and how likely its tokens are accepted."""

from collections import deque
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from specsim.step import StepOutcome

__all__ = [
    "PRIOR_TRIALS",
    "AlphaPerRequest",
    "AlphaWindow",
    "PerRequest",
    "best_windows",
    "expected_len",
    "survival",
]


def expected_len(alpha: float, draft_len: int) -> float:
    """Return the tokens that a draft emits on average, bonus token included.

    Parameters
    ----------
    alpha : float
        P(a draft token is accepted | all before it were).
    draft_len : int, tokens

    Returns
    -------
    float, tokens
        (1 - alpha^(k + 1)) / (1 - alpha): Leviathan et al. (2023), eq. 1; SmartSpec, eq. 8.
    """
    if alpha >= 1.0:
        return draft_len + 1.0
    return float((1.0 - alpha ** (draft_len + 1)) / (1.0 - alpha))


def survival(alphas: NDArray[np.float64], longest: int) -> NDArray[np.float64]:
    """Return the probability that each of the first tokens of some drafts is accepted.

    Parameters
    ----------
    alphas : ndarray of float, shape (n,)
    longest : int, tokens

    Returns
    -------
    ndarray of float, shape (n, longest)
        Element (i, j): alphas[i] ** (j + 1).
    """
    powers = np.empty((longest, len(alphas)))
    powers[:1] = alphas
    for shorter, longer in pairwise(powers):
        np.multiply(shorter, alphas, out=longer)
    return powers.T


def count_trials(outcome: StepOutcome) -> tuple[int, int]:
    """Return how many draft tokens of a step were accepted, and how many drafts were cut short.

    Parameters
    ----------
    outcome : StepOutcome

    Returns
    -------
    tuple of int
        A rejected token ends a draft, so a step tries each of its drafts once more than it
        accepts, unless it accepts all of it: the maximum-likelihood alpha is
        accepted / (accepted + cut short) (on-the-fly, eq. 2).
    """
    accepted_lens = outcome.accepted_lens
    full = sum(map(int.__eq__, outcome.draft_lens, accepted_lens))  # k = 0 tries nothing
    return sum(accepted_lens), len(accepted_lens) - full


PRIOR_TRIALS = 5.0
"""Trials that a prior counts for in an estimate over all requests."""


class AlphaWindow:
    """The acceptance rate over the last steps, all requests together.

    The prior counts for a few trials, so that one unlucky draft does not end speculation; and
    steps that drafted nothing push old evidence out of the window, so that it is tried again.

    Parameters
    ----------
    window : int
        Steps.
    prior : float
        Rate before anything has been seen.
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

    Parameters
    ----------
    initial : float
        Value of a request that nothing is known of.
    *shape : int
        Of its row, if it is one.
    """

    def __init__(self, initial: float, *shape: int) -> None:
        self._initial = initial
        self._values = np.full((1024, *shape), initial, dtype=np.float64)

    def rows(self, requests: list[int]) -> NDArray[np.intp]:
        """Return the places of some requests; make room for them."""
        rows = np.array(requests, dtype=np.intp)
        needed = int(rows.max(initial=0)) + 1
        if needed > len(self._values):
            size = max(needed - len(self._values), len(self._values))
            more = np.full((size, *self._values.shape[1:]), self._initial, dtype=np.float64)
            self._values = np.concatenate([self._values, more])
        return rows

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        return self._values[rows]

    def __setitem__(self, rows: NDArray[np.intp], values: NDArray[np.float64]) -> None:
        self._values[rows] = values


class AlphaPerRequest:
    """The acceptance rate of each request, shrunk towards that of all of them.

    Both are ratios of fading counts, so that old steps are forgotten, whether or not something
    was drafted since.

    Parameters
    ----------
    window : float
        Steps of a request after which a count has faded to 1/e.
    prior : float
        Rate before anything has been seen.
    prior_trials : float
        Trials that the rate of all requests counts for in the rate of one.
    """

    def __init__(self, window: float, prior: float, prior_trials: float) -> None:
        self._keep = 1.0 - 1.0 / window
        self._prior = prior
        self._prior_trials = prior_trials
        self._counts = PerRequest(0.0, 2)
        """Accepted tokens, trials."""
        self._all_accepted = 0.0
        self._all_trials = 0.0

    def add(self, outcome: StepOutcome) -> None:
        """Take a step in."""
        rows = self._counts.rows(outcome.requests)
        counts = np.empty((len(rows), 2))
        counts[:, 0] = accepted = np.array(outcome.accepted_lens, dtype=np.intp)
        counts[:, 1] = accepted + (accepted < np.array(outcome.draft_lens, dtype=np.intp))
        self._counts[rows] = self._keep * self._counts[rows] + counts
        all_accepted, all_trials = counts.sum(axis=0).tolist()
        self._all_accepted = self._keep * self._all_accepted + all_accepted
        self._all_trials = self._keep * self._all_trials + all_trials

    @property
    def alpha(self) -> float:
        """The rate of all requests together."""
        return (self._all_accepted + PRIOR_TRIALS * self._prior) / (self._all_trials + PRIOR_TRIALS)

    def alphas(self, requests: list[int]) -> NDArray[np.float64]:
        """Return the rate of each of some requests."""
        accepted, trials = self._counts[self._counts.rows(requests)].T
        weight = self._prior_trials
        rates: NDArray[np.float64] = (accepted + weight * self.alpha) / (trials + weight)
        return rates


def best_windows(
    alphas: NDArray[np.float64], longest: int, pass_time: float, verify_time: float
) -> NDArray[np.intp]:
    """Return the k that maximises (1 - alpha^(k + 1)) / ((1 - alpha) (k a + b)) for each alpha.

    Parameters
    ----------
    alphas : ndarray of float, shape (n,)
    longest : int, tokens
    pass_time, verify_time : float, seconds
        a and b.

    Returns
    -------
    ndarray of int, shape (n,)
    """
    powers = survival(alphas, longest + 1).T
    times = np.arange(longest + 1) * pass_time + verify_time
    rates = (1.0 - powers) / times[:, np.newaxis]  # but for 1 - alpha, which changes no argmax
    best: NDArray[np.intp] = rates.argmax(axis=0)
    return best
