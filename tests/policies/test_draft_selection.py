"""Several draft models: each request gets the one that is faster for it, and pays for it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.core.errors import ConfigError, ProfileError
from specsim.policies.draft_selection import DraftSelection, least_squares
from specsim.run.experiment import Experiment
from specsim.run.simulate import Run, simulate
from specsim.run.summary import Summary

FAST, SLOW = ({"basis": "pass", "latency": {"kind": "linear", "alpha_ns": 0, "gamma_us": 0,
                                            "delta_ms": ms}} for ms in (0.2, 1.0))  # fmt: skip


@pytest.fixture
def two_models(constant_step: Callable[..., str]) -> Callable[..., Run]:
    def make(small: float, large: float, **policy: Any) -> Run:
        config = {
            "workload": {
                "arrivals": {"kind": "closed_loop", "concurrency": 2},
                "lengths": {"kind": "uniform", "prompt": [16, 600], "output": [40, 80]},
                "num_requests": 60,
            },
            "engine": {
                "num_gpu_blocks": 400,
                "max_model_len": 1024,
                "max_num_seqs": 16,
                "speculative_config": {
                    "method": "draft_models",
                    "models": ["small", "large"],
                    "num_speculative_tokens": 4,
                },
            },
            "policy": {"kind": "draft_selection", "num_probes": 8, **policy},
            "acceptance": {
                "kind": "per_drafter",
                "models": {
                    "small": {"kind": "bernoulli", "alpha": small},
                    "large": {"kind": "bernoulli", "alpha": large},
                },
            },
            "profile": constant_step(delta_ms=10, drafts={"small": FAST, "large": SLOW}),
        }
        return simulate(Experiment.parse(config, "two models"), check=True)

    return make


@pytest.mark.parametrize(("small", "large", "better"), [(0.3, 0.9, 1), (0.8, 0.82, 0)])
def test_requests_after_the_probes_get_the_faster_model(
    two_models: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    small: float,
    large: float,
    better: int,
) -> None:
    chosen: list[int] = []
    choose = DraftSelection.choose_drafter

    def spied(self: DraftSelection, *args: Any) -> int:
        chosen.append(choose(self, *args))
        return chosen[-1]

    monkeypatch.setattr(DraftSelection, "choose_drafter", spied)
    two_models(small, large)
    assert chosen[:16] == [0, 1] * 8
    # Three weights from eight short probes each: the odd extreme prompt is still misjudged.
    assert chosen[16:].count(better) >= 0.7 * len(chosen[16:])


def test_each_model_is_paid_for_by_its_own_requests(two_models: Callable[..., Run]) -> None:
    run = two_models(0.5, 0.9, num_probes=1000)  # in turn to the end
    tables = Summary(run).tables
    # Two requests at a time, one of each model: a step drafts with both, a pass per token.
    steps = tables.steps[tables.steps["prefill_tokens"] == 0]
    passes = np.round(steps["draft_time"] / 0.2e-3).astype(int)
    assert np.allclose(steps["draft_time"], passes * 0.2e-3)
    both = steps["num_requests"] == 2
    assert (steps["draft_time"][both] > 1.1e-3).any()
    rates = tables.requests["accepted_tokens"] / tables.requests["draft_tokens"]
    assert rates[1::2].mean() > rates[::2].mean() + 0.2


def test_one_drafter_and_several_do_not_mix(tiny: Callable[..., Experiment]) -> None:
    with pytest.raises(ConfigError, match="chooses between drafters, method 'eagle3' has one"):
        tiny(policy="draft_selection")
    engine = {
        "speculative_config": {
            "method": "draft_models",
            "models": ["a", "b"],
            "num_speculative_tokens": 3,
        }
    }
    with pytest.raises(ConfigError, match="drives one drafter, method 'draft_models' has 2"):
        tiny(policy="goodput", engine=engine)
    with pytest.raises(ProfileError, match="no drafting cost for draft model 'a'"):
        simulate(tiny(policy="draft_selection", engine=engine))


def test_a_burst_takes_the_models_in_turn_until_there_is_something_to_learn_from(
    two_models: Callable[..., Run],
) -> None:
    run = two_models(0.1, 0.9)
    arrivals = {"kind": "burst"}
    workload = {**run.experiment.workload.model_dump(mode="json"), "arrivals": arrivals}
    tables = Summary(simulate(run.experiment.replace(workload=workload))).tables
    rates = tables.requests["accepted_tokens"] / tables.requests["draft_tokens"]
    assert rates[::2].max() < 0.5 < rates[1::2].min()


@pytest.mark.slow
def test_a_shift_between_drafters_keeps_them_apart(two_models: Callable[..., Run]) -> None:
    run = two_models(0.1, 0.9, num_probes=1000)
    models = {
        name: {"kind": "bernoulli", "alpha": alpha}
        for name, alpha in (("small", 0.1), ("large", 0.9))
    }
    same = {"kind": "per_drafter", "models": models}
    shift = {"kind": "shift", "at_request": 30, "before": same, "after": same}
    shifted = simulate(run.experiment.replace(acceptance=shift))
    for tables in (Summary(run).tables, Summary(shifted).tables):
        rates = tables.requests["accepted_tokens"] / tables.requests["draft_tokens"]
        assert rates[1::2].mean() > rates[::2].mean() + 0.5


def test_every_draft_model_needs_an_acceptance_model(
    two_models: Callable[..., Run], constant_step: Callable[..., str]
) -> None:
    experiment = two_models(0.5, 0.5).experiment
    only_small = {"kind": "per_drafter", "models": {"small": {"kind": "bernoulli", "alpha": 0.5}}}
    with pytest.raises(ConfigError, match=r"acceptance.models has no 'large' \(it has: small\)"):
        simulate(experiment.replace(acceptance=only_small))


def test_theorem_2_as_printed_is_not_what_eq_3_to_5_say() -> None:
    rng = np.random.default_rng(0)
    k, agreed, num = np.arange(1, 9), 0, 4000
    for _ in range(num):
        (a1, a2), (alpha1, alpha2) = np.sort(rng.uniform(0.01, 0.5, 2)), np.sort(rng.random(2))
        rates, tokens, lens = [], [], []
        for a, alpha in ((a1, alpha1), (a2, alpha2)):
            emitted = (1 - alpha ** (k + 1)) / (1 - alpha)
            d = int((emitted / (k * a + 1.0)).argmax())
            tokens.append(emitted[d])
            lens.append(k[d])
            rates.append(
                emitted[d] / (k[d] * a + 1.0)
            )  # eq. 3 to 5: a token takes (d a + b) / d rho
        rho = np.array(tokens) / lens
        fewer, slower = 1 / tokens[0] - 1 / tokens[1], a2 - a1  # of n per token of the answer
        exact = fewer > a2 / rho[1] - a1 / rho[0]
        assert exact == (rates[1] > rates[0])
        printed = fewer > slower / (rho[1] - rho[0])
        agreed += bool(printed) == bool(exact)
    assert 0.6 < agreed / num < 0.8


PROBES = st.lists(st.tuples(st.integers(1, 4000), st.floats(0, 1)), min_size=3, max_size=30)


@settings(max_examples=100, deadline=None)
@given(probes=PROBES)
def test_weights_are_those_of_least_squares_in_whichever_order(
    probes: list[tuple[int, float]],
) -> None:
    lens, rates = zip(*probes, strict=True)
    weights = least_squares(lens, rates)
    features = np.stack([np.ones(len(lens)), np.array(lens) / 1000, np.log2(lens)], axis=1)
    solved = np.linalg.lstsq(features, np.array(rates), rcond=1e-9)[0]
    predicted = [weights.alpha(each) for each in lens]
    assert predicted == pytest.approx((features @ solved).tolist(), abs=1e-6)
    order = np.random.default_rng(len(probes)).permutation(len(probes)).tolist()
    assert least_squares([lens[at] for at in order], [rates[at] for at in order]) == weights


def test_weights_of_prompts_of_one_length_are_the_mean_and_of_two_a_line() -> None:
    assert least_squares([64, 64, 64], [0.5, 0.75, 0.25]) == (0.5, 0.0, 0.0)
    line = least_squares([500, 1500, 1500], [0.25, 0.75, 0.75])
    assert line == pytest.approx((0.0, 0.5, 0.0))
    assert line.alpha(1000) == pytest.approx(0.5)
