"""The roofline: SSSD's table 1, its free budget, and a sum over operators done by hand."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from conftest import Run

from specsim.core.errors import ProfileError
from specsim.core.step import StepLoad
from specsim.hardware import load_gpu, load_model
from specsim.hardware.specs import model_names, models_in
from specsim.latency.roofline import (
    Operator,
    Roofline,
    attention_operator,
    free_budget,
    matrix_operators,
)
from specsim.profile import load_profile
from specsim.profile.from_roofline import doubt_of_head

H, H_MLP = 4096, 11008  # Llama-2-7B
IDEAL: dict[str, Any] = {"compute_efficiency": 1, "memory_efficiency": 1}


def numbers(operator: Operator, num_tokens: float) -> float:
    """Return how many numbers move to or from memory in a step of so many tokens."""
    read_share = 1 - operator.missed_share**num_tokens
    return operator.weights * read_share + operator.activations * num_tokens


def intensity(operator: Operator, num_tokens: float) -> float:
    """Return operations per number moved."""
    return operator.flops_per_token * num_tokens / numbers(operator, num_tokens)


@pytest.mark.parametrize("tokens", [1, 8, 54 * 8, 4096])
def test_intensities_are_those_of_sssd(tokens: int) -> None:
    """SSSD, table 1: FLOPs per number moved."""
    query = Operator.matmul("q", H, H)
    assert intensity(query, tokens) == pytest.approx(1 / (1 / H + 1 / (2 * tokens)))
    # The paper counts the MLP as one operator whose intermediate state never leaves the chip.
    mlp = Operator("mlp", 4.0 * H * H_MLP, 2 * H * H_MLP, 2 * H)
    assert intensity(mlp, tokens) == pytest.approx(2 / (1 / H_MLP + 1 / tokens))


@pytest.mark.parametrize(("query_len", "context_len"), [(1, 100), (8, 1000), (54, 1000)])
def test_intensity_of_attention_is_that_of_sssd(query_len: int, context_len: int) -> None:
    ratio = query_len / context_len
    expected = 2 * query_len * (1 + ratio) / (1 + 2 * ratio)
    attention = attention_operator(load_model("llama-2-7b"))
    flops = attention.flops_per_pair * query_len * (query_len + context_len)
    read = attention.numbers_per_context_token * context_len
    moved = read + attention.numbers_per_token * query_len
    assert flops / moved == pytest.approx(expected)  # every query token sees all keys


def test_free_budget_is_that_of_sssd() -> None:
    """SSSD prints 435 (s_q = 54 at batch size 8) for 280 TFLOP/s and 0.8 TB/s.

    Its equation gives 422 with these numbers as printed, 3 % less, and 434 if the 0.8 TB/s are 800
    GB/s of which 1,024 make a TB.
    """
    query, gpu = Operator.matmul("q", H, H), load_gpu("ascend-910b4")
    assert gpu.memory_gb_per_s == 800
    peak = gpu.peak_tflops["float16"] * 1e12
    as_printed = free_budget([query], peak, 800e9 / 2)
    assert as_printed == pytest.approx(422.1, abs=0.1)
    assert as_printed == pytest.approx(435, rel=0.031)
    assert free_budget([query], peak, 800 / 1024 * 1e12 / 2) == pytest.approx(435, abs=1)


def test_at_the_free_budget_computing_takes_as_long_as_moving() -> None:
    model = Roofline(model="llama-2-7b", gpu="ascend-910b4", **IDEAL)
    budget = model.free_budget()
    assert budget is not None
    operators = matrix_operators(load_model("llama-2-7b"))
    computing = sum(each.runs * each.flops_per_token * budget for each in operators) / 280e12
    moving = sum(each.runs * numbers(each, budget) for each in operators) * 2 / 0.8e12
    assert computing == pytest.approx(moving)
    assert 350 < budget < 422  # without activations, and of the smallest matrix


def test_a_matrix_whose_tokens_cost_more_than_its_weights_has_no_budget() -> None:
    assert free_budget([Operator.matmul("tiny", 8, 8)], 280e12, 0.4e12) is None


@pytest.mark.parametrize("tokens", [1, 16, 300, 4096])
def test_a_step_is_the_sum_of_its_operators(tokens: int) -> None:
    peak, bandwidth, context = 312e12 * 0.7, 2039e9 * 0.8, 5000
    h, width, heads, d, layers = 4096, 14336, 32, 128, 32
    sizes = [(h, (heads + 16) * d, layers), (heads * d, h, layers), (h, 2 * width, layers)]
    sizes += [(width, h, layers), (h, 128256, 1)]
    total = sum(
        count * max(2 * tokens * a * b / peak, 2 * (a * b + tokens * (a + b)) / bandwidth)
        for a, b, count in sizes
    )
    pairs = tokens * context / tokens + tokens  # one token per sequence, which sees itself
    numbers = 2 * 8 * d * context + (2 * 8 + 2 * heads) * d * tokens
    total += layers * max(4 * heads * d * pairs / peak, 2 * numbers / bandwidth)
    model = Roofline(model="llama-3.1-8b", gpu="a100-80gb")
    assert model.forward_time(StepLoad(context, tokens, tokens)) == pytest.approx(total)


def test_a_prompt_attends_causally_and_is_sampled_once() -> None:
    model = Roofline(model="llama-3.1-8b", gpu="h100")
    one, several = StepLoad(0, 8192, 1, 8192), StepLoad(0, 8192, 16, 8192)
    assert model.forward_time(one) > model.forward_time(several)
    flops = 2 * 8192 * 6.98e9 + 32 * 4 * 32 * 128 * 8192**2 / 2  # all weights but the vocabulary's
    assert model.forward_time(one) == pytest.approx(flops / (0.7 * 989.5e12), rel=0.01)
    sampled = model.forward_time(StepLoad(0, 8192, 1, 0)) - model.forward_time(one)
    head = 2 * 8191 * 4096 * 128256 / (0.7 * 989.5e12)
    assert sampled == pytest.approx(head, rel=0.05)


def test_experts_are_read_as_often_as_tokens_find_new_ones() -> None:
    up = next(each for each in matrix_operators(load_model("mixtral-8x7b")) if each.name == "up")
    one_expert = 2 * 4096 * 14336
    assert numbers(up, 1) == pytest.approx(2 * one_expert + up.activations)
    read = (numbers(up, 4) - 4 * up.activations) / one_expert
    assert read == pytest.approx(8 * (1 - 0.75**4))
    assert up.flops_per_token == 2 * 2 * one_expert
    model = Roofline(model="qwen3-30b-a3b", gpu="h100", **IDEAL)
    times = [model.forward_time(StepLoad(0, size, size)) for size in (1, 2, 100)]
    assert 1.5 < times[1] / times[0] < 2  # a second token reads nearly as many experts again
    assert times[2] == pytest.approx(2 * 30.2e9 / 3.35e12, rel=0.05)  # all of them, memory-bound


def test_tensor_parallelism_shards_and_exchanges() -> None:
    load = StepLoad(64 * 1000, 64, 64)
    one = Roofline(model="llama-3.1-8b", gpu="h100").forward_time(load)
    free = Roofline(
        model="llama-3.1-8b", gpu="h100", tensor_parallel_size=2, all_reduce_us=0, hop_us=0
    ).forward_time(load)
    exchanged = 2 * 32 * 64 * 4096 * 2 / (450e9 * 0.8)  # 2 (N - 1) / N = 1 vector each
    # Activations of the hidden size are not sharded, hence the tolerance.
    assert free - exchanged == pytest.approx(one / 2, rel=0.02)
    two = Roofline(model="llama-3.1-8b", gpu="h100", tensor_parallel_size=2).forward_time(load)
    assert two - free == pytest.approx(2 * 32 * (6.6e-6 + 2 * 0.6e-6))


def test_arrays_in_place_of_numbers() -> None:
    batched, context = np.array([4, 100, 5000]), np.array([10.0, 1e4, 1e6])
    for name in ("llama-3.1-8b", "mixtral-8x7b"):
        model = Roofline(model=name, gpu="h200")
        pairs = zip(context, batched, strict=True)
        singly = [model.forward_time(StepLoad(int(c), int(n), 4, 2)) for c, n in pairs]
        together = model.forward_time(StepLoad(context, batched, 4, 2))
        assert together == pytest.approx(np.array(singly))


def test_fixed_time_is_added() -> None:
    load = StepLoad(100, 4, 4)
    bare = Roofline(model="llama-2-7b", gpu="l4").forward_time(load)
    fixed = Roofline(model="llama-2-7b", gpu="l4", fixed_ms=3).forward_time(load)
    assert fixed - bare == pytest.approx(3e-3)


def test_a_gpu_without_numbers_is_said() -> None:
    with pytest.raises((ProfileError, ValueError), match="no peak_tflops for bfloat16"):
        Roofline(model="llama-3.1-8b", gpu="ascend-910b4")


# The figures of profiles/README.md: the largest and smallest deviation from the measured profile.
MEASURED = [
    ("decodes without drafts", [StepLoad(450 * b, b, b) for b in (1, 8, 16, 32, 64)], -0.15, -0.05),
    ("prefills of 2,048 and more", [StepLoad(0, n, n // 170, n) for n in (2048, 4096, 8192, 10880)],
     -0.14, -0.05),
    ("k = 5 at 8 to 64 sequences", [StepLoad(450 * b, 6 * b, b) for b in (8, 16, 32, 64)],
     -0.37, -0.16),
]  # fmt: skip


@pytest.mark.parametrize(("what", "loads", "low", "high"), MEASURED)
def test_distance_from_the_measured_profile(
    what: str, loads: list[StepLoad], low: float, high: float
) -> None:
    measured = load_profile("h100/llama-3.1-8b").target
    model = Roofline(model="llama-3.1-8b", gpu="h100")
    off = [model.forward_time(load) / measured.forward_time(load) - 1 for load in loads]
    assert min(off) == pytest.approx(low, abs=0.01), what
    assert max(off) == pytest.approx(high, abs=0.01), what


NAMES = model_names()
HEADS = [name for name in NAMES if load_model(name).is_head]


@pytest.mark.parametrize("head", HEADS)
def test_a_head_belongs_to_the_model_of_its_name_alone(head: str) -> None:
    """A model of the same width takes any head; the names tell."""
    method = "eagle3"
    named = models_in(head)
    own = next(each for each in NAMES if each in head and each in named)
    assert doubt_of_head(method, head, own) is None
    assert doubt_of_head("draft_model", head, "bloom-560m") is None
    others = [name for name in NAMES if name not in head and name not in HEADS]
    for other in Random(head).sample(others, 6):
        doubt = doubt_of_head(method, head, other)
        assert doubt is not None
        assert own in doubt
        assert other in doubt


@pytest.mark.parametrize(
    ("head", "target", "is_doubted"),
    [
        ("heads/Qwen3-8B_eagle3/config.json", "llama-3.1-8b", True),
        ("heads/Qwen3-8B_eagle3/config.json", "models/Qwen3-8B/config.json", False),
        (
            "heads/Qwen3-8B_eagle3/config.json",
            "models/deepseek-r1-0528-qwen3-8b/config.json",
            False,
        ),
        ("heads/mine/config.json", "llama-3.1-8b", False),  # nothing tells
        ("eagle3-qwen3-8b", "models/mine/config.json", False),
    ],
)
def test_folders_tell_too(head: str, target: str, is_doubted: bool) -> None:
    assert (doubt_of_head("eagle3", head, target) is not None) == is_doubted


@pytest.mark.parametrize("name", ["mine", "mine/config.json"])
def test_a_profile_for_a_folder_is_read_from_wherever_it_lies(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "elsewhere").mkdir()
    shape = load_model("qwen3-8b")
    (tmp_path / "mine" / "config.json").write_text(shape.model_dump_json())
    args = ("--model", name, "--gpu", "h100", "--draft", f"draft_model={name}", "--out", "p.yaml")
    assert cli("profile", "roofline", *args)[0] == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    profile = load_profile(tmp_path / "p.yaml")
    drafter: Any = profile.drafts["draft_model"].latency
    assert load_model(profile.model) == load_model(drafter.model) == shape


def test_building_with_a_head_of_another_model_warns(cli: Run) -> None:
    args = ("profile", "roofline", "--model", "llama-3.1-8b", "--gpu", "h100", "--out", "p.yaml")
    code, _, err = cli(*args, "--draft", "eagle3=eagle3-qwen3-8b")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("warning: --draft eagle3=eagle3-qwen3-8b: by its name")
    assert cli(*args, "--draft", "eagle3=eagle3-llama-3.1-8b")[2] == ""
