"""Steady state: warm-up and growth of made-up series whose truth is known."""

import numpy as np
import pytest
from numpy.typing import NDArray

from specsim.results.steady import Trend, backlog_trend, is_unstable, warm_up_len, warm_up_of

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


def queue(load: float, count: int, seed: int = 1) -> dict[str, Floats]:
    """Return requests of a single server with constant service of one second."""
    arrived = np.cumsum(np.random.default_rng(seed).exponential(1 / load, count))
    done = np.arange(1.0, count + 1)
    ended = done + np.maximum.accumulate(arrived - (done - 1.0))
    return {"arrived_at": arrived, "scheduled_at": ended - 1.0, "ended_at": ended}


@pytest.mark.parametrize(
    ("load", "unstable"), [(0.5, False), (0.8, False), (1.3, True), (3.0, True)]
)
def test_overload_is_told_from_load(load: float, unstable: bool) -> None:
    assert is_unstable(queue(load, 1000)) is unstable


def test_a_linear_backlog_grows_by_what_is_not_served() -> None:
    arrived = np.arange(10_000.0)
    begun = arrived / 0.9
    trend = backlog_trend({"arrived_at": arrived, "scheduled_at": begun, "ended_at": begun + 1})
    assert trend.growth == pytest.approx(0.1, rel=0.01)
    assert trend.is_growing


def test_false_alarms_are_as_rare_as_stated() -> None:
    """1 % of servers that just keep up, by the theory of the test; a third more by chance."""
    alarms = [is_unstable(queue(1.0, 1000, seed)) for seed in range(600)]
    assert np.mean(alarms) < 0.025
    assert not any(is_unstable(queue(0.9, 1000, seed)) for seed in range(100))


def test_a_server_that_fills_up_has_no_backlog() -> None:
    """Of 1,000 requests that take 10 times as long as all arrivals, none waits."""
    arrived = np.cumsum(np.random.default_rng(2).exponential(1.0, 1000))
    filling = {"arrived_at": arrived, "scheduled_at": arrived, "ended_at": arrived + 10_000.0}
    assert not is_unstable(filling)
    assert warm_up_of(filling) > 0


@pytest.mark.parametrize("count", [1, 39, 100])
def test_a_burst_or_a_few_requests_prove_nothing(count: int) -> None:
    ended = np.arange(1.0, count + 1)
    burst = {"arrived_at": np.zeros(count), "scheduled_at": ended - 1, "ended_at": ended}
    assert not is_unstable(burst)


def test_runs_together_are_surer_than_one() -> None:
    one = Trend(0.02, 0.01)
    assert not one.is_growing
    assert Trend.pooled([one] * 4).is_growing
    assert Trend.pooled([one] * 4).error == pytest.approx(0.005)
