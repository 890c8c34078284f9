"""The exact optimum is the optimum: against enumeration of every choice of lengths."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from conftest import server_view
from driving import batch, started
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.core.compiled import as_records
from specsim.core.step import StepLoad
from specsim.decisions.loops import no_view
from specsim.decisions.policy import pricing_of
from specsim.policies import ServerView, quick_step_times
from specsim.policies.parts.estimate import best_common_len, expected_len
from specsim.policies.parts.exchange import put_loads, spend_on_found, trade_desk
from specsim.policies.parts.spending import spend_by_len, spending_desk
from specsim.profile import StepCosts, load_profile
from specsim.profile.step_time import put_load

StepTime = Callable[[StepLoad, Any], float]


@st.composite
def costs(draw: st.DrawFn) -> StepTime:
    """Step times that rise with batched tokens, by slope or by stairs, and with the longest."""
    number = st.floats(0.01, 4.0)
    base, slope, width = draw(number), draw(number), draw(st.integers(1, 5))
    is_staircase = draw(st.booleans())
    passes = np.cumsum(draw(st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=5, max_size=5)))

    def step_time(load: StepLoad, longest: int) -> float:
        tokens = load.batched_tokens
        size = -(-tokens // width) * width if is_staircase else tokens
        return base + slope * size + float(passes[longest])

    return step_time


@st.composite
def survivals(draw: st.DrawFn) -> np.ndarray:
    """Non-increasing rows, with many ties."""
    shape = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    chance = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
    chances = draw(st.lists(chance, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    return np.cumprod(np.array(chances).reshape(shape), axis=1)


def best_lens(
    survival: np.ndarray, load: StepLoad, server: ServerView, floor: np.ndarray | None = None
) -> np.ndarray:
    """Return the lengths of highest goodput on top of others."""
    num, longest = survival.shape
    desk = as_records(spending_desk(pricing_of(server)).fit(survival.size))
    desk.gains[: survival.size] = survival.T.ravel()
    desk.sizes[2], desk.found[0] = num, load.num_requests
    desk.counts[:num] = 0 if floor is None else floor
    put_load(desk.pricing, *load[:4])
    spend_by_len(desk, longest, 1 << 40, False)
    return desk.counts[:num].copy()


def common_len(server: ServerView, load: StepLoad, alpha: float, free_slots: int) -> int:
    """Return the best length for all."""
    view = as_records(no_view(1, server.max_draft_len))
    view = view._replace(pricing=pricing_of(server).fit(server.max_draft_len))
    step = view.step[0]
    step.num_decodes, step.next_context_tokens = load.num_requests, load.context_tokens
    step.free_slots = free_slots
    return best_common_len(view, alpha)


def goodput(lens: Any, survival: np.ndarray, load: StepLoad, step_time: StepTime) -> float:
    emitted = load.num_requests + sum(
        float(row[:k].sum()) for row, k in zip(survival, lens, strict=True)
    )
    tokens = load.batched_tokens + sum(lens)
    return emitted / step_time(load._replace(batched_tokens=tokens), max(lens))


@settings(max_examples=250)
@given(survivals(), costs(), st.data())
def test_no_choice_of_lengths_beats_the_budget(
    survival: np.ndarray, step_time: StepTime, data: st.DataObject
) -> None:
    num, longest = survival.shape
    floor = None
    if data.draw(st.booleans()):
        lens = st.lists(st.integers(0, longest), min_size=num, max_size=num)
        floor = np.array(data.draw(lens))
    load = StepLoad(100, num, num)
    chosen = best_lens(survival, load, server_view(longest, step_time), floor)
    lowest = [0] * num if floor is None else floor.tolist()
    assert all(low <= k <= longest for low, k in zip(lowest, chosen, strict=True))
    choices = product(*(range(low, longest + 1) for low in lowest))
    best = max(goodput(lens, survival, load, step_time) for lens in choices)
    assert goodput(chosen.tolist(), survival, load, step_time) == pytest.approx(best, rel=1e-9)


@settings(max_examples=100)
@given(survivals(), costs())
def test_sequences_in_mid_prefill_change_nothing(survival: np.ndarray, step_time: StepTime) -> None:
    num, longest = survival.shape
    view = server_view(longest, step_time)
    load = StepLoad(100, num, num)
    alone = best_lens(survival, load, view)
    padded = np.vstack([survival, np.zeros((3, longest))])
    assert best_lens(padded, load, view).tolist() == [*alone.tolist(), 0, 0, 0]


@pytest.mark.parametrize(
    "policy", ["goodput", "goodput:granularity=request", "goodput_exact", "slo_aware", "turbospec"]
)
def test_a_batch_in_mid_prefill_drafts_nothing_at_no_fixed_cost(policy: str) -> None:
    # A profile without a fixed cost: the decode-only step of no sequences takes no time.
    parsed, memory = started(policy, 3, lambda load, lens: 1e-3 * load.batched_tokens)
    lens = parsed.draft_lens(batch((0, 9, 0), (1, 9, 0), chunks=(0, 1)), memory)
    assert lens in (0, [0, 0])


def real_costs(profile: str, method: str) -> StepCosts:
    loaded = load_profile(profile)
    return StepCosts(loaded.target, (loaded.drafts[method],), loaded.overhead)


PROFILES = [
    ("h100/llama-3.1-8b", "eagle3"),
    ("h100/llama-3.1-8b", "ngram"),
    ("a100/llama-7b", "draft_model"),
]


@pytest.mark.parametrize(("profile", "method"), PROFILES)
def test_goodput_is_the_argmax_of_an_enumeration(profile: str, method: str) -> None:
    step_costs = real_costs(profile, method)
    server = ServerView(8, step_costs.step_time, step_costs.step_times)
    seen = set()
    for alpha, num, context in product(
        (0.0, 0.3, 0.6, 0.8, 0.95, 1.0), (1, 4, 16, 64, 128, 256), (10, 500, 4000)
    ):
        load = StepLoad(num * context, num, num)

        def rate(k: int, alpha: float = alpha, load: StepLoad = load) -> float:
            tokens = load.num_requests * (1 + k)
            emitted = load.num_requests * sum(alpha**j for j in range(k + 1))
            verified = StepLoad(load.context_tokens, tokens, load.num_requests)
            target = step_costs.target.forward_time(verified)
            draft = step_costs.drafts[0].draft_time(verified, k, target)
            return emitted / (target + draft + step_costs.overhead_time(load.num_requests))

        chosen = common_len(server, load, alpha, 1 << 40)
        assert rate(chosen) == pytest.approx(max(map(rate, range(9))), rel=1e-12)
        seen.add(chosen)
    assert {0, 8} <= seen
    assert len(seen) > 3


@pytest.mark.parametrize(("profile", "method"), PROFILES)
def test_lengths_per_request_never_lose_to_a_common_one(profile: str, method: str) -> None:
    step_costs = real_costs(profile, method)
    server = ServerView(6, step_costs.step_time, quick_step_times(step_costs))
    rng = np.random.default_rng(3)
    for num in (1, 5, 40, 150):
        survival = rng.random((num, 1)) ** np.arange(1, 7)
        load = StepLoad(300 * num, num, num)

        def rate(lens: np.ndarray, survival: np.ndarray = survival, load: StepLoad = load) -> float:
            emitted = len(lens) + survival[np.arange(6) < lens[:, np.newaxis]].sum()
            tokens = load.batched_tokens + int(lens.sum())
            loaded = load._replace(batched_tokens=tokens)
            return emitted / step_costs.step_time(loaded, int(lens.max()))

        chosen = rate(best_lens(survival, load, server))
        assert chosen >= max(rate(np.full(num, k)) for k in range(7)) * (1 - 1e-12)


def spent_at(
    worth: float, survival: np.ndarray, load: StepLoad, server: ServerView
) -> tuple[np.ndarray, float]:
    """How much of drafts that cost nothing is verified at a price of time, and its value."""
    num, longest = survival.shape
    known = replace(server, plain_time=lambda load: server.step_time(load, 0))
    desk = trade_desk(known, 50.0, pricing=pricing_of(known)).fit(survival.size)
    desk.gains[: survival.size] = survival.T.ravel()
    desk.sizes[1:3], desk.limits["free_slots"] = (num, longest), 1 << 40
    put_loads(desk, load, load, survival.size)
    spend_on_found(as_records(desk), worth)
    return desk.lens[:num].copy(), float(desk.spending.found[0])


@pytest.mark.parametrize(("profile", "method"), PROFILES)
def test_at_a_price_of_time_nothing_need_be_sorted(profile: str, method: str) -> None:
    step_costs, rng = real_costs(profile, method), np.random.default_rng(4)
    for num, worth in product((1, 7, 200), (1.0, 300.0, 3000.0, 30_000.0)):
        load = StepLoad(300 * num, num, num)
        per_token = step_costs.step_time(load._replace(batched_tokens=num + 1), 0)
        price = worth * (per_token - step_costs.step_time(load, 0))
        survival = np.cumprod(rng.random((num, 6)), axis=1)
        some = rng.random(num) < 0.1
        survival[some, 2:] = np.minimum(survival[some, 1:2], price)  # what roundings decide
        (quick, value), (by_sorting, expected) = (
            spent_at(worth, survival, load, ServerView(6, step_costs.step_time, times))
            for times in (quick_step_times(step_costs), step_costs.step_times)
        )
        assert quick[~some].tolist() == by_sorting[~some].tolist()
        assert value == pytest.approx(expected, rel=1e-9)


def test_goodput_leaves_out_what_has_no_kv_slots() -> None:
    step_costs = real_costs("h100/llama-3.1-8b", "eagle3")
    server = ServerView(8, step_costs.step_time, step_costs.step_times)
    load = StepLoad(4000, 4, 4)
    free = [common_len(server, load, 0.9, slots) for slots in (1 << 40, 20, 19, 4, 3, 0)]
    assert free == [8, 5, 4, 1, 0, 0]


@pytest.mark.parametrize("kind", ["goodput:granularity=request", "goodput_exact", "slo_aware"])
def test_lengths_per_request_fit_into_the_kv_slots(kind: str) -> None:
    policy, memory = started(kind, 4)
    for free_slots, lens in ((8, [4, 4]), (7, [4, 3]), (1, [1, 0]), (0, [0, 0])):
        assert policy.draft_lens(batch(0, 1, free_slots=free_slots), memory) == lens


@pytest.mark.parametrize("k", range(6))
def test_expected_len_is_a_sum_of_powers(k: int) -> None:
    for alpha in (0.0, 0.2, 0.9, 1.0):
        assert expected_len(alpha, k) == pytest.approx(sum(alpha**j for j in range(k + 1)))
