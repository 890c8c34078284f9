"""Confidences mean what they say in whole runs, whatever the policy makes of them."""

import csv
from typing import Any

import pytest
from conftest import ROOT, load_script
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from specsim.acceptance.nested import load_preset, preset_names
from specsim.run.experiment import Experiment

FOLDER = ROOT / "experiments" / "confidence-reliability"
run = load_script(FOLDER / "run.py")
SHARE = st.floats(0.05, 0.95)
PLACES = st.lists(SHARE, min_size=1, max_size=4)
REGIME = st.fixed_dictionaries({"weight": st.floats(0.2, 2.0), "alpha": SHARE})
LAYER = st.fixed_dictionaries({"spread": st.floats(0.0, 1.5), "mean_len": st.floats(1.0, 60.0)})
ALPHA = st.floats(0.5, 8.0)
MODELS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "bernoulli": {"alpha": SHARE},
    "beta": {"a": ALPHA, "b": ALPHA},
    "beta_position": {"a": ALPHA, "b": ALPHA, "factors": PLACES},
    "per_position": {"conditional_rates": PLACES},
    "markov": {
        "regimes": st.lists(REGIME, min_size=1, max_size=3),
        "regime_len": st.floats(1.0, 50.0),
    },
    "layered": {
        "rates": PLACES,
        "request_spread": st.floats(0.0, 1.0),
        "regimes": st.lists(LAYER, max_size=2),
        "drift": st.floats(-0.3, 0.3),
    },
    "preset": {"name": st.sampled_from(preset_names())},
}


def models() -> st.SearchStrategy[dict[str, Any]]:
    concentration = st.sampled_from([0.2, 1.0, 5.0])
    kinds = [
        st.fixed_dictionaries(
            {"kind": st.just(kind), "confidence_concentration": concentration, **fields}
        )
        for kind, fields in MODELS.items()
    ]
    return st.one_of(kinds)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["static:k=4", "goodput", "joint"])
@settings(max_examples=12)
@given(models(), st.sampled_from(["eagle3", "draft_model", "suffix"]), st.integers(0, 99))
def test_as_many_are_accepted_as_is_stated(
    policy: str, acceptance: dict[str, Any], method: str, seed: int
) -> None:
    base = Experiment.load(FOLDER / "experiment.yaml")
    workload = {**base.workload.model_dump(), "num_requests": 100}
    experiment = run.changed(base, method, acceptance=acceptance, workload=workload, seed=seed)
    told = run.told_in(experiment, policy)
    assert len(told.stated) > 0
    for _, num, stated, accepted in told.bins():
        # Few tokens that are nearly sure are no normal distribution.
        found = round(accepted * num)
        assert binom.cdf(found, num, max(stated - 0.01, 0.0)) > 5e-6
        assert binom.sf(found - 1, num, min(stated + 0.01, 1.0)) > 5e-6


def test_what_is_kept_is_calibrated_for_every_preset_and_drafter() -> None:
    kept = list(csv.DictReader((FOLDER / "results.csv").read_text().splitlines()))
    fitted = {name for name in preset_names() if load_preset(name).validation is not None}
    assert {row["acceptance"] for row in kept} >= fitted
    for row in kept:
        # What was recorded has no model: chances are counted.
        limit = 0.03 if row["acceptance"].startswith("recorded") else 0.01
        gap, error = abs(float(row["worst_gap"])), float(row["two_errors"])
        assert not gap > limit + error, row  # nan: too few tokens
