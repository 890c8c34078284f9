"""What every latency model promises, and what drafting costs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.core.resources import resource_names
from specsim.core.step import StepLoad
from specsim.hardware import load_model
from specsim.latency import LATENCY
from specsim.latency.measured import Linear
from specsim.profile import DraftCost, Overhead, StepCosts, load_profile
from specsim.profile.step_time import overhead_time

MODELS = [
    pytest.param(LATENCY.parse({"kind": name, **example}), id=name)
    for name, member in LATENCY.members.items()
    for example in member.examples
]
TOKENS = st.integers(0, 10**6)


@pytest.mark.parametrize("model", MODELS)
@given(context=TOKENS, batched=st.integers(1, 20_000), more=st.integers(0, 1000))
def test_times_are_positive_and_grow_with_the_load(
    model: Any, context: int, batched: int, more: int
) -> None:
    time = model.forward_time(StepLoad(context, batched))
    assert 0 < time < 1e4
    assert model.forward_time(StepLoad(context + more, batched)) >= time
    assert model.forward_time(StepLoad(context, batched + more)) >= time


def test_linear_is_the_formula() -> None:
    model = Linear(alpha_ns=10, gamma_us=20, delta_ms=5)
    assert model.forward_time(StepLoad(1000, 50)) == pytest.approx(1e-5 + 1e-3 + 5e-3)


LINEAR = Linear(alpha_ns=0, gamma_us=1000, delta_ms=1)  # 1 ms a token and 1 ms a pass


@pytest.mark.parametrize(
    ("draft_lens", "milliseconds"),
    [
        (0, 11),  # vLLM's catch-up pass over the 10 batched tokens
        (1, 11),
        (3, 11 + 2 * 5),  # two more passes over 4 sequences
        ([3, 1, 1, 0], 11 + 2 * 2),  # only one sequence drafts on
    ],
)
def test_draft_passes(draft_lens: int | list[int], milliseconds: float) -> None:
    cost = DraftCost(basis="pass", latency=LINEAR)
    time = cost.draft_time(StepLoad(100, 10, 4), draft_lens, 0.0)
    assert time == pytest.approx(milliseconds * 1e-3)


@pytest.mark.parametrize(("draft_len", "milliseconds"), [(0, 0), (1, 11), (5, 11)])
def test_whole_drafts_cost_the_same_whatever_their_length(
    draft_len: int, milliseconds: float
) -> None:
    cost = DraftCost(basis="draft", latency=LINEAR)
    assert cost.draft_time(StepLoad(100, 10, 4), draft_len, 0.0) == pytest.approx(
        milliseconds * 1e-3
    )


@pytest.mark.parametrize(("draft_len", "share"), [(0, 0.0), (3, 0.25)])
def test_host_time_is_a_share_of_the_target(draft_len: int, share: float) -> None:
    cost = DraftCost(target_share=0.25)
    assert cost.draft_time(StepLoad(100, 10, 4), draft_len, 2.0) == 2.0 * share


@pytest.mark.parametrize(
    ("draft_lens", "milliseconds"), [(0, 0), (1, 2 + 4 * 0.5), (3, 2 + 4 * 0.5), ([0, 3], 4)]
)
def test_host_time_of_a_step_that_drafts(draft_lens: int | list[int], milliseconds: float) -> None:
    cost = DraftCost(step_ms=2, request_us=500)
    time = cost.draft_time(StepLoad(100, 4, 4), draft_lens, 1.0)
    assert time == pytest.approx(milliseconds * 1e-3)


@pytest.mark.parametrize("name", resource_names("profiles", "*/*.yaml"))
def test_shipped_profiles_load_and_say_where_they_come_from(name: str) -> None:
    profile = load_profile(name)
    assert profile.provenance.source
    assert name.startswith(f"{profile.gpu}/{profile.model}")
    assert (profile.tensor_parallel_size > 1) == (f"-tp{profile.tensor_parallel_size}" in name)


def test_first_profile_holds_the_published_fit() -> None:
    profile = load_profile("h100/llama-3.1-8b")
    load = StepLoad(10_000, 100, 20)
    target = 10_000 * 39.26e-9 + 100 * 21.01e-6 + 5.886e-3
    assert profile.target.forward_time(load) == pytest.approx(target, rel=1e-3)
    eagle = profile.drafts["eagle3"].draft_time(load, 5, target)
    assert eagle == pytest.approx(10_000 * 2.378e-9 + 100 * 0.841e-6 + 2.135e-3, rel=1e-3)
    assert profile.drafts["ngram"].draft_time(load, 5, target) == pytest.approx(0.005875 * target)
    assert overhead_time(profile.overhead.numbers, 20) == pytest.approx(1.207e-3, rel=1e-3)


def test_batch_expansion_reads_the_context_once_per_batched_token() -> None:
    model = Linear(alpha_ns=1000, gamma_us=1000, delta_ms=1)
    costs = StepCosts(model, (), Overhead(), expands_batch=True)
    load = StepLoad(400, 12, 4)  # 4 sequences of 100 tokens, k = 2
    once = StepCosts(model, (), Overhead())
    assert costs.step_time(load, 2) == pytest.approx(once.step_time(StepLoad(1200, 12, 4), 2))
    batched = np.array([4, 12])
    singly = [costs.step_time(load._replace(batched_tokens=int(each)), 2) for each in batched]
    assert costs.step_times(load, batched, 2) == pytest.approx(singly)


def test_opt_13b_has_as_many_weights_as_its_name_says() -> None:
    assert load_model("opt-13b").num_parameters == pytest.approx(12.85e9, rel=1e-3)
