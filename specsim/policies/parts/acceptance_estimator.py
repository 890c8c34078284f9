"""vLLM's estimate of how likely drafts are accepted, learned from how sure the drafter was."""

import numpy as np
from numpy.typing import NDArray

from specsim.core.desk import PerRequest
from specsim.core.step import Ints, StepOutcome

Floats = NDArray[np.float64]

_SLOPE, _INTERCEPT = 0.5, -0.2  # at first: medians of what five models came to
_LARGEST = 40.0  # log-odds
_STEPS, _DAMPING, _RIDGE = 100, 50.0, 1e-3


class AcceptanceEstimator:
    """A logistic model with a slope for all positions of a draft and an intercept for each.

    Its feature is the log-odds that the drafter gives its token. Each hundredth step makes one
    damped Newton step over what became of the drafts since the one before. vLLM 0.32.0
    ``v1/worker/gpu/spec_decode/acceptance_estimator.py OnlineAcceptanceEstimator``, in double
    precision.
    """

    def __init__(self, longest: int) -> None:
        self.slope = _SLOPE
        self.intercepts = np.full(longest, _INTERCEPT)
        self._features = PerRequest(0.0, longest)
        self._clear()

    def _clear(self) -> None:
        self._steps, longest = 0, len(self.intercepts)
        self._hessian = np.zeros((3, longest))  # feature squared, feature, 1; each weighted
        self._gradient = np.zeros((2, longest))  # of slope and intercept
        self._counts = np.zeros(longest)

    def predict(self, requests: Ints, confidences: NDArray[np.float32]) -> Floats:
        """Return the chance of each draft token, given that those before it are accepted.

        Args:
            requests: Index of each request, shape (n,).
            confidences: Of the drafter, shape (n, at most `longest`), as is the result.
        """
        given = confidences.astype(np.float64)
        with np.errstate(divide="ignore"):
            log_odds = np.log(given) - np.log1p(-given)
        features = np.clip(log_odds, -_LARGEST, _LARGEST)
        self._features.up_to(requests)[requests, : features.shape[1]] = features
        return self._chances(features)

    def learn(self, outcome: StepOutcome) -> None:
        """Take in what became of drafts: the accepted tokens, and the first that was not."""
        features = self._features.of(outcome.requests)
        places, accepted_lens = np.arange(len(self.intercepts)), outcome.accepted_lens[:, None]
        is_accepted = places < accepted_lens
        is_seen = (places <= accepted_lens) & (places < outcome.draft_lens[:, None])
        chances = self._chances(features)
        weights = is_seen * chances * (1.0 - chances)
        residuals = is_seen * (is_accepted - chances)
        self._hessian += [(weights * features**power).sum(axis=0) for power in (2, 1, 0)]
        self._gradient += [(residuals * features**power).sum(axis=0) for power in (1, 0)]
        self._counts += is_seen.sum(axis=0)
        self._steps += 1
        if self._steps == _STEPS:
            self._refit()
            self._clear()

    def _chances(self, features: Floats) -> Floats:
        log_odds = self.slope * features + self.intercepts[: features.shape[1]]
        chances: Floats = 1.0 / (1.0 + np.exp(-log_odds))
        return chances

    def _refit(self) -> None:
        """Solve for the step: the hessian is an arrow, with the slope in its tip."""
        (tip, side, shaft), (of_slope, of_intercept) = self._hessian, self._gradient
        shaft = shaft + _RIDGE
        rest = tip.sum() + _RIDGE - (side * side / shaft).sum()
        step = float((of_slope.sum() - (side * of_intercept / shaft).sum()) / rest)
        total = float(self._counts.sum())
        step *= total / (total + _DAMPING)
        if self.slope + step < 0.0:
            step = 0.0
        self.slope += step
        damping = self._counts / (self._counts + _DAMPING)
        self.intercepts += damping * (of_intercept - side * step) / shaft
