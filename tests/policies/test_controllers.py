"""Controllers that count: hand-worked timelines, and the rules one by one."""

from collections.abc import Callable
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from driving import batch, outcome, started

from specsim.core.step import StepLoad
from specsim.run.simulate import Run

Serve = Callable[..., Run]
Steps = Callable[..., list[Any]]

FAILS_THEN_HOLDS = [0, 0, 0, 0, 0, 3, 0, 3, 0, 0, 2, 0, 0]


def test_step_controller_counts_down_and_climbs_back(serve: Serve, steps: Steps) -> None:
    run = serve("step_controller", [(0.0, 4, 13)], [FAILS_THEN_HOLDS])
    # Drafts of 3, 2 and 1 are rejected; at 0 nothing is, so it climbs: 1, 2, 3.
    assert steps(run, "draft_tokens", "accepted_tokens", "output_tokens") == [
        (0, 0, 1),
        (3, 0, 1),
        (2, 0, 1),
        (1, 0, 1),
        (0, 0, 1),
        (1, 1, 2),
        (2, 2, 3),
        (3, 2, 3),
    ]


def test_step_controller_under_asynchronous_scheduling_is_two_steps_late(
    serve: Serve, steps: Steps
) -> None:
    # What step n + 1 verifies is decided when step n is scheduled: n is in flight, and so its
    # outcome is not known; nor was that of n - 1, which ends only afterwards.
    runs = [
        serve("step_controller", [(0.0, 4, 10)], [[0] * 10], async_scheduling=is_async)
        for is_async in (False, True)
    ]
    assert steps(runs[0], "draft_tokens") == [0, 3, 2, 1, 0, 1, 0, 1, 0, 1]
    assert steps(runs[1], "draft_tokens") == [0, 3, 3, 3, 2, 1, 0, 0, 0, 1]


def test_step_controller_under_prefill_first_drafts_and_verifies_at_once(
    serve: Serve, steps: Steps
) -> None:
    run = serve("step_controller", [(0.0, 4, 6)], [[0] * 6], scheduler="prefill_first")
    assert steps(run, "draft_tokens") == [0, 3, 2, 1, 0, 1]


@pytest.mark.parametrize("start", [0, 1, 2])
def test_k_start_is_the_first_draft_length(start: int, serve: Serve, steps: Steps) -> None:
    run = serve(f"fsm:k_start={start}", [(0.0, 4, 3)], [[0, 0, 0]])
    # At 0 the counter has nothing to be rejected, so the prefill lets it climb.
    assert steps(run, "draft_tokens")[1] == max(start, 1)


def test_step_controller_counts_each_request_by_itself() -> None:
    policy, memory = started("step_controller:k_start=2", 4)
    policy.observe(outcome([2, 2, 2], [2, 1, 0]), memory)
    assert policy.draft_lens(batch(2, 1, 0, 3), memory) == [1, 1, 3, 2]
    policy.observe(outcome([3, 0], [3, 0], requests=[0, 1]), memory)  # 1 was not drafted for
    assert policy.draft_lens(batch(0, 1), memory) == [4, 1]
    policy.observe(outcome([4], [4]), memory)
    assert policy.draft_lens(batch(0), memory) == [4]


def test_cached_step_controller_looks_for_repeated_tokens(serve: Serve, steps: Steps) -> None:
    answer = [9, 8, 7, 6, 5, 9, 4, 9, 20, 21, 22, 23, 24, 30, 24, 24, 40, 41, 42]
    table = [0] * len(answer)
    table[6], table[8], table[15] = 1, 3, 1
    run = serve(
        "cached_step_controller", [(0.0, 3, len(answer))], [table], tokens=[([1, 2, 3], answer)]
    )
    assert steps(run, "draft_tokens", "output_tokens") == [
        (0, 1),  # the prefill drafts nothing, and 9 is new
        (3, 1),  # nothing accepted, so nothing seen before: -1
        (2, 1),
        (1, 1),
        (0, 1),  # nothing drafted, and 5 is new: stays
        (0, 1),  # nothing drafted, but 9 was seen before: +1
        (1, 2),  # 4 is new: -1, all accepted: +1
        (1, 2),  # 20 is new: -1, all accepted: +1
        (1, 1),
        (0, 1),
        (0, 1),
        (0, 1),
        (0, 1),  # 24 again: +1
        (1, 2),  # 24 again: +1, all accepted: +1
        (3, 1),
        (2, 1),
    ]


