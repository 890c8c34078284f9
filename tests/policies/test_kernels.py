"""Inner loops of policies: the same with and without a compiler, and as slow ways say."""

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from specsim.core.step import StepLoad
from specsim.policies import quick_step_times
from specsim.policies.parts.budget import best_spending, largest
from specsim.policies.parts.times import StepTimes
from specsim.profile import StepCosts, load_profile
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

USERS = [
    "goodput_exact",
    "slo_aware:tpot_ms=8",
    "draft_goodput",
    "adaptive_verification",
    "window_opt",
    "q_learning",
    "confidence",
]


def gains(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Gains of 40 sequences, the first token of every sequence first."""
    if kind == "alike":
        return np.full(320, 0.3)
    rates = rng.random(40) * (0.01 if kind == "tiny" else 1.0)
    powers = np.cumprod(np.tile(rates, (8, 1)), axis=0)
    if kind == "spent":
        powers[:2, ::3] = -1.0
        powers[:, 5] = 0.0
    if kind == "ones":
        powers[:, ::2] = 1.0
    if kind == "close":
        powers = 0.5 + 1e-6 * rng.random((8, 40))
    return powers.ravel()


def costs(profile: str, method: str | None) -> StepCosts:
    loaded = load_profile(profile)
    return StepCosts(loaded.target, (loaded.drafts[method],) if method else (), loaded.overhead)


COSTS = [
    ("h100/llama-3.1-8b", "eagle3"),
    ("h100/llama-3.1-8b", "ngram"),
    ("h100/llama-3.1-8b", "suffix"),
    ("h100/llama-3.1-8b", None),
    ("a100/llama-7b", "draft_model"),
    ("a100/llama-7b", "medusa"),
    ("h100/llama-3.1-8b-kernels", "draft_model"),
]


@pytest.mark.parametrize(("profile", "method"), COSTS)
def test_step_times_are_those_of_the_costs_to_the_bit(profile: str, method: str | None) -> None:
    step_costs, tokens = costs(profile, method), np.arange(40, 400)
    quick = quick_step_times(step_costs)
    assert isinstance(quick, StepTimes)
    for load in (StepLoad(9001, 40, 40), StepLoad(9001, 700, 40, 660)):
        for drafts in (0, 1, 5, np.arange(40) % 4, np.zeros(40, dtype=np.int64), [3] * 40):
            assert np.array_equal(
                quick(load, tokens, drafts), step_costs.step_times(load, tokens, drafts)
            )
            assert quick.of_one(load, drafts) == step_costs.step_time(load, drafts)


@pytest.mark.parametrize(("profile", "method"), COSTS)
@pytest.mark.parametrize("kind", ["spread", "tiny", "alike", "spent", "ones", "close"])
def test_the_best_budget_is_that_of_all_sums(kind: str, profile: str, method: str | None) -> None:
    values, step_costs = gains(kind, np.random.default_rng(1)), costs(profile, method)
    for context in (400, 40_000, 4_000_000):
        load = StepLoad(context, 40, 40)
        times = step_costs.step_times(load, np.arange(40, 40 + len(values) + 1), 8)
        falling = np.sort(values)[::-1]
        rates = (np.cumsum([0.0, *falling]) + 40.0) / times
        best = int(rates.argmax())
        for step_times in (step_costs.step_times, quick_step_times(step_costs)):
            found = best_spending(values, step_times, load, 8, 40.0, len(values))
            assert found[0] == best
            assert found[1] == pytest.approx(rates[best], rel=1e-12)  # times on a line
            assert not best or found[2] == falling[best - 1]


@pytest.mark.parametrize("budget", [0, 1, 7, 40, 100, 320])
@pytest.mark.parametrize("kind", ["spread", "alike", "ones"])
def test_the_largest_go_first_and_of_equals_the_earlier(kind: str, budget: int) -> None:
    values = gains(kind, np.random.default_rng(2))
    chosen = np.argsort(-values, kind="stable")[:budget]
    assert np.array_equal(largest(values, budget, 40), np.bincount(chosen % 40, minlength=40))


@pytest.mark.parametrize("policy", USERS)
def test_decisions_are_the_same_without_a_compiler(
    policy: str, tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(policy=policy)
    engine = experiment.engine.model_copy(update={"async_scheduling": False})
    experiment = experiment.replace(engine=engine)
    compiled = Summary(simulate(experiment)).tables
    monkeypatch.setattr("specsim.core.compiled.address_of", lambda loop: None)
    plain = Summary(simulate(experiment)).tables
    assert plain.steps.tobytes() == compiled.steps.tobytes()
    assert plain.requests.tobytes() == compiled.requests.tobytes()


def test_the_policies_are_there_without_a_compiler_or_scipy() -> None:
    script = (
        "import sys, specsim.policies as p; [p.POLICIES.parse(n) for n in ('off', 'goodput')];"
        "p.POLICIES.members; print({'numba', 'scipy'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert found.stdout.split() == [b"set()"]
