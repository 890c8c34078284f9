"""Drafters that stop by themselves: DISCO, SpecDec++ and AdaEDL, in closed forms."""

from dataclasses import replace
from math import inf, log, sqrt
from typing import Any

import numpy as np
import pytest
from driving import batch, outcome, plain, started, sure_drafts
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specsim.policies.parts.everybody import least_entropy

SURE = st.lists(st.integers(0, 16).map(lambda each: each / 16), min_size=1, max_size=6)
ROWS = st.lists(SURE, min_size=1, max_size=5)


def stopped(policy: Any, memory: Any, rows: list[list[float]], **seen: Any) -> list[int]:
    """Return the lengths of drafts with these confidences, which all are as long as allowed."""
    view = batch(*range(len(rows)), **seen)
    assert plain(policy.draft_lens(view, memory)) == [6] * len(rows)
    lens: list[int] = plain(policy.stop_len(view, sure_drafts(*rows), memory))
    return lens


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, threshold=st.sampled_from([0.0, 0.25, 0.4, 0.75, 1.0]))
def test_disco_ends_with_the_first_token_that_is_not_sure_enough(
    rows: list[list[float]], threshold: float
) -> None:
    policy, memory = started({"kind": "disco", "threshold": threshold}, 6)
    unsure = [[place for place, sure in enumerate(row) if sure < threshold] for row in rows]
    expected = [at[0] + 1 if at else len(row) for at, row in zip(unsure, rows, strict=True)]
    assert stopped(policy, memory, rows) == expected


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, threshold=st.sampled_from([0.0, 0.3, 0.7, 1.0]), least=st.integers(1, 3))
def test_specdec_pp_ends_once_a_rejection_before_the_last_token_is_likely_enough(
    rows: list[list[float]], threshold: float, least: int
) -> None:
    config = {"kind": "specdec_pp", "threshold": threshold, "least_len": least}
    policy, memory = started(config, 6)
    expected = []
    for row in rows:
        rejected = 1.0 - np.cumprod([1.0, *row])  # before token 1, 2, ... is verified
        lens = range(least, len(row))
        expected.append(next((k for k in lens if rejected[k - 1] > threshold), len(row)))
    assert stopped(policy, memory, rows) == expected


@pytest.mark.parametrize("sure", [0.8, 0.9, 0.95])
def test_specdec_pp_drafts_as_long_as_its_threshold_says(sure: float) -> None:
    # 1 - c^(k - 1) > 0.3 first holds at k = 1 + floor(log(0.7) / log(c)) + 1.
    policy, memory = started("specdec_pp", 6)
    expected = min(6, 2 + int(log(0.7) / log(sure)))
    assert stopped(policy, memory, [[sure] * 6]) == [expected]


def test_who_is_in_mid_prefill_is_not_looked_at() -> None:
    policy, memory = started("disco", 6)
    assert stopped(policy, memory, [[1.0] * 6, [1.0] * 6], chunks=(1,))[0] == 6


@pytest.mark.parametrize(
    ("likeliest", "entropy"),
    [(0.0, inf), (1.0, 0.0), (0.5, log(2)), (0.25, log(4)), (1 / 7, log(7)),
     (0.75, -0.75 * log(0.75) - 0.25 * log(0.25)), (0.4, -0.8 * log(0.4) - 0.2 * log(0.2))],
)  # fmt: skip
def test_least_entropy_is_that_of_a_corner(likeliest: float, entropy: float) -> None:
    assert least_entropy(likeliest) == pytest.approx(entropy)


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8))
def test_no_distribution_has_less_entropy_with_that_likeliest_token(parts: list[float]) -> None:
    shares = np.array(parts) / sum(parts)
    assert least_entropy(float(shares.max())) <= -(shares * np.log(shares)).sum() + 1e-9


def test_adaedl_ends_with_the_first_token_whose_bound_is_below_the_threshold() -> None:
    policy, memory = started("adaedl", 6)
    bounds = {sure: 1.0 - sqrt(0.2 * least_entropy(sure)) for sure in (0.25, 0.5)}
    assert bounds[0.25] < 0.5 < bounds[0.5]
    assert stopped(policy, memory, [[0.5, 0.9, 0.25, 0.9], [0.25, 1.0]]) == [3, 1]


@settings(max_examples=60, deadline=None)
@given(
    gamma=st.floats(0.01, 2.0),
    threshold=st.floats(0.0, 1.0),
    rows=st.lists(st.lists(st.floats(0.0625, 1.0, width=32), min_size=6, max_size=6), min_size=1),
)
def test_adaedl_ends_as_its_bound_says_whatever_the_numbers(
    gamma: float, threshold: float, rows: list[list[float]]
) -> None:
    policy, memory = started({"kind": "adaedl", "gamma": gamma, "threshold": threshold}, 6)
    bounds = [[1.0 - sqrt(gamma * least_entropy(sure)) for sure in row] for row in rows]
    assume(all(abs(bound - threshold) > 1e-12 for row in bounds for bound in row))
    expected = [next((at + 1 for at in range(5) if row[at] < threshold), 6) for row in bounds]
    assert stopped(policy, memory, rows) == expected


