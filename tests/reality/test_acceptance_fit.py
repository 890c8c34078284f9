"""Fitting acceptance models: by hand, on data made by the models themselves, and on real data."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import ROOT, data_folder, needs
from scipy.stats import ks_2samp

from specsim.acceptance import ACCEPTANCE
from specsim.acceptance.bernoulli import Bernoulli
from specsim.acceptance.nested import load_preset, preset_names
from specsim.core.errors import ConfigError, TraceError
from specsim.core.request import Request
from specsim.core.rng import Luck
from specsim.reality.acceptance_fit import (
    FITS,
    Decoded,
    Distances,
    Records,
    Twin,
    decode,
    fits,
    load_records,
    split_halves,
)
from specsim.reality.acceptance_fit.fits import discrepancy, kolmogorov_smirnov

DATA = data_folder() / "tokens"
DATASETS = ("cnn", "gsm8k", "instructcoder", "sharegpt")


def test_replay_by_hand() -> None:
    # Steps of the first request at 1 (accepts 2), 4 (0), 5 (limit 3); of the second at 1 and 2,
    # where one token is left, of which nothing says that a second one would have been rejected.
    done = decode([bytes([9, 2, 9, 9, 0, 7, 9, 9]), bytes([9, 0, 1])], 3)
    assert done.accepted_lens.tolist() == [2, 0, 3, 0, 1]
    assert done.num_steps.tolist() == [3, 2]
    assert done.tokens_per_step.tolist() == [7 / 3, 1.0]
    assert done.steps_per_token == 5 / 9
    assert done.conditional_rates.tolist() == [3 / 5, 2 / 2, 1 / 2]
    accepted, rejected = done.counts()
    assert accepted.tolist() == [[2, 2, 1], [1, 0, 0]]
    assert rejected.tolist() == [[1, 0, 1], [1, 0, 0]]


def test_windows_stay_within_a_request() -> None:
    done = decode([bytes([0] * 10), bytes([0] * 9), bytes([0] * 8)], 2)
    assert len(done.window_sums) == 2 + 1 + 0
    sums = decode([bytes([0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 2, 0, 0])], 2).window_sums
    assert sums.tolist() == [3, 4]


@pytest.mark.parametrize("size", [1, 30, 400])
def test_kolmogorov_smirnov_is_that_of_scipy(size: int) -> None:
    rng = np.random.default_rng(size)
    first, second = rng.integers(0, 6, size), rng.integers(1, 7, 50)
    assert kolmogorov_smirnov(first, second) == pytest.approx(ks_2samp(first, second).statistic)
    assert kolmogorov_smirnov(first, second[:0]) == 1.0


def made_by(model: dict[str, Any], count: int = 300, output_len: int = 200) -> Decoded:
    requests = [Request(index=i, prompt_len=1, output_len=output_len) for i in range(count)]
    return decode(ACCEPTANCE.parse(model).survival_lens(requests, Luck(3, 4), 4), 4)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "POSITIONS", 1)  # the requests of the data, once
    monkeypatch.setattr(fits, "MAX_TRIALS", 120)


@pytest.mark.parametrize(
    ("model", "tolerance"),
    [
        ({"kind": "bernoulli", "alpha": 0.7}, 0.01),
        ({"kind": "per_position", "conditional_rates": [0.8, 0.6, 0.5, 0.3]}, 0.02),
        ({"kind": "beta", "a": 6.0, "b": 3.0}, 0.15),
        ({"kind": "beta_position", "a": 6.0, "b": 2.0, "factors": [0.9, 0.7, 0.7, 0.6]}, 0.25),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_likelihood_recovers_the_parameters(model: dict[str, Any], tolerance: float) -> None:
    fitted = FITS[model["kind"]](made_by(model)).model_dump(exclude_none=True)
    for name in model.keys() - {"kind"}:
        assert fitted[name] == pytest.approx(model[name], rel=tolerance)


def test_what_the_end_of_an_output_cuts_off_counts_as_neither_accepted_nor_rejected() -> None:
    """Of answers of eight tokens, in one step out of three; their records end with them."""
    requests = [Request(index=i, prompt_len=1, output_len=8) for i in range(3000)]
    made = ACCEPTANCE.parse({"kind": "bernoulli", "alpha": 0.7}).survival_lens(
        requests, Luck(3, 4), 5
    )
    recorded = [bytes(min(n, 8 - place) for place, n in enumerate(each)) for each in made]
    assert FITS["bernoulli"](decode(recorded, 5)).model_dump()["alpha"] == pytest.approx(
        0.7, abs=0.01
    )
    assert decode(recorded, 5).conditional_rates == pytest.approx(0.7, abs=0.03)


@pytest.mark.slow
def test_simulation_recovers_two_regimes(quick: None) -> None:
    regimes = [{"weight": 0.7, "alpha": 0.2}, {"weight": 0.3, "alpha": 0.9}]
    data = made_by({"kind": "markov", "regimes": regimes, "regime_len": 12.0})
    fitted = FITS["markov"](data).model_dump()
    alphas = [regime["alpha"] for regime in fitted["regimes"]]
    assert alphas == pytest.approx([0.2, 0.9], abs=0.08)
    assert fitted["regimes"][1]["weight"] == pytest.approx(0.3, abs=0.06)
    assert fitted["regime_len"] == pytest.approx(12.0, rel=0.35)


@pytest.mark.slow
def test_simulation_recovers_the_layers(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "MAX_TRIALS", 60)
    model = {
        "kind": "layered",
        "rates": (0.7, 0.6, 0.5, 0.5),
        "request_spread": 0.6,
        "regimes": [{"spread": 1.0, "mean_len": 10.0}],
        "drift": 0.2,
    }
    data = made_by(model)
    fitted = FITS["layered"](data)
    found = fitted.model_dump()
    assert found["rates"] == pytest.approx(model["rates"], abs=0.06)
    assert found["request_spread"] == pytest.approx(0.6, abs=0.2)
    spreads = [regime["spread"] for regime in found["regimes"]]
    assert np.linalg.norm(spreads) == pytest.approx(1.0, abs=0.3)
    assert found["drift"] == pytest.approx(0.2, abs=0.1)
    again = Distances.between(Twin(data, 200_000, "test").decode(fitted), data)
    assert max(again.per_step, again.per_window, abs(again.steps_error)) < 0.05
    assert again.per_request < 0.1


@pytest.mark.parametrize("kind", ["markov", "layered"])
def test_the_loss_of_a_simulation_forgets_what_was_tried_before(
    quick: None, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    data = made_by({"kind": "beta", "a": 3.0, "b": 2.0}, count=60)
    losses = []

    def instead_of_a_search(
        loss: Callable[[Any], float], starts: list[tuple[float, ...]], steps: tuple[float, ...]
    ) -> Any:
        one, other = (np.array(start) for start in starts)
        losses.extend(map(loss, (one, other, other + steps, one, other, one)))
        return one

    monkeypatch.setattr(fits, "closest", instead_of_a_search)
    fitted = FITS[kind](data)
    assert losses[0] == losses[3] == losses[5] != losses[1] == losses[4]
    found = Twin(data, 1, "fit").decode(fitted)
    assert discrepancy(found, data) == losses[0]  # of the very model that is returned


def test_halves_share_nothing_and_depend_on_the_seed_alone() -> None:
    records = Records(Path("made"), "eagle", 1500, [bytes([0, n]) for n in range(31)], 0, 0)
    first, second = split_halves(records, 5)
    assert (len(first), len(second)) == (16, 15)
    assert sorted(first + second) == records.tables
    assert split_halves(records, 5) == (first, second) != split_halves(records, 6)


def test_a_preset_is_its_model() -> None:
    preset = ACCEPTANCE.parse("preset:name=llama-3.1-8b/eagle/gsm8k")
    requests = [Request(index=i, prompt_len=1, output_len=50) for i in range(3)]
    model = load_preset("llama-3.1-8b/eagle/gsm8k").acceptance
    luck = Luck(0, 1)
    assert preset.survival_lens(requests, luck, 7) == model.survival_lens(requests, luck, 7)
    assert preset.model_dump(exclude_defaults=True) == {"name": "llama-3.1-8b/eagle/gsm8k"}


@pytest.fixture
def own_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Write a changed copy of a shipped preset to the working directory; return its name."""
    monkeypatch.chdir(tmp_path)
    shipped = ROOT / "profiles" / "acceptance" / "llama-3.1-8b" / "eagle" / "gsm8k.yaml"

    def write(**changes: Any) -> str:
        path = tmp_path / "profiles" / "acceptance" / "mine.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {**yaml.safe_load(shipped.read_text()), **changes}
        path.write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not None}))
        return "mine"

    return write