def test_cached_step_controller_knows_the_prompt(serve: Serve, steps: Steps) -> None:
    lens = [
        steps(
            serve(
                "cached_step_controller",
                [(0.0, 2, 5)],
                [[0, 1, 0, 0, 0]],
                tokens=[([1, 2], answer)],
            ),
            "draft_tokens",
        )
        for answer in ([5, 6, 7, 8, 9], [5, 1, 7, 8, 9])
    ]
    assert lens == [[0, 3, 2, 1], [0, 3, 3, 2]]


def test_acceptance_target_moves_one_per_window(serve: Serve, steps: Steps) -> None:
    run = serve("acceptance_target:window=2", [(0.0, 4, 9)], [[0] * 9])
    # The prefill drafts nothing and is no step of a window; 1 is the shortest.
    assert steps(run, "draft_tokens") == [0, 3, 3, 2, 2, 1, 1, 1, 1]


def test_acceptance_target_climbs_above_its_target_only() -> None:
    policy, memory = started("acceptance_target:window=1,target=0.5", 3)
    seen = []
    for accepted in ([0, 0], [1, 2], [1, 1], [1, 1], [2, 2], [3, 3]):
        k = policy.draft_lens(batch(0, 1), memory)
        seen.append(k)
        policy.observe(outcome([k, k], [min(k, each) for each in accepted]), memory)
    # 0 of 6 accepted: 2; 3 of 4: 3; 2 of 6: 2; 2 of 4 is not more than half: 1; 2 of 2: 2.
    assert seen == [3, 2, 3, 2, 1, 2]


def tiers(observed: list[tuple[list[int], list[int]]], **config: Any) -> list[int]:
    policy, memory = started({"kind": "ema_tiers", "tiers": [1, 3, 7], **config}, 7)
    lens = [policy.draft_lens(batch(0), memory)]
    for drafted, accepted in observed:
        policy.observe(outcome(drafted, accepted), memory)
        lens.append(policy.draft_lens(batch(0), memory))
    return lens


def test_ema_tiers_wait_for_the_warm_up_and_then_for_each_interval() -> None:
    lens = tiers([([3], [3])] * 16)
    # It starts at the middle tier with a smoothed length of 2, which passes 2.5 at step 4, but
    # ten steps of warm-up and an interval of five come first.
    assert lens == [3] * 15 + [7] * 2
    # From there: 3 * 0.8^5 = 0.98 and 0.32 are above 0.25, 0.11 is not.
    lens = tiers([([3], [3])] * 15 + [([7], [0])] * 15)
    assert lens[16:] == [7] * 4 + [3] * 5 + [3] * 5 + [1]


NOW = {"smoothing": 1.0, "interval": 1, "warm_up": 0}


@pytest.mark.parametrize(
    ("accepted", "tier"),
    [
        ([0, 0, 0, 0], 1),
        ([1, 0, 0, 0], 1),  # 0.25: exactly 1 - 0.5 - 0.25 goes down
        ([1, 1, 0, 0], 3),
        ([3, 3, 2, 2], 3),  # 2.5: exactly 3 - 0.5 stays
        ([3, 3, 3, 2], 7),
    ],
)
def test_ema_tiers_at_their_boundaries(accepted: list[int], tier: int) -> None:
    assert tiers([([3] * 4, accepted)], **NOW)[-1] == tier


def test_ema_tiers_hysteresis_moves_the_boundaries() -> None:
    assert tiers([([3] * 4, [1, 1, 1, 0])], **NOW)[-1] == 3
    assert tiers([([3] * 4, [1, 1, 1, 0])], **NOW, down_hysteresis=0.25)[-1] == 1
    assert tiers([([3] * 4, [3, 3, 3, 2])], **NOW, up_hysteresis=0.25)[-1] == 3
    assert tiers([([3] * 4, [3, 3, 3, 3])], **NOW, up_hysteresis=0.25)[-1] == 7