def test_the_threshold_of_adaedl_moves_as_in_its_algorithm_1() -> None:
    policy, memory = started("adaedl:threshold=0.49", 6)
    low, high = 0.4, 0.5  # bounds 1 - sqrt(0.2 H): 0.5407 and 0.628
    drafts = [[low] * 6]

    def observe(draft_len: int, accepted_len: int, times: int) -> None:
        for _ in range(times):
            policy.observe(outcome([draft_len], [accepted_len]), memory)

    # One that is rejected moves it up by (1 - 0.9) 0.01, however long the draft was.
    observe(6, 0, 25)
    observe(3, 0, 25)
    assert stopped(policy, memory, drafts) == [6]  # 0.540
    observe(6, 0, 1)
    assert stopped(policy, memory, drafts) == [1]  # 0.541
    assert stopped(policy, memory, [[high] * 6]) == [6]
    # The share accepted, 1 - 0.5^n after n drafts that were, first exceeds 0.9 at n = 4: it rises
    # three times more, to 0.544, before it falls.
    observe(3, 3, 6)
    assert stopped(policy, memory, drafts) == [1]  # 0.541
    observe(3, 3, 1)
    assert stopped(policy, memory, drafts) == [6]  # 0.540
    observe(6, 6, 50)  # all of the longest draft: nothing moves
    observe(6, 0, 1)
    assert stopped(policy, memory, drafts) == [1]  # 0.541
    observe(6, 6, 50)  # shares of 0.75 and 0.875 are too small: 0.543, where it stays
    for _ in range(2):
        observe(6, 5, 1)  # the longest draft, but not all of it, and a share of 0.91: it falls
        observe(6, 6, 2)
    assert stopped(policy, memory, drafts) == [1]  # 0.541
    observe(6, 5, 1)
    assert stopped(policy, memory, drafts) == [6]  # 0.540


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_adaedl_stops_by_a_threshold_that_follows_acceptance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    policy, memory = started("adaedl", 6)
    thresholds, rates = [0.5] * 3, [0.0] * 3
    for _ in range(60):
        rows = np.float32(rng.uniform(0.1, 1.0, (3, 6)) ** rng.uniform(0.2, 1.0)).tolist()
        bounds = [[1.0 - sqrt(0.2 * least_entropy(sure)) for sure in row] for row in rows]
        expected = []
        for row, threshold in zip(bounds, thresholds, strict=True):
            assume(all(abs(bound - threshold) > 1e-9 for bound in row))
            expected.append(next((at + 1 for at in range(5) if row[at] < threshold), 6))
        assert stopped(policy, memory, rows) == expected
        drawn = rng.geometric(1.0 - rng.uniform(0.3, 0.999), 3) - 1
        accepted = [min(a, k) for a, k in zip(drawn.tolist(), expected, strict=True)]
        policy.observe(outcome(expected, accepted), memory)
        for row, (k, a) in enumerate(zip(expected, accepted, strict=True)):
            rates[row] = 0.5 * rates[row] + 0.5 * a / k
            change = 0.01 if rates[row] < 0.9 else -0.01 if a != 6 else 0.0
            thresholds[row] = 0.9 * thresholds[row] + 0.1 * (thresholds[row] + change)


def test_other_requests_have_thresholds_of_their_own() -> None:
    policy, memory = started("adaedl:threshold=0.54", 6)
    for _ in range(10):
        policy.observe(outcome([3], [0]), memory)
    assert stopped(policy, memory, [[0.4] * 6, [0.4] * 6]) == [1, 6]


@pytest.mark.parametrize("kind", ["disco", "specdec_pp", "adaedl", "tapout", "spec_serve", "joint"])
@settings(max_examples=20, deadline=None)
@given(rows=ROWS, chunk=st.integers(0, 4))
def test_drafts_end_alike_whether_or_not_the_batch_has_just_been_shown(
    kind: str, rows: list[list[float]], chunk: int
) -> None:
    view = batch(*range(len(rows)), chunks=(chunk,))
    lens = []
    for seen in (view, replace(view, now=view.now)):
        policy, memory = started(kind, 6, lambda load, lens: 1.0 + 0.02 * load.batched_tokens)
        asked = policy.draft_lens(view, memory)
        lens.append([asked, plain(policy.stop_len(seen, sure_drafts(*rows), memory))])
    assert lens[0] == lens[1]
