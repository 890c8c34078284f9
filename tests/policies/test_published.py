"""Controllers of engines and papers, beside their rules written down once more in plain Python."""

from collections import deque
from typing import Any

import numpy as np
import pytest
from driving import batch, outcome, started
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.core.step import StepLoad

SEEDS = st.integers(0, 10_000)


def accepted_of(rng: np.random.Generator, draft_lens: list[int], alpha: float) -> list[int]:
    """Return accepted lengths of drafts, each token with one probability."""
    drawn = rng.geometric(1.0 - alpha, len(draft_lens)) - 1
    return np.minimum(drawn, draft_lens).tolist()  # type: ignore[no-any-return]


# TensorRT-LLM: acceptance_gate


def test_the_schedule_of_tensorrt_llm_ends_with_its_last_size() -> None:
    schedule = {4: 4, 8: 2, 32: 1}
    policy, memory = started({"kind": "acceptance_gate", "draft_len_schedule": schedule}, 3)
    lens = {size: set(policy.draft_lens(batch(*range(size)), memory)) for size in range(1, 35)}
    expected = {size: {3 if size <= 4 else 2 if size <= 8 else 1} for size in range(1, 33)}
    assert lens == {**expected, 33: {0}, 34: {0}}


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, window=st.integers(1, 6), threshold=st.sampled_from([0.0, 0.6, 1.0, 1.5]))
def test_the_gate_of_tensorrt_llm_shuts_for_good(seed: int, window: int, threshold: float) -> None:
    config = {"kind": "acceptance_gate", "acceptance_window": window,
              "acceptance_length_threshold": threshold}  # fmt: skip
    policy, memory = started(config, 4)
    rng = np.random.default_rng(seed)
    ended: deque[float] = deque(maxlen=window)
    is_shut, total = False, 0.0
    seen: dict[int, list[int]] = {}
    running, newest = [0, 1, 2], 2
    for _ in range(60):
        lens = policy.draft_lens(batch(*running), memory)
        assert lens == [0 if is_shut else 4] * len(running)
        policy.drops(batch(*running), memory)
        accepted = accepted_of(rng, lens, 0.5)
        policy.observe(outcome(lens, accepted, requests=running), memory)
        for request, length in zip(running, accepted, strict=True):
            seen.setdefault(request, []).append(length)
        leaver = int(rng.integers(-4, len(running)))
        if leaver >= 0:  # it is missed in the next step, and another has come
            lens = seen[running.pop(leaver)]
            total += sum(lens) / len(lens)
            if len(ended) == window:
                total -= ended[0]
            ended.append(sum(lens) / len(lens))
            running.append(newest := newest + 1)
            is_shut = is_shut or (len(ended) == window and total / window < threshold)


# vLLM: adaptive_k


