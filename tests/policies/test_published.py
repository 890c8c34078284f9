"""Controllers of engines and papers, beside their rules written down once more in plain Python."""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from driving import batch, drafts_of, outcome, started, sure_drafts
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.core.step import StepLoad
from specsim.policies.parts.everybody import least_entropy

SEEDS = st.integers(0, 10_000)


def accepted_of(rng: np.random.Generator, draft_lens: list[int], alpha: float) -> list[int]:
    """Return accepted lengths of drafts, each token with one probability."""
    drawn = rng.geometric(1.0 - alpha, len(draft_lens)) - 1
    return [*map(min, drawn.tolist(), draft_lens)]


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


def first_key_reached(schedule: dict[int, int], size: int) -> int:
    """Return what TensorRT-LLM's ``get_draft_len_for_batch_size`` says."""
    return next((k for key, k in sorted(schedule.items()) if key >= size), 0)


@settings(max_examples=40, deadline=None)
@given(
    seed=SEEDS,
    window=st.integers(1, 6),
    threshold=st.sampled_from([0.0, 0.3, 0.5, 0.6]),
    schedule=st.dictionaries(st.integers(1, 40), st.integers(0, 6), min_size=1, max_size=4),
)
def test_the_gate_of_tensorrt_llm_shuts_for_good_by_the_share_of_steps(
    seed: int, window: int, threshold: float, schedule: dict[int, int]
) -> None:
    config = {"kind": "acceptance_rate_gate", "acceptance_rate_window_size": window,
              "acceptance_rate_threshold": threshold, "draft_len_schedule": schedule}  # fmt: skip
    policy, memory = started(config, 5)
    rng = np.random.default_rng(seed)
    shares: list[float] = []
    is_shut = False
    for _ in range(60):
        size = int(rng.integers(1, 45))
        k = 0 if is_shut else min(first_key_reached(schedule, size), 5)
        assert policy.draft_lens(batch(*range(size)), memory) == [k] * size
        lens = [k if rng.random() < 0.9 else 0 for _ in range(size)]
        accepted = accepted_of(rng, lens, 0.5)
        policy.observe(outcome(lens, accepted), memory)
        if sum(lens):
            shares.append(sum(accepted) / sum(lens))
            mean = float(np.mean(shares[-window:]))
            if abs(mean - threshold) < 1e-12:
                return  # rounded either way
            is_shut = is_shut or (len(shares) >= window and mean < threshold)


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


# vLLM: adaptive_verification


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, verified=st.sampled_from([0.01, 0.05, 0.2]), longest=st.integers(1, 7))
def test_adaptive_verification_sizes_and_allots_as_vllms_does(
    seed: int, verified: float, longest: int
) -> None:
    step_time = priced_by(1.0, verified, 0.05)
    policy, memory = started("adaptive_verification", longest, step_time)
    rng = np.random.default_rng(seed)
    stale = np.ones((12, longest))
    for _ in range(20):
        requests = np.flatnonzero(rng.random(12) < 0.5).tolist()
        chunks = tuple(each for each in requests if rng.random() < 0.15)
        lens = [0 if each in chunks else int(rng.integers(longest + 1)) for each in requests]
        if not any(lens):
            continue
        seen = [np.cumprod(stale[each])[:k] for each, k in zip(requests, lens, strict=True)]
        surest = np.sort(np.concatenate(seen))[::-1]
        emitted = len(requests) - len(chunks) + np.concatenate([[0.0], np.cumsum(surest)])
        times = [step_time(StepLoad(0, len(requests) + more, len(requests)), longest)
                 for more in range(len(emitted))]  # fmt: skip
        rates = emitted / times
        budget = int(np.argmax(rates))
        if np.sum(np.isclose(rates, rates[budget], rtol=1e-12, atol=0.0)) > 1:
            return  # equal but for rounding
        rows = [np.float32(rng.uniform(0.05, 1.0, k)) for k in lens]
        cells = [(-chance, row, at) for row, each in enumerate(rows)
                 for at, chance in enumerate(np.cumprod(each).tolist())]  # fmt: skip
        kept = [row for _, row, _ in sorted(cells)[:budget]]
        view = batch(*requests, drafts=sum(lens), chunks=chunks)
        drafts = sure_drafts(*(row.tolist() for row in rows))
        assert policy.verify_lens(view, drafts, memory) == [
            kept.count(row) for row in range(len(requests))
        ]
        for each, row in zip(requests, rows, strict=True):
            stale[each, : len(row)] = row


