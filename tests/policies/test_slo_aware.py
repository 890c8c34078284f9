"""Verification for those who are late, whatever the load says; goodput for the rest."""

from collections.abc import Callable
from typing import Any

import pytest
from driving import batch, outcome, started
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.core.step import StepLoad
from specsim.run.simulate import Run

Serve = Callable[..., Run]
Steps = Callable[..., list[Any]]


def loaded(load: StepLoad, lens: Any) -> float:
    """A step of 1 s, and far more for every draft."""
    return 1.0 + 1000.0 * (load.batched_tokens - load.num_requests)


@pytest.mark.parametrize(
    ("tpot", "k"),
    [
        (1.0, 0),  # 2 s after the first token it may want 2 more, and has had 1
        (0.8, 1),  # 2.5: 1.5 in this step, 1 + 0.7 are expected of one draft
        (0.7, 2),  # 2.86: 1.7 are not enough, 2.19 are
        (0.1, 3),  # hopeless: as many as there are
    ],
)
def test_a_late_request_gets_the_shortest_draft_that_brings_it_back(tpot: float, k: int) -> None:
    policy, memory = started("slo_aware", 3, loaded, tpot_slo=tpot)
    assert policy.draft_lens(batch((0, 5, 0), now=0.0, chunks=(0,)), memory) == [0]
    # Its first token comes at the end of a step scheduled at 3 s, so at 4 s; the next view is of
    # a step that ends at 5 s, and its drafts are verified by 6 s.
    policy.draft_lens(batch((0, 5, 1), now=3.0), memory)
    assert policy.draft_lens(batch((0, 5, 2), now=4.0), memory) == [k]
    exact, exact_memory = started("goodput_exact", 3, loaded)
    assert exact.draft_lens(batch((0, 5, 2), now=4.0), exact_memory) == [0]


@settings(max_examples=60, deadline=None)
@given(
    rates=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), min_size=1, max_size=6),
    tpot=st.floats(0.2, 3.0),
    longest=st.integers(1, 7),
)
def test_tokens_are_added_until_as_many_are_expected_as_authors_code_needs(
    rates: list[tuple[int, int]], tpot: float, longest: int
) -> None:
    # AdaServe's `add_tokens_toward_slo` (request_manager.cc): from the likeliest token on, until 1
    # and their products of probabilities are (decode time + step) / TPOT less what is decoded.
    def steep(load: StepLoad, lens: Any) -> float:  # no token more ever pays
        return float(10.0 ** (load.batched_tokens - load.num_requests))

    policy, memory = started("slo_aware", longest, steep, tpot_slo=tpot)
    requests = range(len(rates))
    policy.draft_lens(batch(*((i, 5, 1) for i in requests), now=0.0), memory)
    for _ in range(3):
        lens, accepted = [4] * len(rates), [accepted for accepted, _ in rates]
        policy.observe(outcome(lens, accepted), memory)
    now = 9.0
    view = batch(*((i, 5, 1 + decoded) for i, (_, decoded) in enumerate(rates)), now=now)
    accepted, trials = memory.desk.arrays.its.fading.counts[: len(rates)].T
    totals = memory.desk.arrays.its.fading.totals
    alpha = (totals[0] + 5.0 * 0.7) / (totals[1] + 5.0)
    probabilities = ((accepted + 20.0 * alpha) / (trials + 20.0)).tolist()
    expected = []
    for (_, decoded), probability in zip(rates, probabilities, strict=True):
        needed, added, product, length = (now + 1.0) / tpot - decoded, 1.0, 1.0, 0
        while length < longest and added < needed - 1e-9:
            product *= probability
            added, length = added + product, length + 1
        expected.append(length)
    assert policy.draft_lens(view, memory) == expected


def test_nobody_is_late_with_the_first_token() -> None:
    policy, memory = started("slo_aware", 3, loaded, tpot_slo=1.0)
    assert policy.draft_lens(batch((0, 5, 1), (1, 5, 1), now=9.0), memory) == [0, 0]


def test_only_the_late_are_served_under_load() -> None:
    policy, memory = started("slo_aware", 3, loaded, tpot_slo=0.8)
    policy.draft_lens(batch((0, 5, 1), (1, 5, 1), now=0.0), memory)
    lens = policy.draft_lens(batch((1, 5, 9), (0, 5, 2), (2, 5, 1), now=1.0), memory)
    assert lens[0] == lens[2] * 0 == 0
    assert lens[1] == 1


def test_on_time_it_is_the_exact_optimum() -> None:
    def step_time(load: StepLoad, lens: Any) -> float:
        return 1.0 + 0.1 * load.batched_tokens + 0.05 * lens

    policy, memory = started("slo_aware:tpot_ms=1e9", 4, step_time)
    exact, exact_memory = started("goodput_exact", 4, step_time)
    for step in range(30):
        view = batch(*((i, 5, 1 + step) for i in range(5)), now=float(step), chunks=(3,))
        lens = policy.draft_lens(view, memory)
        assert lens == exact.draft_lens(view, exact_memory)
        result = outcome(lens, [k * (i % 2) for i, k in enumerate(lens)])
        policy.observe(result, memory)
        exact.observe(result, exact_memory)
    assert len(set(lens)) > 1


def test_limits_come_from_the_policy_then_the_experiment() -> None:
    limits = []
    for named, tpot in [("slo_aware:tpot_ms=20", 0.03), ("slo_aware", 0.03), ("slo_aware", None)]:
        policy, memory = started(named, 3, tpot_slo=tpot)
        policy.draft_lens(batch(0), memory)
        limits.append(float(memory.desk.arrays.its.known["tpot"][0]))
    assert limits == [0.02, 0.03, 0.05]


def test_a_late_request_is_drafted_for_in_the_engine(serve: Serve, steps: Steps) -> None:
    # Steps of 1/4 s and 10 s per draft; due is one token per 1/8 s, so all but the first are late.
    rows, tables, costs = [(0.0, 4, 6)], [[0] * 6], {"gamma_us": 10_000_000}
    drafted = [
        sum(steps(serve(policy, rows, tables, costs=costs), "draft_tokens"))
        for policy in ("slo_aware:tpot_ms=125", "goodput_exact", "slo_aware:tpot_ms=99999")
    ]
    assert drafted[0] > 0
    assert drafted[1:] == [0, 0]
