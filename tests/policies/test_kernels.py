"""Inner loops of policies: the same with and without a compiler, and as slow ways say."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specsim.core.compiled import as_records
from specsim.core.step import StepLoad
from specsim.decisions.policy import pricing_of
from specsim.policies import ServerView, quick_step_times
from specsim.policies.parts.spending import Spending, best_budget, spending_desk, take_largest
from specsim.policies.parts.times import StepTimes
from specsim.profile import StepCosts, load_profile
from specsim.profile.step_time import put_len, put_load
from specsim.run.experiment import Experiment
from specsim.run.simulate import simulate
from specsim.run.summary import Summary

USERS = [
    "goodput_exact",
    "slo_aware:tpot_ms=8",
    "draft_goodput",
    "adaptive_verification",
    "window_opt",
    "spec_serve",
    "turbospec",
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


def desk_of(values: np.ndarray, server: ServerView) -> Spending:
    """Return gains of 40 sequences on a desk."""
    desk: Spending = as_records(spending_desk(pricing_of(server)).fit(len(values)))
    desk.gains[: len(values)] = values
    desk.sizes[:3] = len(values), len(values) + 1, 40
    return desk


def server_of(step_costs: StepCosts, *, is_quick: bool) -> ServerView:
    """Return a server of which loops know what steps take, or have to ask."""
    times = quick_step_times(step_costs) if is_quick else step_costs.step_times
    plain = replace(step_costs, drafts=())
    return ServerView(
        8, step_costs.step_time, times, plain_time=lambda load: plain.step_time(load, 0)
    )


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
        for is_quick in (False, True):
            desk = desk_of(values, server_of(step_costs, is_quick=is_quick))
            put_load(desk.pricing, context, 40, 40, 0)
            put_len(desk.pricing, 8)
            desk.found[0] = 40.0
            assert best_budget(desk) == best
            assert desk.found[0] == pytest.approx(rates[best], rel=1e-12)  # times on a line
            assert not best or desk.found[1] == falling[best - 1]


@pytest.mark.parametrize("budget", [0, 1, 7, 40, 100, 320])
@pytest.mark.parametrize("kind", ["spread", "alike", "ones"])
def test_the_largest_go_first_and_of_equals_the_earlier(kind: str, budget: int) -> None:
    values = gains(kind, np.random.default_rng(2))
    chosen = np.argsort(-values, kind="stable")[:budget]
    desk = desk_of(values, server_of(costs(*COSTS[0]), is_quick=True))
    take_largest(desk, budget)
    assert np.array_equal(desk.counts[:40], np.bincount(chosen % 40, minlength=40))


def synchronous(
    policy: str,
    tiny: Callable[..., Experiment],
    room: Mapping[str, int] | None = None,
    **changes: Any,
) -> Experiment:
    """Return an experiment in which a policy sees all that it can."""
    experiment = tiny(policy=policy, **changes)
    changed = experiment.engine.model_copy(update={"async_scheduling": False, **(room or {})})
    return experiment.replace(engine=changed)


@pytest.mark.parametrize("policy", USERS)
def test_decisions_are_the_same_without_a_compiler(
    policy: str, tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = synchronous(policy, tiny)
    compiled = Summary(simulate(experiment)).tables
    monkeypatch.setattr("specsim.core.compiled.address_of", lambda loop: None)
    plain = Summary(simulate(experiment)).tables
    assert plain.steps.tobytes() == compiled.steps.tobytes()
    assert plain.requests.tobytes() == compiled.requests.tobytes()


@pytest.mark.parametrize("policy", [*USERS, "goodput", "joint", "bayes"])
def test_decisions_are_the_same_where_loops_ask_python_what_steps_take(
    policy: str, tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = {"kind": "uniform", "prompt": [1, 20], "output": [1, 40]}
    crowd = {"arrivals": {"kind": "burst"}, "lengths": lengths, "num_requests": 90}
    room = {"max_num_seqs": 90, "num_gpu_blocks": 2000}
    experiment = synchronous(policy, tiny, room, workload=crowd)
    known = Summary(simulate(experiment)).tables
    compiled = StepCosts.compiled
    monkeypatch.setattr(
        StepCosts, "compiled", lambda self: replace(compiled(self), target=None, drafts=False)
    )
    asked = Summary(simulate(experiment)).tables
    assert asked.steps.tobytes() == known.steps.tobytes()
    assert asked.requests.tobytes() == known.requests.tobytes()


def test_the_policies_are_there_without_a_compiler_or_scipy() -> None:
    script = (
        "import sys, specsim.policies as p; [p.POLICIES.parse(n) for n in ('off', 'goodput')];"
        "p.POLICIES.members; print({'numba', 'scipy'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert found.stdout.split() == [b"set()"]
