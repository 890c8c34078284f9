"""Acceptance models against what their formulas say, over many requests on fixed luck."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from specsim.acceptance import ACCEPTANCE
from specsim.acceptance.layered import REFERENCE_POSITION, Layered
from specsim.core.request import Request
from specsim.core.rng import Luck

LUCK = Luck(11, 12)


def tables(model: Any, count: int, output_len: int, k: int = 1) -> NDArray[np.uint8]:
    """Return survival lengths, shape (count, output_len)."""
    requests = [Request(index=i, prompt_len=1, output_len=output_len) for i in range(count)]
    flat = b"".join(ACCEPTANCE.parse(model).survival_lens(requests, LUCK, k))
    return np.frombuffer(flat, dtype=np.uint8).reshape(count, output_len)


def standard_error(values: NDArray[Any]) -> float:
    return float(values.std() / len(values) ** 0.5)


@pytest.mark.parametrize(("a", "b"), [(2.0, 2.0), (6.0, 3.0), (0.3, 0.7)])
def test_beta_has_the_moments_of_its_alphas(a: float, b: float) -> None:
    output_len = 200
    shares = tables({"kind": "beta", "a": a, "b": b}, 3000, output_len).mean(axis=1)
    mean = a / (a + b)
    variance = mean * (1 - mean) / (a + b + 1)
    binomial = (mean * (1 - mean) - variance) / output_len  # what a finite output adds
    assert abs(shares.mean() - mean) < 4 * standard_error(shares)
    squares = (shares - mean) ** 2
    assert abs(squares.mean() - variance - binomial) < 4 * standard_error(squares)


def test_beta_position_multiplies_alpha_and_factor() -> None:
    model = {"kind": "beta_position", "a": 6.0, "b": 2.0, "factors": [0.9, 0.5]}
    lens = tables(model, 3000, 100, k=3)
    # E[alpha^j] of Beta(6, 2), and the last factor once more for the third token.
    moments = np.cumprod([6 / 8, 7 / 9, 8 / 10])
    expected = moments * np.cumprod([0.9, 0.5, 0.5])
    for j, rate in enumerate(expected, start=1):
        shares = (lens >= j).mean(axis=1)
        assert abs(shares.mean() - rate) < 4 * standard_error(shares)


MARKOV = {
    "kind": "markov",
    "regimes": [{"weight": 3.0, "alpha": 0.1}, {"weight": 1.0, "alpha": 0.9}],
    "regime_len": 5.0,
}


def test_markov_is_stationary() -> None:
    shares = tables(MARKOV, 8000, 60).mean(axis=0)
    mean = 0.75 * 0.1 + 0.25 * 0.9
    assert np.abs(shares - mean).max() < 4.5 * (mean * (1 - mean) / 8000) ** 0.5


@pytest.mark.parametrize("distance", [1, 3, 10])
def test_markov_forgets_geometrically(distance: int) -> None:
    accepted = tables(MARKOV, 8000, 60).astype(float)
    products = (accepted[:, distance:] * accepted[:, :-distance]).mean(axis=1)
    mean = 0.75 * 0.1 + 0.25 * 0.9
    variance = 0.75 * 0.1**2 + 0.25 * 0.9**2 - mean**2
    expected = mean**2 + variance * (1 - 1 / 5.0) ** distance
    assert abs(products.mean() - expected) < 4 * standard_error(products)


def test_one_regime_is_bernoulli() -> None:
    model = {"kind": "markov", "regimes": [{"weight": 2.0, "alpha": 0.6}], "regime_len": 3.0}
    assert np.array_equal(
        tables(model, 5, 50, k=4), tables({"kind": "bernoulli", "alpha": 0.6}, 5, 50, k=4)
    )


LAYERED = {
    "kind": "layered",
    "rates": [0.8, 0.3],
    "request_spread": 0.7,
    "regimes": [{"spread": 1.2, "mean_len": 4.0}],
}


def test_layered_rates_are_those_of_a_fresh_token() -> None:
    shares = (tables(LAYERED, 6000, 50) >= 1).mean(axis=1)
    assert abs(shares.mean() - 0.8) < 4 * standard_error(shares)
    later = {**LAYERED, "rates": [0.3]}
    shares = (tables(later, 6000, 50) >= 1).mean(axis=1)
    assert abs(shares.mean() - 0.3) < 4 * standard_error(shares)


def test_layered_drift_moves_the_score_with_the_logarithm_of_the_position() -> None:
    model = Layered.model_validate({**LAYERED, "drift": 0.4})
    shares = (tables(model, 20_000, 400) >= 1).mean(axis=0)
    positions = np.array([1, 10, REFERENCE_POSITION, 400])
    spread = (1 + 0.7**2 + 1.2**2) ** 0.5
    score = model.levels[0] + 0.4 * np.log(positions / REFERENCE_POSITION)
    assert shares[positions - 1] == pytest.approx(ndtr(score / spread), abs=0.015)


def test_layered_without_spread_is_per_position() -> None:
    lens = tables({"kind": "layered", "rates": [0.8, 0.5]}, 500, 200, k=3)
    measured = [(lens >= j).mean() for j in (1, 2, 3)]
    assert measured == pytest.approx([0.8, 0.4, 0.2], abs=0.006)


@pytest.mark.parametrize("distance", [1, 5])
def test_layered_regimes_are_forgotten_geometrically(distance: int) -> None:
    accepted = (tables({**LAYERED, "rates": [0.5]}, 8000, 60) >= 1).astype(float)
    products = (accepted[:, distance:] * accepted[:, :-distance]).mean(axis=1)
    # Two scores share the request's luck, and the regime's while it lasts; both fail or both
    # succeed with probability 1/2 + arcsin(correlation) / pi (Sheppard 1899).
    variance = 1 + 0.7**2 + 1.2**2
    lasts = (1 - 1 / 4.0) ** distance
    expected = lasts * _both(0.7**2 + 1.2**2, variance) + (1 - lasts) * _both(0.7**2, variance)
    assert abs(products.mean() - expected) < 4 * standard_error(products)


def _both(shared: float, variance: float) -> float:
    return 0.25 + float(np.arcsin(shared / variance)) / (2 * np.pi)
