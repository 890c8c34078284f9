"""Fits by maximum likelihood."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import betaincinv, betaln, expit, logit, logsumexp

from specsim.acceptance.bernoulli import Bernoulli
from specsim.acceptance.beta import Beta
from specsim.acceptance.beta_position import BetaPosition
from specsim.acceptance.per_position import PerPosition
from specsim.reality.acceptance_fit.replay import Replay

__all__ = ["fit_bernoulli", "fit_beta", "fit_beta_position", "fit_per_position", "rounded"]

_NODES = (np.arange(200) + 0.5) / 200  # quantiles over which Beta is integrated


def rounded(value: float) -> float:
    """Return a value with the four digits that a reader wants to see."""
    return float(f"{value:.4g}")


def fit_bernoulli(data: Replay) -> Bernoulli:
    """Return accepted over verified tokens; drafts are verified up to their first rejection."""
    accepted, rejected = (counts.sum() for counts in data.counts())
    return Bernoulli(alpha=rounded(accepted / (accepted + rejected)))


def fit_per_position(data: Replay) -> PerPosition:
    """Return the share of accepted tokens at each place in the draft."""
    return PerPosition(conditional_rates=tuple(map(rounded, data.conditional_rates.tolist())))


def fit_beta(data: Replay) -> Beta:
    """Return the most likely beta-binomial distribution of accepted among verified tokens."""
    a, b = _fit_beta(*(counts.sum(axis=1) for counts in data.counts()))
    return Beta(a=rounded(a), b=rounded(b))


def _fit_beta(accepted: NDArray[np.int64], rejected: NDArray[np.int64]) -> tuple[float, float]:
    mean = (accepted.sum() + 1) / (accepted.sum() + rejected.sum() + 2)

    def loss(x: NDArray[np.float64]) -> float:
        a, b = _shape(x)
        return -float((betaln(a + accepted, b + rejected) - betaln(a, b)).sum())

    start = np.array([logit(mean), np.log(10.0)])
    return _shape(minimize(loss, start, method="Nelder-Mead").x)


def _shape(x: NDArray[np.float64]) -> tuple[float, float]:
    """Return a and b of logit(a / (a + b)) and ln(a + b), within what is numerically sound."""
    mean, size = expit(np.clip(x[0], -12, 12)), np.exp(np.clip(x[1], -3, 12))
    return float(mean * size), float((1 - mean) * size)


def fit_beta_position(data: Replay) -> BetaPosition:
    """Return the most likely factors and distribution of alpha, integrated numerically."""
    accepted, rejected = data.counts()

    def loss(x: NDArray[np.float64]) -> float:
        alphas = np.clip(betaincinv(*_shape(x), _NODES), 1e-9, 1 - 1e-9)
        rates = np.outer(expit(x[2:]), alphas)
        likelihoods = accepted @ np.log(rates) + rejected @ np.log1p(-rates)
        return -float(logsumexp(likelihoods, axis=1).sum())

    a, b = _fit_beta(accepted[:, 0], rejected[:, 0])
    factors = logit(np.clip(data.conditional_rates / data.conditional_rates.max(), 0.01, 0.97))
    start = np.array([np.log(a / b), np.log(a + b), *factors])
    bounds = [(-12, 12), (-3, 12), *[(-12, 12)] * len(factors)]
    x = minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
    a, b = _shape(x)
    return BetaPosition(
        a=rounded(a), b=rounded(b), factors=tuple(map(rounded, expit(x[2:]).tolist()))
    )
