"""Rules of rejection: FLy against every outcome written out, and whether answers stay whole."""

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from specsim.acceptance import ACCEPTANCE
from specsim.core.errors import ConfigError
from specsim.core.request import Request
from specsim.core.rng import Luck
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

REQUESTS = [Request(index=i, prompt_len=4, output_len=2000) for i in range(20)]
BERNOULLI = {"kind": "bernoulli", "alpha": 0.7}
LOSSY = {**BERNOULLI, "rejection": "typical"}


def tables(longest: int, **fields: Any) -> list[bytes]:
    model = ACCEPTANCE.parse(fields)
    return model.survival_lens(REQUESTS, Luck(7, 8), longest)


def survived(tokens: tuple[int, ...], window: int) -> int:
    """Return how long a draft survives: 2 a token accepted by itself, 1 rejected if unsure."""
    for place, token in enumerate(tokens):
        after = tokens[place + 1 : place + 1 + window]
        if token < 2 and not (token == 1 and after == (2,) * window):
            return place
    return len(tokens)


def made(table: bytes) -> Iterator[int]:
    """Return how long the drafts of a request survive, each made after the bonus of the last."""
    position = 0
    while position < len(table):
        yield table[position]
        position += table[position] + 1


@pytest.mark.parametrize("window", [1, 2, 3, 6])
@pytest.mark.parametrize("alpha", [0.5, 0.8])
def test_fly_survives_as_long_as_its_rule_says(alpha: float, window: int) -> None:
    unsure, longest = 0.4, 5
    chances = {2: alpha, 1: (1.0 - alpha) * unsure, 0: (1.0 - alpha) * (1.0 - unsure)}
    expected = np.zeros(longest + 1)
    for tokens in product(chances, repeat=longest):
        expected[survived(tokens, window)] += prod(chances[token] for token in tokens)
    found = tables(longest, kind="fly", alpha=alpha, unsure=unsure, window=window)
    lens = [length for table in found for length in made(table)]
    shares = np.bincount(lens, minlength=longest + 1) / len(lens)
    spread = np.sqrt(expected * (1.0 - expected) / len(lens))
    assert (np.abs(shares - expected) <= 4.0 * spread + 1e-12).all()


def test_fly_without_an_unsure_target_is_bernoulli() -> None:
    assert tables(6, kind="fly", alpha=0.7, unsure=0.0, window=2) == tables(6, **BERNOULLI)


@pytest.mark.parametrize(
    ("model", "is_lossless"),
    [(BERNOULLI, True), ({**BERNOULLI, "rejection": "block"}, True), (LOSSY, False),
     ({"kind": "fly", "alpha": 0.7, "unsure": 0.3}, False),
     ({"kind": "shift", "at_request": 3, "before": BERNOULLI, "after": LOSSY}, False),
     ({"kind": "per_drafter", "models": {"eagle3": LOSSY}}, False),
     ({"kind": "preset", "name": "llama-3.1-8b/eagle/gsm8k"}, True),
     ({"kind": "preset", "name": "llama-3.1-8b/eagle/gsm8k", "rejection": "typical"}, False)],
)  # fmt: skip
def test_a_result_says_whether_answers_are_the_targets_own(
    model: dict[str, Any], is_lossless: bool, tiny: Callable[..., Experiment]
) -> None:
    found = Summary(simulate(tiny(acceptance=model))).data["specsim"]
    assert found["is_lossless"] is is_lossless


METHOD = "engine.speculative_config.rejection_sample_method"
FLY = {"kind": "fly", "alpha": 0.7, "unsure": 0.3}


@pytest.mark.parametrize(
    ("method", "model", "others"),
    [("standard", BERNOULLI, ""), ("block", BERNOULLI, ""), ("fly", FLY, ""),
     ("fly", {**BERNOULLI, "rejection": "fly"}, ""),
     ("standard", {**BERNOULLI, "rejection": "block"}, "block"), ("block", FLY, "fly"),
     ("fly", BERNOULLI, "standard"), ("standard", LOSSY, "typical"),
     ("fly", {"kind": "per_drafter", "models": {"eagle3": BERNOULLI}}, "standard"),
     ("block", {"kind": "shift", "at_request": 3, "before": FLY, "after": FLY}, "fly")],
)  # fmt: skip
def test_vllms_rule_is_that_of_the_acceptance_model(
    method: str, model: dict[str, Any], others: str, tiny: Callable[..., Experiment]
) -> None:
    spec = {"method": "eagle3", "num_speculative_tokens": 4, "rejection_sample_method": method}
    engine = {"speculative_config": spec, "vllm_version": "0.33"}
    if not others:
        assert tiny(acceptance=model, engine=engine).acceptance == ACCEPTANCE.parse(model)
        return
    with pytest.raises(ConfigError, match=f"{METHOD} = {method}: .* accepted with {others}; name"):
        tiny(acceptance=model, engine=engine)


@pytest.mark.parametrize(
    ("version", "k", "method", "found"),
    [("0.32", 4, "fly", "vLLM has it since 0.33"), ("0.33", 1, "fly", "for 2 tokens and more"),
     ("0.33", 4, "synthetic", "give acceptance: {kind: per_position")],
)  # fmt: skip
def test_rules_that_vllm_has_not_so_are_refused(
    version: str, k: int, method: str, found: str, tiny: Callable[..., Experiment]
) -> None:
    spec = {"method": "eagle3", "num_speculative_tokens": k, "rejection_sample_method": method}
    with pytest.raises(ConfigError, match=found):
        tiny(acceptance=FLY, engine={"speculative_config": spec, "vllm_version": version})


@pytest.mark.parametrize(("k", "window"), [(2, 1), (4, 3), (9, 6)])
def test_flys_window_is_vllms_by_default(k: int, window: int) -> None:
    assert tables(k, **FLY) == tables(k, **FLY, window=window)
