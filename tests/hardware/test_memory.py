"""What a GPU's memory is for, beside what servers of vLLM said of theirs at their start."""

import csv
from pathlib import Path

import pytest

from specsim.hardware import load_gpu, load_model
from specsim.profile import load_profile
from specsim.profile.profile import memory_plan
from tests.conftest import data_folder, needs

RUNS = data_folder() / "gpu-runs"

# "Model loading took ... GiB" in logs of vLLM 0.11 to 0.31: gpt-oss by blog.huikang.dev
# (2025-12-28) and myoceane.fr (2026-04-18), the others in public repositories.
LOADED_GIB = {
    "h100/gpt-oss-120b": 65.97,
    "h100/gpt-oss-20b": 13.72,
    "h100/qwen3-8b": 15.27,
    "h100/qwen3-8b-fp8": 8.8,
    "h100/llama-3.1-8b-kernels": 14.99,
    "rtx-pro-6000/qwen3-32b-tp2": 30.59,
}


@pytest.mark.parametrize("name", LOADED_GIB)
def test_weights_take_what_servers_have_loaded(name: str) -> None:
    assert load_profile(name).weights_gib == pytest.approx(LOADED_GIB[name], rel=0.01)


@pytest.mark.parametrize(
    ("file", "name", "words"),
    [
        ("a100_llama-3.1-8b_eagle3.csv", "a100-80gb/llama-3.1-8b", "weights fp16, kv fp16"),
        ("h100_qwen3-8b_eagle3.csv", "h100/qwen3-8b", "BF16"),
        ("h100_qwen3-8b_eagle3.csv", "h100/qwen3-8b-fp8", "FP8 dynamic weights"),
        ("h200_gpt-oss-120b_eagle3.csv", "h200/gpt-oss-120b", "MXFP4"),
    ],
)
@needs(RUNS)
def test_kv_blocks_are_as_many_as_servers_have_had(file: str, name: str, words: str) -> None:
    with Path(RUNS / file).open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["method"] == "none"]
    row = next(row for row in rows if row["quantisation"].startswith(words))
    count, _, unit = row["num_gpu_blocks"].partition(" ")
    measured = float(count) / (16 if unit == "tokens" else 1)
    profile = load_profile(name)
    share = float(row["gpu_memory_utilization"])
    model, gpu = load_model(profile.model), load_gpu(profile.gpu)
    plan = memory_plan(profile, model, gpu, [], gpu_memory_utilization=share)
    assert plan.num_blocks() == pytest.approx(measured, rel=0.04)


def test_gpus_that_exchange_set_more_aside() -> None:
    one, two = (load_profile(f"h200/gpt-oss-120b{size}") for size in ("", "-tp2"))
    assert two.reserved_gib == one.reserved_gib + 1