def test_an_own_preset_needs_no_installation(own_preset: Callable[..., str]) -> None:
    name = own_preset(acceptance={"kind": "bernoulli", "alpha": 0.25})
    assert load_preset(name).acceptance == Bernoulli(alpha=0.25)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"acceptance": {"kind": "bernoulli", "alpha": 2}}, r"mine.yaml: acceptance.alpha = 2"),
        ({"acceptance": {"kind": "beto"}}, r"mine.yaml: acceptance: no kind 'beto'.*beta"),
        ({"acceptance": "preset:name=llama-3.1-8b/eagle/gsm8k"}, "must hold a model itself"),
        ({"provenance": None}, "mine.yaml: 'provenance' is missing"),
        ({"surplus": 1}, "mine.yaml: unknown field 'surplus'"),
    ],
)
def test_a_bad_preset_is_a_clear_error(
    own_preset: Callable[..., str], changes: dict[str, Any], message: str
) -> None:
    name = own_preset(**changes)
    with pytest.raises(ConfigError, match=message):
        load_preset(name)


@pytest.mark.parametrize("name", [n for n in preset_names() if load_preset(n).accepted_lens])
def test_presets_of_accepted_lengths_have_these(name: str) -> None:
    preset = load_preset(name)
    assert preset.accepted_lens is not None
    rates = preset.acceptance.position_rates(len(preset.accepted_lens))
    assert rates is not None
    lens = 1 + np.cumsum(np.cumprod(rates))
    # DSpark makes all drafts at once: those of 8 tokens are worse from the first on.
    limit = 0.19 if "dspark" in name else 0.13
    assert np.abs(lens - preset.accepted_lens).max() < limit


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'llama-3.1-8b/eagle/gsm8k'"):
        load_preset("llama-3.1-8b/eagle/gsm8")


