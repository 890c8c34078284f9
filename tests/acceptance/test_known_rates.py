"""What is to be known of drafts but their luck: right on average, and more than the average."""

from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from specsim.acceptance import ACCEPTANCE
from specsim.core.errors import ConfigError
from specsim.core.request import Request
from specsim.core.rng import Luck

LONGEST = 4
REQUESTS = [Request(index=i, prompt_len=1, output_len=300) for i in range(150)]
LUCK = Luck(5, 6)
REGIMES = [{"weight": 0.6, "alpha": 0.3}, {"weight": 0.4, "alpha": 0.9}]
LAYERS = {
    "rates": [0.7, 0.6, 0.5],
    "request_spread": 0.5,
    "regimes": [{"spread": 0.8, "mean_len": 3.0}, {"spread": 0.4, "mean_len": 40.0}],
    "drift": 0.1,
}
MODELS: dict[str, dict[str, Any]] = {
    "bernoulli": {"kind": "bernoulli", "alpha": 0.6},
    "beta": {"kind": "beta", "a": 3.0, "b": 2.0},
    "beta_position": {"kind": "beta_position", "a": 4.0, "b": 2.0, "factors": [1.0, 0.8]},
    "per_position": {"kind": "per_position", "conditional_rates": [0.8, 0.5]},
    "markov": {"kind": "markov", "regimes": REGIMES, "regime_len": 10.0},
    "layered": {"kind": "layered", **LAYERS},
    "layered, alone": {"kind": "layered", **LAYERS, "regimes": []},
    "preset": {"kind": "preset", "name": "llama-3.1-8b/eagle/sharegpt"},
    "shift": {
        "kind": "shift",
        "at_request": 70,
        "before": {"kind": "bernoulli", "alpha": 0.9},
        "after": {"kind": "beta", "a": 2.0, "b": 3.0},
    },
}


def known(model: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rates and their squares by position and place, and whether tokens were accepted."""
    acceptance = ACCEPTANCE.parse(model)
    rates = acceptance.known_rates(REQUESTS, LUCK, LONGEST)
    tables = acceptance.survival_lens(REQUESTS, LUCK, LONGEST)
    lens = np.array([list(table) for table in tables])
    indices, positions = (each.ravel() for each in np.indices(lens.shape))
    return *rates(indices, positions), lens.ravel()[:, np.newaxis] > np.arange(LONGEST)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_of_one_rate_are_accepted_at_that_rate(name: str) -> None:
    rates, _, accepted = known(MODELS[name])
    places = set()
    for place in range(LONGEST):
        is_tried = accepted[:, :place].all(axis=1)
        rate, outcome = rates[is_tried, place], accepted[is_tried, place]
        for low in np.arange(0.0, 1.0, 0.2):
            alike = (rate >= low) & (rate < low + 0.2)
            if alike.sum() > 2000:
                places.add(place)
                assert outcome[alike].mean() == pytest.approx(rate[alike].mean(), abs=0.03)
    assert {0, 1, 2} <= places


@pytest.mark.parametrize("name", MODELS)
def test_squares_are_those_of_the_chances_at_the_tokens_themselves(name: str) -> None:
    rates, squares, accepted = known(MODELS[name])
    tables = [bytes(300)] * len(REQUESTS)
    tokens = ACCEPTANCE.parse(MODELS[name]).token_lucks(LUCK, LONGEST, tables)(REQUESTS, tables)
    width = 300 + LONGEST
    for place in range(LONGEST):
        chances = ndtr(np.broadcast_to(tokens.at(place)[1], len(REQUESTS) * width))
        at = chances.reshape(-1, width)[:, place : place + 300].ravel()
        is_tried = accepted[:, :place].all(axis=1)
        if not is_tried.any():
            continue
        for predicted, found in ((rates, at), (squares, at**2)):
            expected = found[is_tried].mean()
            assert predicted[is_tried, place].mean() == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("name", ["beta", "markov", "layered", "shift"])
def test_the_state_says_more_than_the_mean(name: str) -> None:
    rates, _, accepted = known(MODELS[name])
    first, outcome = rates[:, 0], accepted[:, 0]
    of_state = np.mean((outcome - first) ** 2)
    assert of_state < 0.97 * np.mean((outcome - outcome.mean()) ** 2)


@pytest.mark.parametrize("kind", [{"kind": "recorded", "proposer": "eagle"}, "token_match"])
def test_what_was_recorded_has_no_state(kind: Any) -> None:
    with pytest.raises(ConfigError, match="has no model whose state could be known"):
        ACCEPTANCE.parse(kind).known_rates(REQUESTS, LUCK, LONGEST)