def test_ema_tiers_smooth_over_what_was_drafted_only() -> None:
    # Two sequences joined without drafts: 5 accepted over 2 drafts, not over 4.
    assert tiers([([3, 3, 0, 0], [3, 3, 0, 0])], **NOW)[-1] == 7
    assert tiers([([0, 0], [0, 0])] * 3, **NOW) == [3] * 4  # steps without drafts say nothing


def test_ema_tiers_come_back_from_zero_and_cut_what_is_too_long() -> None:
    lens = tiers([([4], [0]), ([0], [0]), ([2], [0])], **NOW, tiers=[0, 4, 99])
    assert lens == [4, 0, 4, 0]


def test_ema_tiers_go_by_the_size_of_the_batch() -> None:
    # SGLang's defaults: {1: [1, 3, 5, 7], 8: [0, 1, 3], 32: [0, 1], 64: [0]}, the middle first.
    policy, memory = started({"kind": "ema_tiers", **NOW}, 7)

    def lens() -> list[int]:
        return [policy.draft_lens(batch(*range(size)), memory) for size in (1, 7, 8, 31, 32, 99)]

    assert lens() == [5, 5, 1, 1, 1, 0]
    policy.observe(outcome([1] * 20, [1] * 20), memory)  # of its own range of sizes alone
    assert lens() == [5, 5, 3, 3, 1, 0]
    policy.observe(outcome([1] * 40, [0] * 40), memory)
    assert lens() == [5, 5, 3, 3, 0, 0]
    policy.observe(outcome([0] * 40, [0] * 40), memory)  # tries again
    assert lens() == [5, 5, 3, 3, 1, 0]


def test_a_switch_of_tiers_takes_effect_with_the_next_drafts(serve: Serve, steps: Steps) -> None:
    policy = {"kind": "ema_tiers", "tiers": [1, 3], **NOW}
    table = [0, 0, 1, 0, 3, 0, 0, 0, 0, 0]
    run = serve(policy, [(0.0, 4, 9)], [table])
    assert steps(run, "draft_tokens", "accepted_tokens") == [(0, 0), (3, 0), (1, 1), (3, 3), (3, 0)]
    run = serve(policy, [(0.0, 4, 6)], [[0] * 6], async_scheduling=True)
    assert steps(run, "draft_tokens") == [0, 3, 3, 3, 1, 1]  # two steps later


def test_schedule_follows_the_batch_of_the_step_that_drafts(serve: Serve, steps: Steps) -> None:
    policy = "schedule:ranges=[[1, 1, 3], [2, 9, 1]]"
    rows, tables = [(0.0, 1, 5), (0.0625, 1, 5)], [[0] * 5] * 2
    lens = [
        steps(
            serve(policy, rows, tables, async_scheduling=is_async), "num_requests", "draft_tokens"
        )
        for is_async in (False, True)
    ]
    # Step 1 holds two requests: one verifies what was decided when it was alone.
    assert lens[0] == [(1, 0), (2, 3), (2, 2), (2, 2), (2, 2), (1, 1)]
    # The arrival misses the step that is queued already, and joins step 2.
    assert lens[1] == [(1, 0), (1, 3), (2, 3), (2, 2), (2, 2), (1, 1), (1, 3)]


