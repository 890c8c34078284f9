"""Fits of acceptance models: by maximum likelihood and, where it has no simple form, by simulation.

A fit by simulation finds the parameters whose decoding is closest to that of the data. Every trial
meets the same luck and starts from the data alone, whatever was tried before, so that the
discrepancy is a fixed function of the parameters that are searched. Those of `layered` are its
spreads, lengths and drift: to each of them belong the rates that a few rounds of matching reach
from those of the data, and the discrepancy is that of the model with exactly these rates.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import betaincinv, betaln, expit, logit, logsumexp, ndtr, ndtri

from specsim.acceptance.base import Acceptance
from specsim.acceptance.bernoulli import Bernoulli, Beta, BetaPosition, PerPosition
from specsim.acceptance.layered import Layered, Markov, Regime, RegimeLayer
from specsim.reality.acceptance_fit.decoding import Decoded, Twin, discrepancy

Vector = NDArray[np.float64]

_NODES = (np.arange(200) + 0.5) / 200  # quantiles over which Beta is integrated
_POSITIONS = 60_000  # output positions per trial: errors far below those of the data
_MAX_TRIALS = 250  # per start
_MAX_ROUNDS = 6  # per trial of `layered`: replays to match its rates, fewer if they agree before


def _rounded(value: float) -> float:
    """Return a value with the four digits that a reader wants to see."""
    return float(f"{value:.4g}")


def fit_bernoulli(data: Decoded) -> Bernoulli:
    """Return accepted over verified tokens; drafts are verified up to their first rejection."""
    accepted, rejected = (counts.sum() for counts in data.counts())
    return Bernoulli(alpha=_rounded(accepted / (accepted + rejected)))


def fit_per_position(data: Decoded) -> PerPosition:
    """Return the share of accepted tokens at each place in the draft."""
    return PerPosition(conditional_rates=tuple(map(_rounded, data.conditional_rates.tolist())))


def fit_beta(data: Decoded) -> Beta:
    """Return the most likely beta-binomial distribution of accepted among verified tokens."""
    a, b = _fit_beta(*(counts.sum(axis=1) for counts in data.counts()))
    return Beta(a=_rounded(a), b=_rounded(b))


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


def fit_beta_position(data: Decoded) -> BetaPosition:
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
        a=_rounded(a), b=_rounded(b), factors=tuple(map(_rounded, expit(x[2:]).tolist()))
    )


def fit_markov(data: Decoded) -> Markov:
    twin = Twin(data, _POSITIONS, "fit")
    middle = logit(np.clip(fit_bernoulli(data).alpha, 0.05, 0.95))
    starts = [(0.0, middle - 1.5, middle + 1.5, np.log(length)) for length in (3.0, 20.0)]
    steps = (0.7, 0.7, 0.7, 0.7)
    x = _closest(lambda x: discrepancy(twin.decode(_markov(x)), data), starts, steps)
    return _markov(x)


def _markov(x: Vector) -> Markov:
    easy = float(expit(np.clip(x[0], -6, 6)))
    low, high = (_rounded(float(expit(value))) for value in x[1:3])
    return Markov(
        regimes=(
            Regime(weight=_rounded(1 - easy), alpha=low),
            Regime(weight=_rounded(easy), alpha=high),
        ),
        regime_len=_mean_len(x[3], shortest=1),
    )


def fit_layered(data: Decoded) -> Layered:
    """Return the closest layered model, whose rates agree with those of the data."""
    twin = Twin(data, _POSITIONS, "fit")
    starts = [
        (np.log(own), np.log(short), np.log(2.0), np.log(long), np.log(20.0), 0.1)
        for own, short, long in ((0.5, 0.7, 0.4), (0.4, 0.3, 1.2))
    ]
    steps = (0.7, 0.7, 0.7, 0.7, 0.7, 0.2)
    x = _closest(lambda x: _matched(x, twin, data)[1], starts, steps)
    return _matched(x, twin, data)[0]


def _layered(x: Vector, rates: Vector) -> Layered:
    return Layered(
        rates=tuple(map(_rounded, rates.tolist())),
        request_spread=_spread(x[0]),
        regimes=(
            RegimeLayer(spread=_spread(x[1]), mean_len=_mean_len(x[2], shortest=1)),
            RegimeLayer(spread=_spread(x[3]), mean_len=_mean_len(x[4], shortest=8)),
        ),
        drift=_rounded(float(np.clip(x[5], -2, 2))),
    )


def _matched(x: Vector, twin: Twin, data: Decoded) -> tuple[Layered, float]:
    """Return the model whose conditional rates are those of the data, and its discrepancy.

    Conditional rates grow with the spread that is left in the survivors, so there is no formula;
    a probit step at a time leads there from the rates of the data.
    """
    target = np.clip(data.conditional_rates, 0.002, 0.998)
    rates = target
    for _ in range(_MAX_ROUNDS):
        model = _layered(x, rates)
        trial = twin.decode(model)
        reached = np.clip(trial.conditional_rates, 0.002, 0.998)
        if np.abs(reached - target).max() < 0.003:
            break
        rates = np.clip(ndtr(ndtri(rates) + ndtri(target) - ndtri(reached)), 1e-4, 1 - 1e-4)
    return model, discrepancy(trial, data)


def _spread(log_spread: float) -> float:
    """Return a spread of at most twice a token's own, beyond which hardly anything changes."""
    return _rounded(float(np.exp(np.clip(log_spread, -5, np.log(2)))))


def _mean_len(log_excess: float, shortest: int) -> float:
    """Return a mean length that may approach the shortest but not go below, nor beyond outputs."""
    return _rounded(shortest + float(np.exp(np.clip(log_excess, -5, 5))))


def _closest(
    loss: Callable[[Vector], float], starts: Sequence[tuple[float, ...]], steps: tuple[float, ...]
) -> Vector:
    """Return the best point that Nelder and Mead's method finds from any of the starts."""
    found = [
        minimize(
            loss,
            start,
            method="Nelder-Mead",
            options={
                "maxfev": _MAX_TRIALS,
                "xatol": 1e-2,
                "fatol": 1e-6,
                "initial_simplex": np.vstack([start, np.array(start) + np.diag(steps)]),
            },
        )
        for start in starts
    ]
    return np.asarray(min(found, key=lambda result: result.fun).x)


FITS: dict[str, Callable[[Decoded], Acceptance]] = {
    "bernoulli": fit_bernoulli,
    "per_position": fit_per_position,
    "beta": fit_beta,
    "markov": fit_markov,
    "beta_position": fit_beta_position,
    "layered": fit_layered,
}
"""Every model that can be fitted, by kind, simplest first."""