# SGLang: ema_tiers


class Slot:
    """One size's tiers, as in ``adaptive_spec_params.py AdaptiveStepSlot`` at 015c872."""

    def __init__(self, tiers: tuple[int, ...], start: int, warm_up: int, interval: int) -> None:
        self.tiers, self.warm_up, self.interval = tiers, warm_up, interval
        self.k = start if start in tiers else tiers[len(tiers) // 2]
        self.mean, self.num = self.k - 1.0, 0

    def update(self, accepted: list[int], down: float, up: float) -> None:
        if self.k:
            self.mean = 0.8 * self.mean + 0.2 * sum(accepted) / len(accepted)
        self.num += 1
        if self.num <= self.warm_up or (self.num - self.warm_up) % self.interval:
            return
        at = self.tiers.index(self.k)
        if self.k == 0:
            at = min(1, len(self.tiers) - 1)
            self.mean = self.tiers[at] - 1.0 if self.mean < 0 < self.tiers[at] else self.mean
        else:
            lower = [t for t in range(at) if self.mean > max(self.tiers[t], 1) - 0.5 + down]
            falls = (max(lower) + 1 if lower else 0) if at else 0
            rises = next(
                (t for t in range(at, len(self.tiers)) if self.mean <= self.tiers[t] - 0.5 + up),
                len(self.tiers) - 1,
            )
            at = falls if falls < at else rises
        self.k = self.tiers[at]


@settings(max_examples=40, deadline=None)
@given(
    seed=SEEDS,
    start=st.integers(0, 8),
    warm_up=st.integers(0, 10),
    interval=st.integers(1, 6),
    down=st.sampled_from([-0.25, 0.0, 0.3]),
    up=st.sampled_from([-0.1, 0.0, 0.4]),
)
def test_ema_tiers_move_as_sglangs_do(
    seed: int, start: int, warm_up: int, interval: int, down: float, up: float
) -> None:
    tiers = {1: (1, 3, 5, 7), 8: (0, 1, 3), 32: (0, 1), 64: (0,)}
    config = {"kind": "ema_tiers", "k_start": start, "warm_up": warm_up, "interval": interval,
              "down_hysteresis": down, "up_hysteresis": up, "tiers": tiers}  # fmt: skip
    policy, memory = started(config, 7)
    slots = {size: Slot(lens, start, warm_up, interval) for size, lens in tiers.items()}
    rng = np.random.default_rng(seed)
    alphas = rng.uniform(0.05, 0.98, 4)
    for step in range(160):
        size = int(rng.choice([1, 7, 8, 20, 31, 32, 64, 90]))
        slot = slots[max(least for least in tiers if least <= size)]
        assert policy.draft_lens(batch(*range(size)), memory) == slot.k
        lens = [slot.k] * size
        accepted = accepted_of(rng, lens, alphas[step // 40])
        policy.observe(outcome(lens, accepted), memory)
        slot.update(accepted, down, up)
        if any(abs(slot.mean - (at + 0.5) - by) < 1e-9 for at in range(7) for by in (down, up)):
            return  # rounded either way


# SGLang: throughput_tiers


TIERS = {1: (1, 3, 5, 7), 8: (1, 3, 5), 32: (1, 3), 128: (1,)}


def shares_of(windows: list[deque[float]]) -> list[float]:
    """Return the mean of each position, extrapolated where nothing is known of it."""
    shares: list[float] = []
    for place, window in enumerate(windows):
        if window:
            shares.append(sum(window) / len(window))
        elif place == 1:
            shares.append(shares[0])
        else:
            ratio = shares[-1] / shares[0] if shares[0] else 0.0
            shares.append(min(shares[-1], shares[-1] * ratio ** (1.0 / (place - 1))))
    return shares


@settings(max_examples=40, deadline=None)
@given(
    seed=SEEDS,
    verified=st.sampled_from([0.003, 0.02, 0.1]),
    interval=st.integers(1, 10),
    hysteresis=st.sampled_from([0.0, 0.1]),
)
def test_throughput_tiers_take_the_tier_of_most_tokens_per_second(
    seed: int, verified: float, interval: int, hysteresis: float
) -> None:
    config = {"kind": "throughput_tiers", "window": 6, "interval": interval, "tiers": TIERS,
              "hysteresis": hysteresis}  # fmt: skip
    policy, memory = started(config, 7, priced_by(1.0, verified, 0.05))
    rng = np.random.default_rng(seed)
    windows: list[deque[float]] = [deque(maxlen=6) for _ in range(7)]
    k, since, alphas = 7, 0, rng.uniform(0.2, 0.95, 3)
    for step in range(90):
        size = int(rng.choice([2, 9, 40, 130]))
        taken = TIERS[max(least for least in TIERS if least <= size)]

        def rates(size: int = size, taken: tuple[int, ...] = taken) -> dict[int, float]:
            shares = shares_of(windows)
            return {k: (1.0 + sum(shares[:k])) / (1.0 + verified * size * (1 + k) + 0.05 * k)
                    for k in taken}  # fmt: skip

        before = k
        if k not in taken:  # at once, and with whatever is known
            k = taken[len(taken) // 2]
            if windows[0]:
                found = rates()
                k = max(found, key=lambda k: found[k])
        for window in windows[k:] if k < before else []:
            window.clear()
        if since >= interval:
            since, before = 0, k
            if all(len(each) == 6 for each in windows[:k]):
                found = rates()
                best = max(found, key=lambda k: found[k])
                k = best if found[best] > found[k] * (1.0 + hysteresis) else k
            for window in windows[k:] if k < before else []:
                window.clear()
        lens = policy.draft_lens(batch(*range(size)), memory)
        assert lens == [k] * size
        accepted = accepted_of(rng, lens, alphas[step // 30])
        policy.observe(outcome(lens, accepted), memory)
        since += 1
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


# Nightjar


def numbers_of_bins() -> Iterator[tuple[int, int]]:
    """Yield block and bin of the steps of one size; each block has twice the steps of the last."""
    for block in range(1, 10):
        steps = 2 ** (block - 1)
        for at in range(-(-steps // math.isqrt(steps)) * math.isqrt(steps)):
            yield block, at // math.isqrt(steps) + 1


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, switch_ms=st.sampled_from([0.0, 900.0]))
def test_nightjar_plays_the_cheapest_arm_of_the_size_unless_it_explores(
    seed: int, switch_ms: float
) -> None:
    config = {"kind": "nightjar", "switch_ms": switch_ms}
    policy, memory = started(config, 4, rng=np.random.default_rng(seed))
    draws, rng = np.random.default_rng(seed).random(4096)[1:].tolist(), np.random.default_rng(seed)
    means = [[0.0] * 5 for _ in range(12)]
    plays = [[0] * 5 for _ in range(12)]
    # Of each size the numbers of its bins in their blocks, a step each: 1, 1 2, 1 1 2 2 3 3 ...
    bins = [iter(numbers_of_bins()) for _ in range(12)]
    arms, before, last = [0] * 12, [(0, 0)] * 12, 0
    for _ in range(300):
        size = int(rng.integers(1, 30))
        place = min((size + 1) // 2, 12) - 1
        bin_ = next(bins[place])
        if bin_ != before[place]:
            losses = {k: 1.0 / means[place][k] + (switch_ms * 1e-3 / k if k and not last else 0.0)
                      for k in range(5) if plays[place][k]}  # fmt: skip
            if not losses or draws.pop(0) * bin_[1] < 1.0:
                arms[place] = int(draws.pop(0) * 5)
            else:
                arms[place] = min(losses, key=lambda k: losses[k])
        before[place], last = bin_, arms[place]
        assert policy.draft_lens(batch(*range(size)), memory) == [last] * size
        accepted = accepted_of(rng, [last] * size, 0.6)
        time = 1.0 + 0.2 * last * size
        policy.observe(outcome([last] * size, accepted, target_time=time), memory)
        total = means[place][last] * plays[place][last] + (sum(accepted) + size) / time / size
        plays[place][last] += 1
        means[place][last] = total / plays[place][last]


# TapOut


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_tapout_ends_drafts_by_the_rule_of_highest_bound(seed: int) -> None:
    policy, memory = started("tapout", 6)
    rng = np.random.default_rng(seed)
    means, plays = [0.0] * 5, [0] * 5

    def ends(arm: int, row: list[float], place: int) -> bool:
        roots = [math.sqrt(least_entropy(each)) for each in row]
        rules = (
            row[place] < 0.8,
            roots[place] > 0.6,
            1.0 - math.sqrt(0.2) * roots[place] < 0.4,
            place > 0 and roots[place] - roots[place - 1] > 0.2,
            row[place] - (1.0 - row[place]) < 0.2,
        )
        return rules[arm]

    for number in range(40):
        bounds = [mean + math.sqrt(2.0 * math.log(number) / count) if count else math.inf
                  for mean, count in zip(means, plays, strict=True)]  # fmt: skip
        arm = bounds.index(max(bounds))
        second = max(bounds[:arm] + bounds[arm + 1 :])
        if second < math.inf and bounds[arm] - second < 1e-9:
            return  # equal but for rounding, which compiled code does in fewer places
        seen = batch(0, 1, 2)
        assert policy.draft_lens(seen, memory) == [6] * 3
        rows = [np.float32(row).tolist() for row in rng.uniform(0.3, 1.0, (3, 6))]
        lens = [next((at + 1 for at in range(5) if ends(arm, row, at)), 6) for row in rows]
        assert policy.stop_len(seen, sure_drafts(*rows), memory).tolist() == lens
        accepted = accepted_of(rng, lens, 0.7)
        policy.observe(outcome(lens, accepted), memory)
        rewards = [0.5 * a / of for a, d in zip(accepted, lens, strict=True) for of in (6, d)]
        means[arm] = (means[arm] * plays[arm] + sum(rewards) / 3) / (plays[arm] + 1)
        plays[arm] += 1


# DSDE


def variance(numbers: list[float]) -> float:
    weights = [0.85**age for age in range(len(numbers))]
    return float(np.cov(numbers, aweights=weights, ddof=0))


def change_of_variance(newest: list[float]) -> float:
    if len(newest) < 2:
        return 0.0
    steady = variance(newest)
    return variance(newest[: max(len(newest) // 3, 1)]) / steady if steady >= 1e-6 else 20.0


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, knows=st.booleans())
def test_dsde_drafts_by_the_divergence_of_late_and_its_variance(seed: int, knows: bool) -> None:
    config = {"kind": "dsde", "calibration_steps": 4}
    policy, memory = started(config, 8, has_confidences=knows)
    rng = np.random.default_rng(seed)
    kept: dict[int, list[float]] = {row: [] for row in range(3)}
    means = [0.0] * 3
    early: list[float] = []
    most = 0

    for step in range(50):
        if step < 4:
            expected = [8] * 3
        else:
            longest = max(most * (1.0 + np.mean(early) / (max(early) + 1e-9)), 2.0)
            lengths = []
            for row in range(3):
                penalty = (math.exp(2.0 * means[row]) - 1.0) * change_of_variance(
                    kept[row][:-31:-1]
                )
                lengths.append(max(1.0 - penalty, 0.0) * (longest - 2.0) + 2.0)
            if any(abs(each - round(each)) < 1e-9 and each != 2.0 for each in lengths):
                return  # rounded either way, as compiled code rounds in fewer places
            cap = math.ceil(np.mean([math.ceil(each) for each in lengths]))
            expected = [min(math.ceil(each), cap, 8) for each in lengths]
        lens = policy.draft_lens(batch(0, 1, 2), memory)
        assert lens == expected
        rows = [np.float32(rng.uniform(0.6, 1.0, length)).tolist() for length in lens]
        assert policy.verify_lens(batch(0, 1, 2), sure_drafts(*rows), memory) == lens
        accepted = accepted_of(rng, lens, 0.7)
        policy.observe(outcome(lens, accepted), memory)
        for row, stated in enumerate(rows):
            lost = 1 if accepted[row] < lens[row] else 0
            found = [2.0 * (lost / (accepted[row] + lost)) ** 2] * len(stated)
            if knows:
                found = [2.0 * (1.0 - each) ** 2 for each in stated]
            kept[row] += found
            means[row] = float(np.mean(found))
            if step < 4:
                early += found
        if step < 4:
            most = max(most, *accepted)


# SpecServe


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, drafted=st.sampled_from([0.0, 0.02, 0.1, 0.6, 0.63]))
def test_spec_serve_drafts_as_released(seed: int, drafted: float) -> None:
    rng, longest, step_time = np.random.default_rng(seed), 6, priced_by(1.0, 0.05, drafted)
    policy, memory = started("spec_serve", longest, step_time)
    stated = [0.6] * 5  # at first, then of all tokens that did not lower efficiency

    def efficiency(rows: list[list[float]], guess: float | None = None) -> float:
        sure = [[float(np.prod(row[: at + 1])) for at in range(len(row))] for row in rows]
        if guess is not None:
            sure = [[*each, (each[-1] if each else 1.0) * guess] for each in sure]
        k, num = len(sure[0]), len(sure)
        return (num + sum(map(sum, sure))) / step_time(StepLoad(0, num * (1 + k)), k)

    for _ in range(30):
        seen = batch(*range(int(rng.integers(1, 9))))
        guess = float(np.mean(stated))
        rows = np.float32(rng.uniform(0.2, 1.0, (seen.size, longest)) ** rng.uniform(0.1, 2.0))
        nothing: list[list[float]] = [[]] * seen.size
        drafts_on = efficiency(nothing, guess) > efficiency(nothing)
        assert policy.draft_lens(seen, memory) == [longest if drafts_on else 0] * seen.size
        expected, before = longest, efficiency(nothing)
        for k in range(1, longest + 1):
            made = rows[:, :k].tolist()
            if efficiency(made) < before:
                expected = k
                break
            before = efficiency(made)
            stated += rows[:, k - 1].tolist()
            if k < longest and efficiency(made, float(np.mean(stated))) < before:
                expected = k
                break
        assert (
            policy.stop_len(seen, sure_drafts(*rows.tolist()), memory).tolist()
            == [expected] * seen.size
        )


def test_spec_serve_verifies_the_surest_within_the_limit() -> None:
    drafts = sure_drafts([0.9, 0.9, 0.9], [0.9, 0.1, 0.9])
    for tpot_ms, lens in ((None, [3, 1]), (1250.0, [2, 1]), (1150.0, [1, 0]), (1000.0, [3, 1])):
        config = {"kind": "spec_serve", "tpot_ms": tpot_ms}
        policy, memory = started(config, 3, priced_by(1.0, 0.05, 0.0))
        assert policy.verify_lens(batch(0, 1, drafts=6), drafts, memory) == lens


def test_spec_serve_without_confidences_drafts_what_has_been_best_of_late() -> None:
    policy, memory = started("spec_serve", 5, priced_by(1.0, 0.1, 0.1), has_confidences=False)
    assert policy.draft_lens(batch(0), memory)[0] > 1
    for _ in range(60):
        policy.observe(outcome([5], [0]), memory)
    assert policy.draft_lens(batch(0), memory) == [0]
    assert policy.verify_lens(batch(0, drafts=2), drafts_of([2], np.zeros((1, 0))), memory) == [2]