def test_q_learning_prefers_what_is_accepted_most() -> None:
    policy, memory = started("q_learning:exploration=0", 4)
    rng = np.random.default_rng(5)
    for _ in range(5000):
        lens = policy.draft_lens(batch(0, 1, 2), memory)
        accepted = [min(k, int(rng.geometric(0.4)) - 1) for k in lens]
        policy.observe(outcome(lens, accepted), memory)
    assert policy.draft_lens(batch(0, 1, 2), memory) == [1, 1, 1]


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_q_learning_learns_about_the_step_that_was_made(delay: int) -> None:
    # With decay 1 and no future, the table holds the mean reward of each pair of lengths that
    # followed each other, however late it is observed.
    policy, memory = started("q_learning:decay=1,discount=0,warm_up=999", 5)
    rng = np.random.default_rng(2)
    verified, waiting = [5], []
    rewards: dict[tuple[int, int], list[float]] = {}
    for _ in range(60):
        waiting.append(policy.draft_lens(batch(0), memory)[0])
        if len(waiting) > delay:
            k = waiting.pop(0)
            accepted = int(rng.integers(0, k + 1))
            rewards.setdefault((verified[-1], k), []).append(accepted / k)
            verified.append(k)
            policy.observe(outcome([k], [accepted]), memory)
    means = {pair: fmean(shares) for pair, shares in rewards.items()}
    assert {pair: memory.values[pair] for pair in means} == pytest.approx(means)
    assert np.count_nonzero(memory.values != 1.0) <= len(means)  # the others: the most there is


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_q_learning_settles_also_without_exploring(seed: int) -> None:
    policy, memory = started("q_learning:exploration=0", 7, rng=np.random.default_rng(seed))
    rng, lens = np.random.default_rng(seed + 100), [0]
    for _ in range(15_000):
        lens = policy.draft_lens(batch(0), memory)
        policy.observe(outcome(lens, [int((rng.random(lens[0]) < 0.9).cumprod().sum())]), memory)
    assert policy.draft_lens(batch(0), memory) == [1]


AGENTS = ["q_learning", "bandit:algorithm=ucb1", "bandit:algorithm=thompson", "random"]


@pytest.mark.parametrize("policy", AGENTS)
def test_agents_do_the_same_for_one_seed(policy: str, serve: Serve, steps: Steps) -> None:
    rows = [(0.0, 4, 60)] * 3
    tables = [[(7 * i + 3 * p) % 4 for p in range(60)] for i in range(3)]
    runs = [steps(serve(policy, rows, tables, seed=s), "draft_tokens") for s in (1, 1, 2)]
    assert runs[0] == runs[1]
    if policy != "bandit:algorithm=ucb1":  # which draws nothing
        assert runs[0] != runs[2]


def reward_of(k: int) -> float:
    return {0: 1.0, 1: 1.5, 2: 2.0, 3: 1.2}[k]


@pytest.mark.parametrize("algorithm", ["ucb1", "thompson"])
def test_bandits_settle_on_the_arm_of_highest_goodput(algorithm: str) -> None:
    policy, memory = started({"kind": "bandit", "algorithm": algorithm}, 3)
    played = []
    for _ in range(400):
        k = policy.draft_lens(batch(0, 1), memory)
        played.append(k)
        step = outcome([k, k], [0, 0], output_tokens=2, target_time=1.0, overhead_time=0.0)
        policy.observe(step._replace(target_time=1 / reward_of(k)), memory)
    assert played[:4] == [3, 2, 1, 0]
    assert played[-100:].count(2) > 80


def test_ucb1_keeps_trying_the_others() -> None:
    policy, memory = started("bandit:algorithm=ucb1", 3)
    played = []
    for _ in range(300):
        played.append(policy.draft_lens(batch(0), memory))
        policy.observe(outcome([played[-1]], [0], target_time=1 / reward_of(played[-1])), memory)
    assert set(played[50:]) == {0, 1, 2, 3}


def test_thompson_does_not_trust_one_unlucky_step() -> None:
    policy, memory = started("bandit:algorithm=thompson,memory_steps=100", 3)
    rng = np.random.default_rng(4)
    played = []
    for _ in range(1500):
        k = policy.draft_lens(batch(0), memory)
        first = played.count(k) == 0 and k == 2  # the best arm begins at half its worth
        time = 1 / (0.5 if first else rng.normal(1.0, 0.1)) / reward_of(k)
        played.append(k)
        policy.observe(outcome([k], [0], target_time=time), memory)
    assert played[-500:].count(2) > 350


