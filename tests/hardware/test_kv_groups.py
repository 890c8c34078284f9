"""KV cache groups: what vLLM makes of a model's layers, and how many blocks fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Run, tiny_config

from specsim.core.errors import CapacityError, ConfigError, ProfileError
from specsim.core.settings import validated
from specsim.hardware import GIB, KVLayers, ModelShape, kv_layout, load_model
from specsim.hardware.kv_groups import as_full_attention
from specsim.profile import load_profile
from specsim.profile.from_roofline import RooflineOptions, RooflineProfile
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment

GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}
GEMMA = {**GPT_OSS, "num_hidden_layers": 62, "sliding_window": 1024, "layer_types": None}
LLAMA_4 = {
    **GPT_OSS,
    "model_type": "llama4_text",
    "num_hidden_layers": 48,
    "sliding_window": None,
    "attention_chunk_size": 8192,
    "layer_types": None,
}


def full(layers: int, width: int) -> KVLayers:
    return KVLayers(kind="full_attention", layers=layers, bytes_per_token=width)


def sliding(layers: int, window: int, width: int) -> KVLayers:
    return KVLayers(kind="sliding_window", layers=layers, window=window, bytes_per_token=width)


def chunked(layers: int, chunk: int, width: int) -> KVLayers:
    return KVLayers(
        kind="chunked_local_attention", layers=layers, chunk=chunk, bytes_per_token=width
    )


@pytest.mark.parametrize(
    ("layers", "sizes", "num_bytes", "num_blocks", "per_request", "concurrency"),
    [
        ([sliding(12, 128, 2048), full(12, 2048)], [12, 12], 393_216, 109_226, 3_081, 35.45),
        (
            [sliding(12, 128, 2048), full(12, 2048), full(1, 2048)],
            [12, 13], 425_984, 100_824, 3_081, 32.72,
        ),
        ([sliding(18, 128, 2048), full(18, 2048)], [18, 18], 589_824, 72_817, 3_081, 23.63),
        ([sliding(23, 4096, 8192), full(23, 8192)], [23, 23], 3_014_656, 14_246, 3_329, 4.28),
        (
            [sliding(52, 1024, 8192), full(10, 8192)],
            [9, 9, 9, 9, 8, 8, 10], 1_310_720, 32_768, 8_582, 3.82,
        ),
        (
            [sliding(50, 1024, 16384), full(10, 8192)],
            [10] * 6, 2_621_440, 16_384, 6_469, 2.53,
        ),
        ([chunked(36, 8192, 4096), full(12, 4096)], [12] * 4, 786_432, 54_613, 6_656, 8.21),
        ([sliding(32, 4096, 4096)], [32], 2_097_152, 20_480, 1_281, 15.99),
    ],
)  # fmt: skip
def test_groups_are_as_vllm_forms_them(
    layers: list[KVLayers],
    sizes: list[int],
    num_bytes: int,
    num_blocks: int,
    per_request: int,
    concurrency: float,
) -> None:
    """Computed by vLLM 0.32.0 for 40 GiB and 8,192 batched tokens, asynchronous."""
    layout = kv_layout(layers, 16)
    assert [group.num_layers for group in layout.groups] == sizes
    assert layout.block_bytes == num_bytes
    blocks = int(40 * GIB // layout.block_bytes)
    assert blocks == num_blocks
    assert layout.most_blocks(32_768, 16_384) == per_request
    assert blocks / per_request == pytest.approx(concurrency, abs=0.01)
    assert layout.capacity(blocks, 32_768, 16_384) == blocks * 32_768 // per_request


def test_narrow_layers_get_larger_blocks_or_padding() -> None:
    layout = kv_layout([sliding(50, 1024, 16384), full(10, 8192)], 16)
    assert [group.block_size for group in layout.groups] == [16] * 5 + [32]
    assert (layout.common_block_size, layout.hash_block_size) == (32, 16)
    padded = kv_layout([sliding(4, 64, 4096), full(4, 3072)], 16)
    assert [group.block_size for group in padded.groups] == [16, 16]
    assert padded.block_bytes == 4 * 4096 * 16


def test_layers_that_attend_alike_share_a_group_whatever_their_widths() -> None:
    layout = kv_layout([full(30, 4096), full(2, 1024)], 16)
    assert [group.num_layers for group in layout.groups] == [32]
    assert layout.block_bytes == 16 * (30 * 4096 + 2 * 1024)


@pytest.mark.parametrize(
    ("config", "counts"),
    [
        (GPT_OSS, {"sliding_window": 18, "full_attention": 18}),
        ({**GEMMA, "model_type": "gemma3_text"}, {"sliding_window": 52, "full_attention": 10}),
        ({**GEMMA, "model_type": "gemma2"}, {"sliding_window": 31, "full_attention": 31}),
        ({**GEMMA, "model_type": "mistral"}, {"sliding_window": 62}),
        ({**GEMMA, "model_type": "qwen2", "use_sliding_window": False}, {"full_attention": 62}),
        (
            {**GEMMA, "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 40},
            {"full_attention": 40, "sliding_window": 22},
        ),
        ({**GEMMA, "sliding_window": None}, {"full_attention": 62}),
        (LLAMA_4, {"chunked_local_attention": 36, "full_attention": 12}),
    ],
)
def test_a_config_says_which_layers_have_windows(
    config: dict[str, Any], counts: dict[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    layers = load_model(str(path)).kv_layers(2048 * 24)
    assert {each.kind: each.layers for each in layers} == counts
    spans = {each.window or each.chunk for each in layers if each.kind != "full_attention"}
    given = config["sliding_window"] or config.get("attention_chunk_size")
    assert spans <= {given}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layer_types": ["full_attention"]},
            "names 1 layers of num_hidden_layers = 36; name each",
        ),
        ({"layer_types": ["convolution"] * 36}, "layer_types.0 = 'convolution'"),
        ({"layer_types": ["mamba"] * 36}, "has layers with a state, but linear_... fields lack"),
        ({"layer_types": ["none"] * 36}, "no layer attends to anything"),
        (
            {"sliding_window": None, "attention_chunk_size": 64},
            "layer_types has 'sliding_attention', but sliding_window is missing; add it",
        ),
    ],
)
def test_a_shape_with_odd_layers_is_a_clear_error(changes: dict[str, Any], message: str) -> None:
    shape = {name: value for name, value in GPT_OSS.items() if name != "model_type"}
    with pytest.raises(ProfileError, match=message), validated("shape", ProfileError):
        ModelShape.model_validate({**shape, "name": "gpt", "source": "a test", **changes})


@pytest.fixture
def gpt_oss(tmp_path: Path) -> str:
    """The path of a profile of gpt-oss-120b on one H200, its step times made up."""
    (tmp_path / "gpt-oss-120b.json").write_text(json.dumps(GPT_OSS))
    profile = {
        "model": "./gpt-oss-120b.json",
        "gpu": "h200",
        "provenance": {"engine": "none", "source": "a test", "date": "2026-01-01"},
        "target": {"kind": "linear", "alpha_ns": 30.0, "gamma_us": 40.0, "delta_ms": 4.0},
        "drafts": {
            "eagle3": {"step_ms": 1.0, "weights_gib": 1.0, "kv_bytes_per_token": 2048},
            "mtp": {"step_ms": 1.0, "kv_bytes_per_token": 2048},
        },
        "valid_range": {"context_tokens": 10**7, "batched_tokens": 10**5},
        "weights_gib": 65.67,
        "reserved_gib": 3.2,
    }
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(profile))
    return str(path)


Deployed = Callable[..., Deployment]


@pytest.fixture
def deployed(gpt_oss: str) -> Deployed:
    """Return what resolves an engine of gpt-oss-120b, ``deployed(max_model_len=10240)``."""

    def resolve(**engine: Any) -> Deployment:
        given = {"max_model_len": 10240, "gpu_memory_utilization": 0.9, **engine}
        return Deployment.of(Experiment.parse(tiny_config(profile=gpt_oss, engine=given), "a test"))

    return resolve


def test_a_profile_of_a_model_with_windows_has_its_groups(deployed: Deployed) -> None:
    deployment = deployed()
    layout = deployment.setup.kv
    assert [(group.kind, group.span_len) for group in layout.groups] == [
        ("sliding_window", 128),
        ("full_attention", 0),
    ]
    assert deployment.memory.block_bytes == 18 * 2048 * 16
    left = deployment.memory.usable_bytes - (65.67 + 3.2) * GIB
    assert deployment.engine.num_gpu_blocks == int(left // 589_824)
    # Measured: 103,690 blocks; reserved_gib is such that it comes near.
    assert deployment.engine.num_gpu_blocks == pytest.approx(103_690, rel=0.001)


def test_a_drafter_makes_every_block_larger(deployed: Deployed) -> None:
    speculative = {"method": "eagle3", "num_speculative_tokens": 1}
    memory = deployed(speculative_config=speculative).memory
    assert (memory.block_bytes, memory.draft_block_bytes) == (589_824, 32_768)
    left = memory.usable_bytes - (65.67 + 3.2 + 1.0) * GIB
    assert memory.num_blocks() == int(left // 622_592)
    # Measured: 93,687 blocks. So the head and its CUDA graphs took 2.64 GiB of what was there.
    assert pytest.approx(2.64, abs=0.01) == (103_690 * 589_824 - 93_687 * 622_592) / GIB


def test_without_the_hybrid_manager_all_layers_keep_all_tokens(deployed: Deployed) -> None:
    deployment = deployed(disable_hybrid_kv_cache_manager=True)
    assert [group.kind for group in deployment.setup.kv.groups] == ["full_attention"]
    assert deployment.memory.block_bytes == 36 * 2048 * 16
    v0 = deployed(scheduler="prefill_first", max_num_seqs=64)
    assert v0.memory.block_bytes == deployment.memory.block_bytes


@pytest.mark.parametrize(
    ("version", "method", "own", "drops"),
    [
        ("0.30", "mtp", {}, [1, 1]),
        ("0.32", "eagle3", {}, [1, 1]),
        ("0.32", "mtp", {}, [0, 1]),
        ("0.33", "eagle3", {}, [0, 0]),
        ("0.33", "eagle3", {"disable_lookahead_block_hashes": True}, [0, 1]),
    ],
)
def test_which_groups_drop_the_last_block_of_a_hit(
    deployed: Deployed, version: str, method: str, own: dict[str, Any], drops: list[int]
) -> None:
    speculative = {"method": method, "num_speculative_tokens": 1} | own
    setup = deployed(vllm_version=version, speculative_config=speculative).setup
    assert setup.table().groups["drops"].tolist() == drops


def test_groups_can_be_given(deployed: Deployed) -> None:
    layers = [
        {"kind": "chunked_local_attention", "chunk": 4096, "layers": 27},
        {"kind": "full_attention", "layers": 9},
    ]
    deployment = deployed(kv_groups=layers)
    assert [group.num_layers for group in deployment.setup.kv.groups] == [9] * 4
    assert deployment.memory.block_bytes == 9 * 2048 * 16
    speculative = {"method": "eagle3", "num_speculative_tokens": 1}
    with_eagle = deployed(kv_groups=layers, speculative_config=speculative)
    assert not with_eagle.setup.kv.is_hybrid  # vLLM combines no chunks with EAGLE


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"kv_groups": []}, r"engine.kv_groups = \[\]: .*at least 1 item"),
        (
            {"kv_groups": [{"kind": "sliding_window", "layers": 2}]},
            "engine.kv_groups.0: window is missing: layers of kind 'sliding_window'.* give its",
        ),
        (
            {"kv_groups": [{"kind": "full_attention", "layers": 2, "chunk": 4}]},
            "engine.kv_groups.0: chunk is given.* and these are of kind 'full_attention'; leave",
        ),
        ({"kv_groups": [{"kind": "full", "layers": 2}]}, "kv_groups.0.kind = 'full'"),
        (
            {
                "scheduler": "prefill_first",
                "kv_groups": [{"kind": "sliding_window", "window": 8, "layers": 2}],
            },
            "kv_groups: prefill_first .* leave windows, chunks and states out",
        ),
        ({"prefix_cache_retention_interval": 24}, "= 24 must be a multiple of 16"),
        (
            {"prefix_cache_retention_interval": 64, "disable_hybrid_kv_cache_manager": True},
            "= 64: no layer has a sliding window or a state; leave it out",
        ),
        (
            {
                "kv_groups": [
                    {"kind": "chunked_local_attention", "chunk": 64, "layers": 2},
                    {"kind": "full_attention", "layers": 2, "bytes_per_token": 4096},
                ]
            },
            "blocks of 16 and 32 tokens, for which vLLM has no prefix caching; set enable_prefix",
        ),
        (
            {
                "kv_groups": [
                    {"kind": "sliding_window", "window": 64, "layers": 300},
                    {"kind": "full_attention", "layers": 1},
                ]
            },
            "301 groups follow from them, more than 256; set disable_hybrid",
        ),
        (
            {"num_gpu_blocks": 1000},
            "num_gpu_blocks = 1000 are too few for one request of max_model_len = 10240, which "
            "takes 1281 besides the null block; lower",
        ),
    ],
)
def test_groups_that_make_no_sense_are_clear_errors(
    engine: dict[str, Any], message: str, deployed: Deployed
) -> None:
    with pytest.raises((ConfigError, CapacityError), match=message):
        deployed(**engine)


def test_a_run_with_windows_keeps_all_invariants(gpt_oss: str, cli: Run, tmp_path: Path) -> None:
    config = tiny_config(
        profile=gpt_oss,
        engine={
            "num_gpu_blocks": 90,
            "max_model_len": 480,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3},
        },
    )
    path = tmp_path / "windows.yaml"
    path.write_text(yaml.safe_dump(config))
    assert cli("run", path, "--check", "--out", tmp_path / "out")[0] == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["completed"] == 30
    assert cli("profile", "show", gpt_oss)[0] == 0
    assert load_profile(gpt_oss).model.endswith("gpt-oss-120b.json")


def test_layers_of_two_widths_share_blocks_as_in_vllm() -> None:
    """Gemma-4-31B; vLLM 0.32.0 makes these groups, and a server logged these tokens."""
    shape = load_model("gemma-4-31b")
    layers = shape.kv_layers(shape.kv_bytes_per_token_and_gpu(1))
    assert [each.bytes_per_token for each in layers] == [16384, 8192]
    layout = kv_layout(layers, 16)
    groups = [(group.kind, group.block_size, group.num_layers) for group in layout.groups]
    assert groups == [("sliding_window", 16, 10)] * 5 + [("full_attention", 32, 10)]
    assert layout.block_bytes == 10 * 16 * 16384
    # 50.1 GB for the cache: what 0.9 of an H100 NVL leaves beside 34.8 GiB.
    assert layout.capacity(20_026, 34_816, 2 * 8_192) == 106_723
    # Of 4 key-value heads each of 8 GPUs has one, of 16 two; 8-bit entries are half as long.
    halves = shape.kv_layers(shape.kv_bytes_per_token_and_gpu(8) / 2, 8)
    assert [each.bytes_per_token for each in halves] == [1024, 1024]


@pytest.mark.parametrize(
    ("name", "windows", "in_block"), [("flash", (22, 21), 1_002_240), ("pro", (31, 30), 1_435_968)]
)
def test_caches_of_deepseek_v4_are_packed_as_in_vllm(
    name: str, windows: tuple[int, int], in_block: int
) -> None:
    """Printed by vLLM 0.33.0 v1/core/kv_cache_planning.py _get_packed_kv_cache_groups."""
    model = load_model(f"deepseek-v4-{name}")
    layout = kv_layout(model.kv_layers(model.kv_bytes_per_token_and_gpu(8), 8), 16)
    entries, *states, first, second = layout.groups
    assert (entries.kind, entries.block_size) == ("full_attention", 256)
    assert sorted((each.block_size, each.span_len) for each in states) == [(4, 8), (8, 128)]
    assert (first.num_layers, second.num_layers) == windows
    assert {(each.block_size, each.span_len, each.bucket) for each in (first, second)} == {
        (64, 128, 3)
    }
    assert layout.block_bytes == in_block
    with pytest.raises(ConfigError, match=r"blocks have their own sizes .* leave it out"):
        as_full_attention(model.kv_layers(1.0, 8))


@pytest.mark.parametrize(
    ("model", "gpu", "version", "saves", "block_size"),
    [
        ("nvidia-nemotron-nano-9b-v2", "a100-80gb", "0.33", True, 1312),
        ("nvidia-nemotron-nano-9b-v2", "h100", "0.32", True, 1312),
        ("nvidia-nemotron-nano-9b-v2", "h100", "0.31", False, 1312),
        ("qwen3.5-4b", "h100", "0.33", True, 576),  # FlashInfer's wants multiples of 64
        ("qwen3.5-4b", "h100", "0.32", False, 528),
        ("qwen3.5-4b", "a100-80gb", "0.33", False, 528),
        ("kimi-linear-48b-a3b", "h200", "0.33", False, 1024),
    ],
)
def test_kernels_of_some_gpus_save_states_inside_a_piece(
    model: str, gpu: str, version: str, saves: bool, block_size: int
) -> None:
    options = RooflineOptions(model, gpu, {}, 2, reserved_gib=3.0)
    config = tiny_config(profile="made", engine={"vllm_version": version})
    deployment = Deployment.of(
        Experiment.parse(config, "a test"), RooflineProfile.of(options).profile
    )
    assert deployment.engine.block_size == block_size
    of_states = [group for group in deployment.setup.kv.groups if group.kind == "state"]
    assert [group.saves_inside for group in of_states] == [saves] * len(of_states)
    assert {group.most_blocks(10_000, 0) for group in of_states} == {2 + saves}


def test_only_states_are_saved_inside_a_piece() -> None:
    with (
        pytest.raises(ConfigError, match="keep no state; leave it out"),
        validated("layers", ConfigError),
    ):
        KVLayers(kind="full_attention", layers=1, saves_inside=True)
