"""Numbers that engines' own tests state of their controllers, fed to ours.

Each case names where it is stated: repository, file, commit, and the test or class there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from driving import batch, outcome, started, sure_drafts

from specsim.core.step import StepLoad

Cost = Callable[[StepLoad, Any], float]


# vLLM: schedule. vllm-project/vllm tests/v1/spec_decode/test_dynamic_sd.py at 015a47e.


@pytest.mark.parametrize(
    ("ranges", "longest", "k_of"),
    [
        pytest.param(
            [[1, 16, 3], [32, 128, 2], [256, 2048, 0]],
            3,
            {1: 3, 16: 3, 17: 3, 31: 3, 32: 2, 128: 2, 129: 2, 255: 2, 256: 0},
            id="uses_batch_size_schedule",
        ),
        pytest.param([[1, 256, 4]], 3, {1: 3, 256: 3}, id="clamps_k_to_runtime_max"),
        pytest.param(
            [[1, 16, 3], [64, 128, 2], [256, 4096, 0]],
            3,
            {4: 3, 64: 2, 256: 0, 16: 3},
            id="aggregate_budget",
        ),
        pytest.param([[1, 1, 4], [2, 2, 2]], 4, {2: 2}, id="v2_scheduler"),
    ],
)
def test_vllms_k_by_batch_size(ranges: list[list[int]], longest: int, k_of: dict[int, int]) -> None:
    policy, memory = started({"kind": "schedule", "ranges": ranges}, longest)
    assert {size: policy.draft_lens(batch(*range(size)), memory) for size in k_of} == k_of


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        ([[2, 16, 3]], "must start at 1"),
        ([[1, 16, 3], [16, 32, 2]], "overlaps"),
        ([[1, 16, -1]], "at least 0"),
        ([], "at least 1"),
    ],
)
def test_what_vllm_refuses_of_such_ranges(ranges: list[list[int]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        started({"kind": "schedule", "ranges": ranges}, 3)


# vLLM: adaptive_k. vllm-project/vllm tests/v1/spec_decode/test_adaptive_verification.py, tests of
# DFlashAdaptiveKPolicy, which is at b1171c8. Costs in ms: the drafter's, and by verified tokens.


def drafted_and_verified(draft: float, cheap: float, from_tokens: int, dear: float) -> Cost:
    """Return a cost of drafting any length, and of verifying, dearer from so many tokens on."""

    def step_time(load: StepLoad, draft_len: Any) -> float:
        verified = cheap if load.batched_tokens < from_tokens else dear
        return verified + (draft if np.max(draft_len) else 0.0)

    return step_time


NEVER = 1 << 30


@pytest.mark.parametrize(
    ("longest", "cost", "size", "k"),
    [
        pytest.param(3, (0.2, 1.0, NEVER, 0.0), 4, 3, id="graph_covered_verify_cost"),
        pytest.param(15, (100.0, 1.0, NEVER, 0.0), 1, 15, id="full_draft_for_serial_decode"),
        pytest.param(3, (0.5, 1.0, 33, 10.0), 32, 0, id="baseline_on_graph_miss"),
        pytest.param(15, (0.2, 1.0, NEVER, 0.0), 32, 15, id="before_rejections"),
    ],
)
def test_vllms_adaptive_k_at_first(
    longest: int, cost: tuple[float, float, int, float], size: int, k: int
) -> None:
    config = {"kind": "adaptive_k", "history_weight": 1.0}
    policy, memory = started(config, longest, drafted_and_verified(*cost))
    assert policy.draft_lens(batch(*range(size)), memory) == [k] * size


@pytest.mark.parametrize(
    ("longest", "cost", "size", "k"),
    [
        pytest.param(3, (0.2, 1.0, 5, 1.5), 4, 3, id="observed_accepted_prefix"),
        pytest.param(15, (0.2, 1.0, NEVER, 0.0), 32, 0, id="disables_after_rejections"),
        pytest.param(15, (100.0, 1.0, NEVER, 0.0), 8, 15, id="never_for_small_batches"),
    ],
)
def test_vllms_adaptive_k_once_all_is_rejected(
    longest: int, cost: tuple[float, float, int, float], size: int, k: int
) -> None:
    config = {"kind": "adaptive_k", "history_weight": 1.0}
    policy, memory = started(config, longest, drafted_and_verified(*cost))
    policy.observe(outcome([longest] * size, [0] * size), memory)
    assert policy.draft_lens(batch(*range(size)), memory) == [k] * size


def test_vllms_adaptive_k_holds_a_decision_for_two_steps_and_never_lengthens() -> None:
    config = {"kind": "adaptive_k", "history_weight": 1.0, "decision_interval": 2}
    policy, memory = started(config, 15, drafted_and_verified(0.2, 1.0, NEVER, 0.0))
    seen = []
    for size in (32, 32, 32, 31, 8):
        seen.append(policy.draft_lens(batch(*range(size)), memory)[0])
        policy.observe(outcome([15] * size, [0] * size), memory)
    # holds_decision_between_updates, is_monotonic_within_graph_batch_bucket
    assert seen == [15, 15, 0, 0, 0]


# vLLM: adaptive_verification. The same file at 00b1dbe.


def test_vllms_budget_stops_where_marginal_drafts_stop_paying_for_themselves() -> None:
    costs = [1.0, 1.0, 1.0, 1.0, 100.0, 100.0, 100.0]  # ms, by tokens of the step
    policy, memory = started("adaptive_verification", 2, lambda load, _: costs[load.batched_tokens])
    drafts = sure_drafts([0.1, 0.1], [0.9, 0.9])
    for _ in range(2):  # by confidences of the drafts before, from the second step on
        assert policy.verify_lens(batch(0, 1, drafts=4), drafts, memory) == [0, 1]


# SGLang: ema_tiers. sgl-project/sglang test/registered/unit/spec/test_adaptive_spec_params.py at
# 090dbcc, class TestAdaptiveStepSlot. Steps are accepted lengths of a batch, and the tier then.


class Slot(NamedTuple):
    """One of its tests: settings, what leads to where it begins, and what it states."""

    settings: dict[str, Any]
    lead: list[list[int]]
    stated: list[tuple[list[int], int]]


AT_ONCE = {"tiers": [1, 3, 7], "smoothing": 1.0, "warm_up": 0, "interval": 1}
SLOTS = {
    "update_respects_warmup_and_interval": Slot(
        {**AT_ONCE, "warm_up": 1, "interval": 2}, [], [([0, 0], 3), ([0, 0], 3), ([0, 0], 1)]
    ),
    "empty_batches_do_not_consume_warmup": Slot(
        {**AT_ONCE, "warm_up": 1}, [], [([], 3), ([0, 0], 3), ([0, 0], 1)]
    ),
    "update_scales_up_across_candidates": Slot(
        AT_ONCE, [[0, 0]], [([1, 1], 3), ([3, 3], 7), ([0, 0], 1)]
    ),
    "exact_rise_threshold_does_not_upshift": Slot(AT_ONCE, [], [([2, 3], 3), ([3, 3], 7)]),
    "exact_drop_threshold_does_downshift": Slot(
        {**AT_ONCE, "down_hysteresis": 0.0, "up_hysteresis": 0.5}, [], [([0, 1], 1)]
    ),
    "hysteresis_can_prevent_premature_upshift": Slot(
        {**AT_ONCE, "up_hysteresis": 0.75}, [], [([3, 3], 3), ([4, 4], 7)]
    ),
    "down_hysteresis_can_prevent_premature_downshift": Slot(
        {**AT_ONCE, "down_hysteresis": -0.75}, [[4, 4]], [([2, 2], 7), ([1, 1], 3)]
    ),
    "multi_batch_sequence_can_ramp_up_then_back_down": Slot(
        {**AT_ONCE, "smoothing": 0.5, "down_hysteresis": 0.0},
        [],
        [([4, 4], 7), ([0, 0], 3), ([0, 0], 3), ([0, 0], 1)],
    ),
    "zero_step_mixed_slot_drops_probes_and_rechecks": Slot(
        {**AT_ONCE, "tiers": [0, 3], "down_hysteresis": 0.0},
        [],
        [([0, 0], 0), ([3, 3], 3), ([0, 0], 0)],
    ),
}


@pytest.mark.parametrize("name", SLOTS)
def test_sglangs_tiers_by_smoothed_accepted_length(name: str) -> None:
    settings, lead, stated = SLOTS[name]
    policy, memory = started({"kind": "ema_tiers", **settings}, 7)
    tiers = []
    for accepted in [*lead, *(lens for lens, _ in stated)]:
        k = policy.draft_lens(batch(0), memory)
        policy.observe(outcome([k] * len(accepted), accepted), memory)
        tiers.append(policy.draft_lens(batch(0), memory))
    assert tiers[len(lead) :] == [tier for _, tier in stated]


@pytest.mark.parametrize(
    ("tiers", "start", "k_of"),
    [
        pytest.param([1, 3, 7], 2, {1: 3}, id="initial_steps_snaps_to_middle_when_missing"),
        pytest.param({1: [1, 5], 32: [1, 2]}, 5, {1: 5, 31: 5, 32: 2}, id="config_file"),
        pytest.param(
            {1: [1, 5], 8: [1, 3, 7]}, 7, {1: 5, 8: 7}, id="launch_flag_not_injected_into_slots"
        ),
        pytest.param(None, 3, {1: 3, 7: 3, 8: 3, 31: 3, 32: 1, 1000: 0}, id="floor_slot"),
    ],
)
def test_sglangs_tiers_begin_where_they_are_told_or_in_the_middle(
    tiers: Any, start: int, k_of: dict[int, int]
) -> None:
    config = {"kind": "ema_tiers", "k_start": start, **({"tiers": tiers} if tiers else {})}
    policy, memory = started(config, 7)
    assert {size: policy.draft_lens(batch(*range(size)), memory) for size in k_of} == k_of


# SGLang: throughput_tiers. The same repository, test_throughput_aware_controller.py at 1688f2a.

TWO = {"kind": "throughput_tiers", "window": 2, "interval": 2, "tiers": {1: [1, 3], 8: [1]}}


@pytest.mark.parametrize(
    ("cost", "accepted", "seen"),
    [
        pytest.param({1: 1.0, 3: 10.0}, [3, 3], [3, 3, 1], id="switches_at_the_next_decode"),
        pytest.param({1: 2 / 1.05, 3: 4.0}, [3], [3, 3, 3], id="hysteresis_keeps_current_step"),
    ],
)
def test_sglangs_tiers_by_throughput(
    cost: dict[int, float], accepted: list[int], seen: list[int]
) -> None:
    policy, memory = started(TWO, 3, lambda load, k: cost.get(int(np.max(k)), 0.0))
    lens = []
    for _ in seen:
        lens += policy.draft_lens(batch(0), memory)
        policy.observe(outcome([3] * len(accepted), accepted), memory)
    assert lens == seen


def test_sglangs_tiers_by_throughput_follow_the_size_before_anything_is_known() -> None:
    policy, memory = started(TWO, 3)
    assert policy.draft_lens(batch(0), memory) == [3]
    assert policy.draft_lens(batch(*range(8)), memory) == [1] * 8


# TensorRT-LLM: acceptance_gate. NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py at 41080dc,
# draft_len_schedule; tests/unittest/_torch/speculative/test_spec_gate.py at 105bd2b.


def test_tensorrt_llms_schedule_by_batch_size() -> None:
    config = {"kind": "acceptance_gate", "draft_len_schedule": {4: 4, 8: 2, 32: 1}}
    policy, memory = started(config, 4)
    stated = {1: 4, 4: 4, 5: 2, 8: 2, 9: 1, 32: 1, 33: 0}
    for size, k in stated.items():
        assert policy.draft_lens(batch(*range(size)), memory) == [k] * size


@pytest.mark.parametrize(
    ("threshold", "decoded", "shuts"),
    [
        pytest.param(0.5, [2.0, 2.0, 2.0], [False] * 3, id="enabled_when_above_threshold"),
        pytest.param(0.7, [1.1, 1.2, 1.3, 4.0, 4.0], [False, False, True, True, True],
                     id="disables_and_stays_disabled"),
        pytest.param(0.8, [2.0, 2.0, 2.0, 1.2], [False] * 3 + [True],
                     id="rolling_window_and_disable_on_drop"),
        pytest.param(0.6, [1.2, 1.2, 1.2], [False, False, True], id="e2e"),
    ],
)  # fmt: skip
def test_tensorrt_llms_gate(threshold: float, decoded: list[float], shuts: list[bool]) -> None:
    config = {"kind": "acceptance_gate", "acceptance_window": 3,
              "acceptance_length_threshold": threshold}  # fmt: skip
    policy, memory = started(config, 4)
    for request, (tokens, is_shut) in enumerate(zip(decoded, shuts, strict=True)):
        accepted = round(10 * (tokens - 1.0))  # of ten steps that decode so many on average
        for step in range(10):
            lens = policy.draft_lens(batch(request), memory)
            own = accepted // 10 + (step < accepted % 10)
            policy.observe(outcome(lens, [min(own, lens[0])], requests=[request]), memory)
        after = policy.draft_lens(batch(request + 1), memory)  # it is missed in the next step
        assert (after == [0]) == is_shut


# TensorRT-LLM: acceptance_rate_gate. The same test file since pull request 12905, and
# tensorrt_llm/_torch/pyexecutor/py_executor.py _update_batch_acceptance_rate.


@pytest.mark.parametrize(
    ("threshold", "accepted", "shuts"),
    [
        pytest.param(0.5, [8, 8, 8], [False] * 3, id="enabled_when_above_threshold"),
        pytest.param(0.3, [1, 2, 3, 10, 10], [False, False, True, True, True],
                     id="disables_and_stays_disabled"),
        pytest.param(0.7, [9, 9, 9, 2], [False] * 3 + [True],
                     id="rolling_window_and_disable_on_drop"),
        pytest.param(0.6, [2, 2, 2], [False, False, True], id="e2e"),
    ],
)  # fmt: skip
def test_tensorrt_llms_gate_by_share(
    threshold: float, accepted: list[int], shuts: list[bool]
) -> None:
    config = {"kind": "acceptance_rate_gate", "acceptance_rate_window_size": 3,
              "acceptance_rate_threshold": threshold}  # fmt: skip
    policy, memory = started(config, 5)
    for tenths, is_shut in zip(accepted, shuts, strict=True):
        # Ten drafts in two sequences; one that has just come, without drafts, is no part of it.
        policy.observe(outcome([5, 5, 0], [max(tenths - 5, 0), min(tenths, 5), 0]), memory)
        assert policy.draft_lens(batch(0, 1, 2), memory) == [0 if is_shut else 5] * 3
        policy.observe(outcome([0, 0, 0], [0, 0, 0]), memory)  # says nothing
        assert (policy.drops(batch(0), memory) is not None) == is_shut
