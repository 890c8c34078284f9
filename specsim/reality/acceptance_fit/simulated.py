"""Fits by simulation: the parameters whose replay is closest to that of the data.

For models whose likelihood has no simple form. Every trial meets the same luck and starts from the
data alone, whatever was tried before, so that the discrepancy is a fixed function of the parameters
that are searched. Those of `layered` are its spreads, lengths and drift: to each of them belong the
rates that a few rounds of matching reach from those of the data, and the discrepancy is that of the
model with exactly these rates.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit, ndtr, ndtri

from specsim.acceptance.layered import Layered, RegimeLayer
from specsim.acceptance.markov import Markov, Regime
from specsim.reality.acceptance_fit.distance import discrepancy
from specsim.reality.acceptance_fit.estimate import fit_bernoulli, rounded
from specsim.reality.acceptance_fit.replay import Replay, Twin

__all__ = ["fit_layered", "fit_markov"]

Vector = NDArray[np.float64]

_POSITIONS = 60_000  # output positions per trial: errors far below those of the data
_MAX_TRIALS = 250  # per start
_MAX_ROUNDS = 6  # per trial of `layered`: replays to match its rates, fewer if they agree before


def fit_markov(data: Replay) -> Markov:
    """Return the closest chain of two regimes."""
    twin = Twin(data, _POSITIONS, "fit")
    middle = logit(np.clip(fit_bernoulli(data).alpha, 0.05, 0.95))
    starts = [(0.0, middle - 1.5, middle + 1.5, np.log(length)) for length in (3.0, 20.0)]
    steps = (0.7, 0.7, 0.7, 0.7)
    x = _closest(lambda x: discrepancy(twin.replay(_markov(x)), data), starts, steps)
    return _markov(x)


def _markov(x: Vector) -> Markov:
    easy = float(expit(np.clip(x[0], -6, 6)))
    low, high = (rounded(float(expit(value))) for value in x[1:3])
    return Markov(
        regimes=(
            Regime(weight=rounded(1 - easy), alpha=low),
            Regime(weight=rounded(easy), alpha=high),
        ),
        regime_len=_mean_len(x[3], shortest=1),
    )


def fit_layered(data: Replay) -> Layered:
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
        rates=tuple(map(rounded, rates.tolist())),
        request_spread=_spread(x[0]),
        regimes=(
            RegimeLayer(spread=_spread(x[1]), mean_len=_mean_len(x[2], shortest=1)),
            RegimeLayer(spread=_spread(x[3]), mean_len=_mean_len(x[4], shortest=8)),
        ),
        drift=rounded(float(np.clip(x[5], -2, 2))),
    )


def _matched(x: Vector, twin: Twin, data: Replay) -> tuple[Layered, float]:
    """Return the model whose conditional rates are those of the data, and its discrepancy.

    Conditional rates grow with the spread that is left in the survivors, so there is no formula;
    a probit step at a time leads there from the rates of the data.
    """
    target = np.clip(data.conditional_rates, 0.002, 0.998)
    rates = target
    for _ in range(_MAX_ROUNDS):
        model = _layered(x, rates)
        trial = twin.replay(model)
        reached = np.clip(trial.conditional_rates, 0.002, 0.998)
        if np.abs(reached - target).max() < 0.003:
            break
        rates = np.clip(ndtr(ndtri(rates) + ndtri(target) - ndtri(reached)), 1e-4, 1 - 1e-4)
    return model, discrepancy(trial, data)


def _spread(log_spread: float) -> float:
    """Return a spread of at most twice a token's own, beyond which hardly anything changes."""
    return rounded(float(np.exp(np.clip(log_spread, -5, np.log(2)))))


def _mean_len(log_excess: float, shortest: int) -> float:
    """Return a mean length that may approach the shortest but not go below, nor beyond outputs."""
    return rounded(shortest + float(np.exp(np.clip(log_excess, -5, 5))))


def _closest(
    loss: Callable[[Vector], float],
    starts: Sequence[tuple[float, ...]],
    steps: tuple[float, ...],
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