def held_out(proposer: str, dataset: str) -> tuple[Distances, Distances]:
    """Measure a shipped preset anew: what its file says of the held-out half, and what is true."""
    records = load_records(DATA / f"llama31_8b_{dataset}.jsonl.gz", proposer, 1500)
    said = load_preset(f"llama-3.1-8b/{proposer}/{dataset}").validation
    assert said is not None
    _, half = split_halves(records, said.split_seed)
    data = decode(half, 5)
    assert len(half) == said.num_held_out
    model = Twin(data, 1_000_000, "measure").decode(said.acceptance)
    return Distances(**said.held_out), Distances.between(model, data)


@pytest.mark.slow
@needs(DATA / "llama31_8b_gsm8k.jsonl.gz")
@pytest.mark.parametrize(
    ("proposer", "targets"),
    [
        ("eagle", Distances(0.011, 0.096, 0.027, 0.02)),
        ("ngram", Distances(0.016, 0.091, 0.035, 0.077)),
    ],
)
def test_shipped_presets_fit_the_half_that_they_were_not_fitted_to(
    proposer: str, targets: Distances
) -> None:
    # The halves themselves are 0.11 apart per request (75 requests each), 0.012 per step, and those
    # of n-gram on instructcoder 9 % in total steps: no fit can be relied on to come much closer.
    # The aims were 0.014, 0.084 and 0.047 for EAGLE, 0.010, 0.089 and 0.068 for n-gram, and 5 % in
    # total steps. Measured, and thus allowed, beyond them: both per request, n-gram's per step
    # (0.038 on instructcoder) and its steps there, 7.6 % too few.
    pairs = [held_out(proposer, dataset) for dataset in DATASETS]
    for said, found in pairs:
        assert asdict(found) == pytest.approx(asdict(said), abs=2e-4)
    found = [each for _, each in pairs]
    assert np.mean([each.per_step for each in found]) <= targets.per_step
    assert np.mean([each.per_request for each in found]) <= targets.per_request
    assert np.mean([each.per_window for each in found]) <= targets.per_window
    assert max(abs(each.steps_error) for each in found) <= targets.steps_error


def test_counts_per_position_are_told_where_they_belong(tmp_path: Path) -> None:
    """Whoever has counts has no lengths, and is not to make up any."""
    path = tmp_path / "counts.csv"
    path.write_text("position,drafted,accepted\n1,100,80\n2,80,50\n")
    with pytest.raises(TraceError, match=r"accepted_lens_mine.*kind: per_position") as error:
        load_records(path, "mine", 1500)
    assert "no known format has these columns: position, drafted, accepted" in str(error.value)