@pytest.mark.parametrize("algorithm", ["ucb1", "thompson"])
def test_bandits_learn_although_a_lookup_finds_less_than_asked(algorithm: str) -> None:
    policy, memory = started({"kind": "bandit", "algorithm": algorithm}, 3, drafts_by_model=False)
    played = []
    for number in range(400):
        k = policy.draft_lens(batch(0, 1), memory)
        played.append(k)
        step = outcome([k if number % 2 else 0, min(k, 1)], [0, 0], output_tokens=2)
        policy.observe(step._replace(target_time=1 / reward_of(k)), memory)
    assert played[:4] == [3, 2, 1, 0]
    assert played[-100:].count(2) > 80


def test_bandits_take_no_reward_from_steps_with_prefills() -> None:
    policy, memory = started("bandit", 3)
    load = StepLoad(0, 9, 2, prefill_tokens=7)
    policy.observe(outcome([3, 3], [0, 0], load=load, target_time=1.0), memory)
    policy.observe(outcome([3, 0], [0, 0], target_time=1.0), memory)  # one joined in between
    assert not memory.sums.any()


def eq_1(alpha: float, k: int, a: float, b: float) -> float:
    """On-the-fly adaptation, eq. 1: expected tokens over the time of drafting and verifying."""
    return sum(alpha**j for j in range(k + 1)) / (k * a + b)


@pytest.mark.parametrize(("a", "b"), [(0.02, 1.0), (0.1, 1.0), (0.3, 1.0), (0.5, 1.0), (2.0, 1.0)])
@pytest.mark.parametrize("accepted", [0, 1, 2, 3, 6])
def test_window_opt_maximises_eq_1_with_what_it_observed(a: float, b: float, accepted: int) -> None:
    policy, memory = started("window_opt", 6)
    assert policy.draft_lens(batch(0), memory) == [6]  # no times seen yet
    for _ in range(400):
        step = outcome([6], [accepted], draft_time=6 * a, target_time=0.75 * b)
        policy.observe(step._replace(overhead_time=0.25 * b), memory)
    # eq. 2: accepted over accepted and rejected, capped; the prior has all but faded away.
    alpha = min(accepted / (accepted + (accepted < 6)), 0.98)
    (k,) = policy.draft_lens(batch(0), memory)
    best = max(eq_1(alpha, each, a, b) for each in range(7))
    assert eq_1(alpha, k, a, b) >= best * 0.98


def test_window_opt_tells_requests_apart_and_forgets() -> None:
    policy, memory = started("window_opt:window=4", 6)

    def see(first: int, second: int, times: int) -> list[int]:
        for _ in range(times):
            step = outcome([6, 6], [first, second], draft_time=0.6, target_time=1.0)
            policy.observe(step, memory)
        return policy.draft_lens(batch(0, 1), memory)

    lens = see(6, 0, 30)
    assert lens[0] > lens[1] + 2
    assert see(0, 6, 30) == lens[::-1]


def test_window_opt_learns_nothing_of_verifying_from_prompts() -> None:
    policy, memory = started("window_opt", 6)
    step = outcome([6], [3], draft_time=0.6, target_time=1.0)
    policy.observe(step, memory)
    asked = policy.draft_lens(batch(0), memory)
    load = StepLoad(100, 507, 1, prefill_tokens=500)
    policy.observe(outcome([0], [0], target_time=9.0, load=load), memory)
    assert policy.draft_lens(batch(0), memory) == asked


def test_window_opt_uses_the_times_of_the_last_step(serve: Serve, steps: Steps) -> None:
    # A pass costs a quarter of a verification, all drafts survive, alpha is capped at 0.98.
    table = [3] * 40
    run = serve("window_opt", [(0.0, 4, 30)], [table], speculative=("draft_model", 3))
    assert steps(run, "draft_tokens")[1:4] == [3, 3, 3]
    costs = {"drafts": {"draft_model": {"basis": "pass", "latency": {
        "kind": "linear", "alpha_ns": 0, "gamma_us": 0, "delta_ms": 1000}}}}  # fmt: skip
    run = serve("window_opt", [(0.0, 4, 30)], [table], speculative=("draft_model", 3), costs=costs)
    # A pass now costs four verifications: (1 + 0.98) / (4 + 1) < 1 / 1: one
    # draft, and it stops.
    assert steps(run, "draft_tokens")[:5] == [0, 3, 0, 0, 0]