def priced_by(fixed: float, verified: float, drafted: float) -> Any:
    """Return a server on which steps cost so much, and so much by the token and by k."""

    def step_time(load: StepLoad, draft_len: Any) -> float:
        return float(fixed + verified * load.batched_tokens + drafted * np.max(draft_len))

    return step_time


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, verified=st.sampled_from([0.01, 0.03, 0.1]), longest=st.integers(1, 15))
def test_adaptive_k_takes_the_candidate_of_most_tokens_per_second_and_never_lengthens(
    seed: int, verified: float, longest: int
) -> None:
    policy, memory = started("adaptive_k", longest, priced_by(1.0, verified, 0.02))
    rng = np.random.default_rng(seed)
    alphas = rng.uniform(0.2, 0.95, 2)
    candidates = sorted({0, longest, *(k for k in (1, 3, 7) if k < longest)})
    survival, cap = np.ones(longest), longest
    held: dict[int, tuple[int, int]] = {}  # by bucket of batch sizes: k, and its uses
    for step in range(40):
        size = int(rng.integers(1, 70))
        bucket = (size - 1).bit_length()
        k, uses = held.get(bucket, (0, 2))
        if cap and uses >= 2:
            tokens = 1.0 + np.concatenate([[0.0], np.cumsum(survival)])
            rates = [tokens[k] / (1.0 + verified * size * (1 + k) + 0.02 * k) for k in candidates]
            best = longest if size < 16 else candidates[int(np.argmax(rates))]
            k, uses = min(best, cap), 0
            cap = k
        held[bucket] = k, uses + 1
        lens = policy.draft_lens(batch(*range(size)), memory)
        assert lens == [min(k, cap)] * size
        accepted = accepted_of(rng, lens, alphas[step // 20])
        policy.observe(outcome(lens, accepted), memory)
        for place in range(lens[0]):
            share = float(np.mean(np.array(accepted) > place))
            survival[place] = 0.8 * survival[place] + 0.2 * share
        survival = np.minimum.accumulate(survival)


def test_adaptive_k_lets_go_of_the_drafter_once_no_draft_pays() -> None:
    policy, memory = started("adaptive_k", 7, priced_by(10.0, 0.1, 0.1))
    sizes = (8, 32, 31, 8)
    assert [policy.draft_lens(batch(*range(size)), memory)[0] for size in sizes] == [7, 7, 7, 7]
    for _ in range(30):
        policy.observe(outcome([7] * 32, [0] * 32), memory)
    assert [policy.draft_lens(batch(*range(size)), memory)[0] for size in sizes] == [7, 0, 0, 0]
    assert all(policy.drops(batch(0, 1), memory))


# SGLang: throughput_tiers


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, verified=st.sampled_from([0.003, 0.02, 0.1]), interval=st.integers(1, 10))
def test_throughput_tiers_take_the_tier_of_most_tokens_per_second(
    seed: int, verified: float, interval: int
) -> None:
    config = {"kind": "throughput_tiers", "window": 6, "interval": interval}
    policy, memory = started(config, 7, priced_by(1.0, verified, 0.05))
    rng = np.random.default_rng(seed)
    tiers = {1: (1, 3, 5, 7), 8: (1, 3, 5), 32: (1, 3), 128: (1,)}
    windows: list[deque[float]] = [deque(maxlen=6) for _ in range(7)]
    k, alphas = 7, rng.uniform(0.2, 0.95, 3)
    for step in range(90):
        size = int(rng.choice([2, 9, 40, 130]))
        if step and step % interval == 0 and all(len(each) == 6 for each in windows[:k]):
            taken = tiers[max(least for least in tiers if least <= size)]
            rates: list[float] = []
            for place, window in enumerate(windows):
                if window:
                    rates.append(sum(window) / len(window))
                elif place == 1:
                    rates.append(rates[0])
                else:
                    ratio = rates[-1] / rates[0] if rates[0] else 0.0
                    rates.append(min(rates[-1], rates[-1] * ratio ** (1.0 / (place - 1))))
            best = max(taken, key=lambda k: (1.0 + sum(rates[:k]))
                       / (1.0 + verified * size * (1 + k) + 0.05 * k))  # fmt: skip
            for window in windows[best:]:
                if best < k:
                    window.clear()
            k = best
        lens = policy.draft_lens(batch(*range(size)), memory)
        assert lens == [k] * size
        accepted = accepted_of(rng, lens, alphas[step // 30])
        policy.observe(outcome(lens, accepted), memory)
        for place in range(k):
            windows[place].append(float(np.mean(np.array(accepted) > place)))


def test_throughput_tiers_start_in_the_middle_if_the_longest_is_none() -> None:
    for longest, first in ((9, 5), (7, 7), (4, 4)):
        policy, memory = started("throughput_tiers", longest)
        assert policy.draft_lens(batch(0), memory) == [first]


# BanditSpec: ucbspec


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_ucbspec_tries_each_length_and_then_takes_the_best_mean(seed: int) -> None:
    policy, memory = started("ucbspec", 6)
    rng = np.random.default_rng(seed)
    means, plays = [0.0] * 4, [0] * 4
    for number in range(1, 40):
        best = max(range(4), key=lambda arm: means[arm]) + 1
        k = (number - 1) % 4 + 1 if number < 8 else best
        assert policy.draft_lens(batch(0, 1), memory) == [k, k]
        accepted = accepted_of(rng, [k, k], 0.7)
        time = 1.0 + 0.3 * k
        policy.observe(outcome([k, k], accepted, target_time=time), memory)
        total = means[k - 1] * plays[k - 1] + (sum(accepted) + 2) / time
        plays[k - 1] += 1
        means[k - 1] = total / plays[k - 1]


@pytest.mark.parametrize("lens", [[2, 1], [5, 5], []])
def test_ucbspec_learns_nothing_where_no_arm_was_played(lens: list[int]) -> None:
    policy, memory = started("ucbspec", 6)
    for _ in range(3):
        assert policy.draft_lens(batch(0, 1), memory) == [1, 1]
        policy.observe(outcome(lens, lens, target_time=1.0), memory)
