"""What a policy makes of drafts that a lookup has just found, and what it has learnt of them."""

from typing import Any

import numpy as np
import pytest
from driving import batch, drafts_of, outcome, started, sure_drafts

from specsim.core.step import StepLoad
from specsim.policies import POLICIES
from specsim.policies.hybrid_suffix import HybridSuffix


def linear(*, token: float, draft_token: float) -> Any:
    """A step of 1 s, and so much per token verified and drafted."""

    def step_time(load: StepLoad, lens: int | list[int]) -> float:
        drafted = lens * load.num_requests if isinstance(lens, int) else sum(lens)
        return 1.0 + token * load.batched_tokens + draft_token * drafted

    return step_time


@pytest.mark.parametrize(("draft_token", "drafted"), [(0.0, [3, 1]), (0.3, [3, 0]), (5.0, [0, 0])])
def test_a_lookup_stops_where_another_token_does_not_pay(
    draft_token: float, drafted: list[int]
) -> None:
    costs = linear(token=0.01, draft_token=draft_token)
    policy, memory = started("draft_goodput:calibrate=false", 8, costs, drafts_by_model=False)
    found = sure_drafts([0.9, 0.95, 0.9, 0.01], [0.3])
    assert policy.draft_lens(batch(0, 1, found=found), memory) == drafted


def test_a_model_drafts_at_full_length() -> None:
    policy, memory = started("draft_goodput", 8, linear(token=0.01, draft_token=0.0))
    assert policy.draft_lens(batch(0, 1), memory) == [8, 8]


def test_nothing_found_is_nothing_drafted() -> None:
    policy, memory = started("draft_goodput", 8, linear(token=0.01, draft_token=0.0))
    nothing = drafts_of([0, 0], np.zeros((2, 0), dtype=np.float32))
    assert policy.draft_lens(batch(0, 1, found=nothing), memory) == [0, 0]


def test_the_next_drafts_are_as_long_as_these_not_as_the_longest() -> None:
    # One long draft among nine short ones: drafting takes 20 + 9 tokens, not 200, so the step is
    # short and a token of 10 % does not pay.
    costs = linear(token=0.05, draft_token=0.05)
    policy, memory = started("draft_goodput:calibrate=false", 20, costs)
    confidences = np.zeros((10, 20), dtype=np.float32)
    confidences[:, 0] = 0.9
    confidences[0] = [0.95] * 20
    confidences[1:, 1] = 0.2
    view = drafts_of([20] + [2] * 9, confidences)
    full = batch(*range(10))
    full.load = full.load._replace(batched_tokens=10 + 38)
    # (10 + 38 tokens cost 2.4 s, the drafts 1.9 s) against 10 s for ten drafts of 20
    assert policy.verify_lens(full, view, memory)[1:] == [1] * 9


def test_equal_probabilities_are_told_apart_by_the_length_of_the_draft() -> None:
    costs = linear(token=0.25, draft_token=0.0)
    policy, memory = started("draft_goodput", 8, costs, drafts_by_model=False)
    short, long = [0.5], [0.5, *[1.0] * 7]
    for _ in range(200):  # short ones never hold, long ones always do
        seen = batch(0, 1, found=sure_drafts(short, long))
        policy.draft_lens(seen, memory)
        policy.observe(outcome([1, 8], [0, 8]), memory)
    assert policy.draft_lens(batch(0, 1, found=sure_drafts(short, long)), memory) == [0, 8]
    untaught, memory = started("draft_goodput:calibrate=false", 8, costs, drafts_by_model=False)
    [first, _] = untaught.draft_lens(batch(0, 1, found=sure_drafts(short, long)), memory)
    assert first == 1


def test_what_was_verified_of_a_draft_counts_by_its_full_length() -> None:
    costs = linear(token=0.25, draft_token=0.0)
    policy, memory = started("draft_goodput", 8, costs, drafts_by_model=False)
    found = sure_drafts([0.5, *[1.0] * 7])
    policy.draft_lens(batch(0, found=found), memory)
    noted = memory.desk.arrays.calibrating.bins[0].copy()
    cut = drafts_of([2], found.confidences[:, :2])
    view = batch(0)
    view.load = view.load._replace(batched_tokens=3)
    policy.verify_lens(view, cut, memory)
    np.testing.assert_array_equal(memory.desk.arrays.calibrating.bins[0], noted)


def test_without_a_tau_the_hybrid_takes_the_tokens_per_step_of_its_fallback() -> None:
    policy = POLICIES.parse("hybrid_suffix")
    assert isinstance(policy, HybridSuffix)
    memory = policy.new_memory(3)
    for _ in range(2000):
        memory.add(2)
    assert policy.uses_lookup(np.array([2.9, 3.1]), memory).tolist() == [False, True]
