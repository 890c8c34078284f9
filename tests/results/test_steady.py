"""Steady state: the warm-up of made-up series whose truth is known."""

import numpy as np
import pytest
from numpy.typing import NDArray

from specsim.results.stability import warm_up_len, warm_up_of

Floats = NDArray[np.float64]


def ar1(count: int, rng: np.random.Generator, correlation: float = 0.8) -> Floats:
    """Return an autoregressive series of mean 0 and variance 1, in its steady state."""
    noise = rng.normal(0.0, np.sqrt(1 - correlation**2), count)
    values = np.empty(count)
    values[0] = rng.normal()
    for place in range(1, count):
        values[place] = correlation * values[place - 1] + noise[place]
    return values


def test_a_transient_is_cut_and_its_bias_with_it() -> None:
    biases, cuts = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        series = ar1(4000, rng) + 20 * np.exp(-np.arange(4000) / 100)
        cut = warm_up_len(series)
        cuts.append(cut)
        biases.append(series[cut:].mean())
    assert 200 < np.median(cuts) < 800  # the transient is 1 after 300 values
    assert abs(np.mean(biases)) < 0.05  # of the whole series it is 0.5


def test_little_is_cut_of_what_is_steady() -> None:
    cuts = [warm_up_len(ar1(4000, np.random.default_rng(seed))) for seed in range(40)]
    assert np.median(cuts) < 200


@pytest.mark.parametrize("series", [np.zeros(100), np.full(1000, 7.0), np.zeros(3), np.zeros(0)])
def test_of_a_flat_series_nothing_is_cut(series: Floats) -> None:
    assert warm_up_len(series) == 0


def test_no_more_than_half_is_cut() -> None:
    assert warm_up_len(np.arange(1000.0)) == 500


def test_a_server_that_fills_up_has_a_warm_up() -> None:
    arrived = np.cumsum(np.random.default_rng(2).exponential(1.0, 1000))
    filling = {"arrived_at": arrived, "ended_at": arrived + 10_000.0}
    assert warm_up_of(filling) > 0
