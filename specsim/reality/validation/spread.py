"""Acceptance of a measured run: its own rates, and requests that differ around them."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.base import runs_below, split_rows
from specsim.core.rng import Luck, generator, stream_id

DEFAULT_SPREAD = 30.0
"""Concentration of the Beta distribution that requests differ by. A table cannot say it. Of the
seven fits in ``profiles/acceptance`` that have one (recorded drafts of EAGLE and n-gram), as the
concentration with the same spread between requests, it is 21 to 169, in the median 27."""
_NODES = 400


def fates(
    rates: Sequence[float], output_lens: Sequence[int], concentration: float, seed: int
) -> list[bytes]:
    """Return for each request how long drafts survive, by output position.

    A draft's j-th token is accepted with the request's alpha times a factor of the position, as by
    acceptance ``beta_position``, but of n requests each has another n-th part of the distribution
    of alpha, in random order: so few requests, too, have the rates of the run on average.

    Args:
        rates: Share of all drafts of which position j was accepted; of all drafts of the run, to
            which a request adds the more the less of them is accepted.
        concentration: a + b of the Beta distribution of alpha; infinite where all are alike.
    """
    k, count = len(rates), len(output_lens)
    mean, factors = position_factors(rates, concentration)
    order = generator(seed, "acceptance_spread").permutation(count)
    alphas = _quantiles(mean, concentration, count)[order]
    counts = [length + k for length in output_lens]
    luck = Luck(seed, stream_id("acceptance", "table")).uniforms(range(count), counts)
    lens = runs_below(luck / np.repeat(np.maximum(alphas, 1e-300), counts), factors)
    rows = split_rows(lens.tobytes(), counts)
    return [row[:length] for row, length in zip(rows, output_lens, strict=True)]


def position_factors(rates: Sequence[float], concentration: float) -> tuple[float, list[float]]:
    """Return the mean of alpha and the factor of each position, in [0, 1], that give the rates.

    The smallest mean with which no factor exceeds 1.
    """
    before = (1.0, *rates)
    chances = [now / last if last else 0.0 for last, now in zip(before, rates, strict=False)]
    mean = max(chances)
    if math.isinf(concentration) or not mean:
        return 1.0, chances
    while True:
        mean = min(mean, 1 - 1e-6)
        factors = _factors(rates, _quantiles(mean, concentration, _NODES))
        largest = max(factors)
        if largest <= 1 + 1e-4 or mean == 1 - 1e-6:
            return mean, [min(factor, 1.0) for factor in factors]
        mean *= largest


def _factors(rates: Sequence[float], alphas: NDArray[np.float64]) -> list[float]:
    """Return factors with which requests of these alphas have the rates together."""
    wanted = np.array(rates)
    powers = alphas[:, None] ** np.arange(1, len(rates) + 1)
    products = wanted / powers.mean(axis=0)
    for _ in range(60):  # a request makes the more drafts the fewer tokens each of them yields
        drafts = 1 / (1 + powers @ products)
        products = wanted * drafts.sum() / (drafts @ powers)
    before = np.append(1.0, products[:-1])
    factors: list[float] = np.divide(
        products, before, out=np.zeros_like(products), where=before > 0
    ).tolist()
    return factors


def _quantiles(mean: float, concentration: float, count: int) -> NDArray[np.float64]:
    """Return the middles of `count` equally likely parts of the distribution, in order."""
    if math.isinf(concentration):
        return np.full(count, mean)
    from scipy.special import betaincinv  # noqa: PLC0415 - scipy takes 0.2 s

    shares = (np.arange(count) + 0.5) / count
    found: NDArray[np.float64] = betaincinv(
        mean * concentration, (1 - mean) * concentration, shares
    )
    return found
