"""Models and GPUs: what ships, what a config.json must say, and how a profile uses both."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Run, tiny_config
from pydantic import ValidationError

from specsim.core.errors import ProfileError
from specsim.core.resources import resource_names
from specsim.core.step import StepLoad
from specsim.hardware import (
    find_gpu,
    find_model,
    gpu_as_typed,
    load_gpu,
    load_model,
    model_names,
    specs,
)
from specsim.latency.roofline import Roofline
from specsim.profile import Profile, load_profile
from specsim.profile.profile import memory_plan
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment

# Parameters by the weight files on HuggingFace (safetensors, or counted from the checkpoint) or by
# the EAGLE repository's README; KV bytes per token at 2 bytes each: 2 * layers * heads * width * 2.
PUBLISHED = {
    "bloom-1b1": (1_065_314_304, 147_456),
    "bloom-560m": (559_214_592, 98_304),
    "bloom-7b": (7_069_016_064, 491_520),
    "deepseek-v3": (671e9, 70_272),  # its model card; 61 layers of 576 numbers
    "deepseek-v3-mtp": (11.5e9, 1_152),  # README_WEIGHTS.md: of its own
    "deepseek-v4-flash": (284_332_230_231, 3_915),  # transformers 5.19, meta device
    "deepseek-v4-flash-mtp": (6_610_026_496, 0),  # its matrices, counted by hand
    "deepseek-v4-pro": (1_572_997_179_491, 5_609),
    "deepseek-v4-pro-mtp": (25_840_107_520, 0),
    "eagle-llama-2-13b": (0.37e9, 20_480),
    "eagle-llama-2-70b": (0.99e9, 4_096),
    "eagle-llama-2-7b": (0.24e9, 16_384),
    "eagle-llama-3.1-70b": (0.99e9, 4_096),
    "eagle-llama-3.1-8b": (0.25e9, 4_096),
    "eagle-vicuna-13b": (0.37e9, 20_480),
    "eagle-vicuna-7b": (0.24e9, 16_384),
    "eagle3-llama-3.1-8b": (425e6, 4_096),
    # Counted by hand from their configs; a head for gpt-oss-120b of 588 MB is on HuggingFace.
    "eagle3-gpt-oss-120b": (307.6e6, 2_048),
    "eagle3-gpt-oss-20b": (307.6e6, 2_048),
    "eagle3-llama-3.1-70b": (1_403e6, 4_096),
    "eagle3-qwen3-30b-a3b": (145.2e6, 2_048),
    "eagle3-qwen3-32b": (782.5e6, 4_096),
    "eagle3-qwen3-8b": (399.5e6, 4_096),
    "gemma-4-31b": (30.7e9, 901_120),  # its model card; 50 layers of 16,384 bytes, 10 of 8,192
    "gemma-4-31b-assistant": (469.5e6, 0),  # counted by hand
    "gpt-oss-120b": (116.83e9, 73_728),  # its model card
    "gpt-oss-20b": (20.91e9, 49_152),
    "kimi-k2.5": (1.026e12, 70_272),  # its index of weights
    "llama-160m": (162_417_408, 36_864),
    "llama-2-13b": (13_015_864_320, 819_200),
    "llama-2-70b": (68_976_648_192, 327_680),
    "llama-2-7b": (6_738_415_616, 524_288),
    "llama-3.1-70b": (70_553_706_496, 327_680),
    "dflash-qwen3-8b": (1.049e9, 20_480),  # counted by hand from its config
    "llama-3.1-8b": (8_030_261_248, 131_072),
    "llama-3.2-1b": (1_235_814_400, 32_768),
    "llama-7b": (6_738_415_616, 524_288),
    "llama-7m": (6_820_096, 4_096),  # made up; counted from its tensors in the torch engine
    "mimo-7b": (7.622e9, 147_456),  # with the next 7.83 billion, as on HuggingFace
    "mistral-7b": (7_241_732_096, 131_072),
    "mixtral-8x7b": (46_702_792_704, 131_072),
    "mtp-mimo-7b": (210.8e6, 4_096),  # counted by hand from its config
    "opt-125m": (125_239_296, 36_864),
    "opt-13b": (12_853_473_280, 819_200),
    "qwen3-0.6b": (596_049_920, 114_688),
    "qwen3-30b-a3b": (30_532_122_624, 98_304),
    "qwen3-32b": (32_762_123_264, 262_144),
    "qwen3-8b": (8_190_735_360, 147_456),
    "tinyllama-1.1b": (1_100_048_384, 22_528),
    "vicuna-13b": (13_015_864_320, 819_200),
    "vicuna-160m": (162_417_408, 36_864),
    "vicuna-33b": (32_528_943_616, 1_597_440),
    "vicuna-7b": (6_738_415_616, 524_288),
}


@pytest.mark.parametrize("name", resource_names("profiles", "*.json"))
def test_shipped_models_have_as_many_weights_as_published(name: str) -> None:
    shape = load_model(name)
    parameters, kv_bytes = PUBLISHED[name]
    assert shape.num_parameters == pytest.approx(parameters, rel=0.02)
    assert shape.kv_bytes_per_token == kv_bytes
    made_up = name == "llama-7m"
    public = ("https://huggingface.co/", "https://github.com/")
    assert shape.source.startswith("made up" if made_up else public)


# Of model cards or of transformers 5.19.0 on the meta device, without MTP layers and image parts.
PUBLISHED_BY_NAME = {
    "apertus-70b": 70_599_864_480,
    "apertus-8b": 8_053_338_176,
    "aya-expanse-8b": 8_028_033_024,
    "afm-4.5b": 4_619_184_640,
    "ai21-jamba-large": 398_555_145_696,
    "ai21-jamba-mini": 51_570_323_328,
    "baichuan2-13b": 13_896_668_160,
    "c4ai-command-r-08-2024": 32_296_476_672,
    "c4ai-command-r-plus-08-2024": 103_810_674_688,
    "c4ai-command-r7b": 8_028_033_024,
    "codellama-13b": 13_016_028_160,
    "codellama-34b": 33_743_970_304,
    "codellama-7b": 6_738_546_688,
    "codestral-22b": 22_247_282_688,
    "command-a-03-2025": 111_057_580_032,
    "dbrx": 131_596_523_520,
    "deepseek-coder-33b": 33_342_991_360,
    "deepseek-coder-6.7b": 6_740_512_768,
    "deepseek-r1-distill-qwen-1.5b": 1_777_088_000,
    "deepseek-r1-distill-qwen-14b": 14_770_033_664,
    "deepseek-r1-distill-qwen-32b": 32_763_876_352,
    "deepseek-r1-distill-qwen-7b": 7_615_616_512,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "devstral-2-123b": 125_025_988_608,
    "devstral-small-2-24b": 23_572_403_200,
    "ernie-4.5-21b-a3b": 21_825_437_888,
    "ernie-4.5-300b-a47b": 299.5e9,  # 300 billion, by its name
    "exaone-4.0-32b": 32_003_200_000,
    "falcon-40b": 41_303_293_952,
    "falcon-7b": 6_921_720_704,
    "falcon-h1-0.5b": 521_411_104,
    "falcon-h1-1.5b": 1_554_789_760,
    "falcon-h1-1.5b-deep": 1_554_773_392,
    "falcon-h1-34b": 33_642_221_312,
    "falcon-h1-3b": 3_149_261_312,
    "falcon-h1-7b": 7_585_519_712,
    "falcon3-7b": 7_455_550_464,
    "gemma-2-27b": 27_227_128_320,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2b": 2_506_172_416,
    "gemma-3-12b": 11.77e9,
    "gemma-3-1b": 999_885_952,
    "gemma-3-270m": 268_098_176,
    "gemma-3-27b": 27.01e9,
    "gemma-3-4b": 3.88e9,
    "gemma-4-e2b": 4_628_569_344,
    "gemma-4-e4b": 7_463_013_376,
    "gemma-7b": 8_537_680_896,
    "glm-4-32b-0414": 32.566e9,
    "glm-4-9b-0414": 9.4e9,
    "glm-4-9b-chat": 9_399_951_360,
    "glm-4.5": 352.8e9,
    "glm-4.5-air": 106.85e9,
    "glm-4.5v": 106.85e9,
    "glm-4.6": 352.8e9,
    "glm-4.7-flash": 29_943_390_976,
    "glm-5.3-flash": 313_326_799_870,
    "glm-5.3-flash-nvfp4": 313_326_799_870,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "granite-3.3-8b": 8_170_864_640,
    "granite-4.0-h-micro": 3_191_396_096,
    "granite-4.0-h-small": 32_207_337_984,
    "granite-4.0-h-tiny": 6_939_037_248,
    "hunyuan-7b": 7_504_568_320,
    "hunyuan-a13b": 80_393_183_232,
    "internlm2_5-7b": 7_737_708_544,
    "internlm3-8b": 8_804_241_408,
    "kimi-linear-48b-a3b": 49_122_675_072,
    "ling-flash-2.0": 102.9e9,  # 100 billion, 6.1 of them active, by its model card
    "ling-mini-2.0": 16.26e9,
    "llama-160m": 162_417_408,
    "llama-3_3-nemotron-super-49b-v1": 49.87e9,  # 49.9 billion, by its model card
    "llama-68m": 68_030_208,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-nemotron-nano-4b": 4_512_746_496,
    "llama-3.2-3b": 3_212_749_824,
    "minicpm-2b": 2_724_880_896,
    "minimax-m2": 228_689_748_992,
    "ministral-3-14b": 13.5e9,
    "ministral-3-3b": 3.43e9,
    "ministral-3-8b": 8.49e9,
    "ministral-8b": 8_019_808_256,
    "mistral-large-3-675b": 673_421_089_792,
    "mistral-large-instruct": 122_610_069_504,
    "mistral-nemo-instruct": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mistral-small-3.2-24b": 23_572_403_200,
    "mixtral-8x22b": 140_630_071_296,
    "muse-glimmer-30b": 27_854_780_928,
    "nvidia-nemotron-nano-12b-v2": 12_310_001_152,
    "nvidia-nemotron-nano-9b-v2": 8_888_227_328,
    "olmo-2-0325-32b": 32_234_279_936,
    "olmo-2-1124-13b": 13_716_198_400,
    "olmo-2-1124-7b": 7_298_617_344,
    "olmo-3-7b": 7_298_011_136,
    "olmo-3.1-32b": 32_233_522_176,
    "olmoe-1b-7b": 6_919_161_856,
    "opt-6.7b": 6_658_473_984,
    "phi-2": 2_779_683_840,
    "phi-3-medium-128k": 13_960_238_080,
    "phi-3-mini-128k": 3_821_079_552,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-3.5-moe": 41_873_153_344,
    "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "pythia-1.4b": 1_414_647_808,
    "pythia-12b": 11_846_072_320,
    "pythia-6.9b": 6_857_302_016,
    "qwen1.5-7b": 7_721_324_544,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-57b-a14b": 57_408_658_944,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-vl-32b": 32_763_876_352,
    "qwen2.5-vl-3b": 3_085_938_688,
    "qwen2.5-vl-72b": 72_706_203_648,
    "qwen2.5-vl-7b": 7_615_616_512,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-4b": 4_022_468_096,
    "qwen3-next-80b-a3b": 79.67e9,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "qwen3.5-4b": 4_205_751_296,
    "qwen3.5-9b": 8_953_803_264,
    "qwen3.8-2.4t-a95b": 2_419_804_697_984,
    "qwen3.8-2.4t-a95b-fp8": 2_419_804_697_984,
    "qwq-32b": 32_763_876_352,
    "seed-oss-36b": 36_151_104_512,
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm3-3b": 3_075_098_624,
    "solar-10.7b": 10_731_524_096,
    "stablelm-2-12b": 12_143_185_920,
    "starcoder2-15b": 15_957_889_024,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "step-3.5-flash": 196_956_118_272,
    "tinyllama-1.1b": 1_100_048_384,
    "trinity-large": 398_635_286_016,
    "trinity-mini": 26_123_974_400,
    "trinity-nano": 6_120_003_328,
    "yi-1.5-34b": 34_388_917_248,
    "yi-1.5-6b": 6_061_035_520,
    "yi-1.5-9b": 8_829_407_232,
}


def test_models_that_are_known_by_name_have_as_many_weights_as_published() -> None:
    assert {*model_names()} == {*PUBLISHED, *PUBLISHED_BY_NAME}
    for name, parameters in PUBLISHED_BY_NAME.items():
        shape = load_model(name)
        assert shape.num_parameters == pytest.approx(parameters, rel=5e-4)
        assert shape.source.startswith(f"https://huggingface.co/{shape.name}/blob/main/config.json")


@pytest.mark.parametrize("name", resource_names("profiles", "*.yaml"))
def test_shipped_gpus_say_where_their_numbers_come_from(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.source
    numbers = (gpu.memory_gb_per_s, gpu.interconnect_gb_per_s, *gpu.peak_tflops.values())
    assert not any(numbers) or "data sheet" in gpu.source or "arXiv" in gpu.source
    if gpu.peak_tflops:  # operations per byte, from L40S to A100 SXM
        assert gpu.memory_gb_per_s
        assert 140 < gpu.peak_tflops["float16"] * 1e3 / gpu.memory_gb_per_s < 430


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
QWEN_MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
COMPRESSED = {
    **LLAMA,
    "model_type": "deepseek_v4",
    "head_dim": 512,
    "num_key_value_heads": 1,
    "sliding_window": 128,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "hc_mult": 4,
}
NEMOTRON = {"model_type": "nemotron_h", "hybrid_override_pattern": "M*E-"}
NAS = {"model_type": "nemotron-nas", "num_key_value_heads": None, "intermediate_size": None}
FFN = {"ffn": {"ffn_mult": 1.3125}}
Written = Callable[[dict[str, Any]], str]


def test_a_config_of_huggingface_is_a_shape(written: Written) -> None:
    shape, shipped = load_model(written(LLAMA)), load_model("llama-3.1-8b")
    assert shape.model_copy(update={"name": shipped.name, "source": shipped.source}) == shipped


def test_a_drafter_of_blocks_is_what_the_target_has_not(written: Written) -> None:
    shipped = load_model("dflash-qwen3-8b")
    given = shipped.model_dump(include={
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("head_dim", "intermediate_size", "vocab_size", "max_position_embeddings", "torch_dtype"),
    })  # fmt: skip
    named = {"dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]}, "model_type": "qwen3"}
    shape = load_model(written({**given, **named, "tie_word_embeddings": False}))
    assert shape.model_copy(update={"name": shipped.name, "source": shipped.source}) == shipped
    assert 1.0e9 < shipped.num_parameters < 1.1e9  # of z-lab's checkpoint


@pytest.mark.parametrize(
    ("name", "config"),
    [
        (
            "bloom-560m",
            {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16,
             "seq_length": 2048, "vocab_size": 250880, "torch_dtype": "float16", "n_inner": None},
        ),
        (
            "opt-125m",
            {"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
             "num_attention_heads": 12, "max_position_embeddings": 2048, "vocab_size": 50272,
             "torch_dtype": "float16"},
        ),
        (
            "mixtral-8x7b",
            {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
             "vocab_size": 32000, "max_position_embeddings": 32768},
        ),
        (
            "qwen3-30b-a3b",
            {**QWEN_MOE, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
             "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
             "max_position_embeddings": 40960},
        ),
    ],
)  # fmt: skip
def test_families_name_their_fields_differently(
    name: str, config: dict[str, Any], written: Written
) -> None:
    shape, shipped = load_model(written(config)), load_model(name)
    assert shape.model_copy(update={"name": shipped.name, "source": shipped.source}) == shipped


@pytest.mark.parametrize(
    ("config", "parameters"),  # of transformers 5.19.0 on the meta device
    [
        (
            {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
             "vocab_size": 50257, "n_inner": None},
            124_439_808,
        ),
        (
            {**LLAMA, "model_type": "hunyuan_v1_moe", "num_experts": 64, "moe_topk": [8] * 32,
             "num_shared_expert": [1] * 32, "moe_intermediate_size": [3072] * 32,
             "intermediate_size": 3072, "vocab_size": 128167, "tie_word_embeddings": True},
            80_393_183_232,
        ),
        (  # Granite 4.0 Micro: no experts, no states
            {**LLAMA, "model_type": "granitemoehybrid", "hidden_size": 2560,
             "num_hidden_layers": 40, "num_attention_heads": 40, "num_local_experts": 0,
             "num_experts_per_tok": 0, "intermediate_size": 1, "shared_intermediate_size": 8192,
             "layer_types": ["attention"] * 40, "mamba_n_heads": 128, "mamba_n_groups": 1,
             "mamba_d_state": 256, "mamba_d_head": 32, "mamba_d_conv": 4, "vocab_size": 100352,
             "tie_word_embeddings": True},
            3_402_836_480,
        ),
        (
            {**LLAMA, "model_type": "falcon", "multi_query": False, "num_key_value_heads": None,
             "intermediate_size": None, "tie_word_embeddings": None},
            6_968_057_856,
        ),
        (
            {**LLAMA, "model_type": "cohere2_moe", "hidden_size": 8192, "num_hidden_layers": 40,
             "num_attention_heads": 64, "num_key_value_heads": 64, "intermediate_size": 22528,
             "vocab_size": 256000, "num_experts": 8, "num_experts_per_tok": 2,
             "num_shared_experts": 0, "shared_expert_combination_strategy": "average",
             "tie_word_embeddings": True},
            190_004_928_512,
        ),
        (
            {**LLAMA, "model_type": "hunyuan_v1_moe", "num_key_value_heads": 32, "head_dim": 128,
             "intermediate_size": 11008, "vocab_size": 290943, "num_experts": 16,
             "num_experts_per_tok": 1},
            78_118_129_664,
        ),
        (
            {**LLAMA, "model_type": "olmo_hybrid", "hidden_size": 3840, "num_attention_heads": 30,
             "num_key_value_heads": 30, "intermediate_size": 11008, "vocab_size": 100352,
             "linear_num_key_heads": 30, "linear_num_value_heads": 30, "linear_key_head_dim": 96,
             "linear_value_head_dim": 192, "linear_conv_kernel_dim": 4},
            7_430_870_688,
        ),
        (  # Qwen2-7B's MLP under another width
            {**LLAMA, "model_type": "molmo", "hidden_size": 3584, "num_hidden_layers": 28,
             "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 37888,
             "vocab_size": 152064},
            7_615_616_512,
        ),
    ],
)  # fmt: skip
def test_families_have_as_many_weights_as_their_classes(
    config: dict[str, Any], parameters: int, written: Written
) -> None:
    given = {name: value for name, value in config.items() if value is not None}
    assert load_model(written(given)).num_parameters == pytest.approx(parameters, rel=1e-3)


@pytest.mark.parametrize(
    ("fields", "sparse"),
    [
        ({"moe_layer_start_index": 1, "moe_layer_end_index": -1}, {1, 2, 3, 4, 5}),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": 4}, {2, 3, 4}),
        ({"moe_layer_interval": 2}, {1, 3, 5}),
        ({"moe_layer_start_index": 3, "moe_layer_interval": 3}, {5}),
    ],
)
def test_ernie_names_the_first_and_last_layer_with_experts(
    fields: dict[str, int], sparse: set[int], written: Written
) -> None:
    experts = {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 64}
    config = {**LLAMA, "model_type": "ernie4_5_moe", "num_hidden_layers": 6, **experts, **fields}
    layers = load_model(written(config)).layers
    assert {number for number, each in enumerate(layers) if each.has_experts} == sparse
    assert all(each.has_experts != bool(each.mlp_width) for each in layers)


def test_deepseek_has_latent_attention_and_dense_layers(written: Written) -> None:
    shipped = load_model("deepseek-v3")
    renamed = {"num_experts": "n_routed_experts", "head_dim": "qk_nope_head_dim"}
    fields = shipped.model_dump(exclude={"name", "source"})
    config = {renamed.get(name, name): value for name, value in fields.items()}
    config |= {"model_type": "deepseek_v3", "qk_nope_head_dim": 128, "moe_layer_freq": 1}
    shape = load_model(written(config))
    own = {name: getattr(shipped, name) for name in ("name", "source", "quantization")}
    assert shape.model_copy(update=own) == shipped
    # Of the 8 GPUs each keeps the latent vector of all heads, and an eighth of the experts.
    assert shape.kv_bytes_per_token_and_gpu(8) == 61 * 576 * 2
    assert shape.expert_bytes == 58 * 256 * 3 * 7168 * 2048 * 2
    with pytest.raises(ProfileError, match="first_k_dense_replace = 61: must be fewer than num_hi"):
        load_model(written({**config, "first_k_dense_replace": 61}))


def test_gemma_4_has_layers_of_two_widths(written: Written) -> None:
    shipped = load_model("gemma-4-31b")
    fields = shipped.model_dump(exclude={"name", "source", "num_experts", "tie_word_embeddings"})
    config = {**fields, "model_type": "gemma4_text", "attention_k_eq_v": True, "enable_moe_block":
              False, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}  # fmt: skip
    shape = load_model(written(config))
    assert shape.model_copy(update={"name": shipped.name, "source": shipped.source}) == shipped
    assert [each[1:3] for each in shape.attention_widths] == [(16, 256), (4, 512)]
    own_keys = load_model(written({**config, "attention_k_eq_v": False}))
    assert [each[1:3] for each in own_keys.attention_widths] == [(16, 256), (16, 512)]
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 704}
    both = load_model(written({**config, **experts, "enable_moe_block": True}))
    assert both.num_expert_layers == both.num_hidden_layers
    beside = both.num_parameters - load_model(written(config)).num_parameters
    assert beside == both.num_hidden_layers * 128 * (3 * 704 + 1) * both.hidden_size


@pytest.mark.parametrize(
    "field",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
     "intermediate_size", "vocab_size", "max_position_embeddings"],
)  # fmt: skip
def test_a_missing_field_is_named(field: str, written: Written) -> None:
    config = {name: value for name, value in LLAMA.items() if name != field}
    with pytest.raises(ProfileError, match=rf"config.json: '{field}' is missing.*; add it: "):
        load_model(written(config))


@pytest.mark.parametrize("changes", [{"torch_dtype": "float32"}, {"torch_dtype": None}])
def test_what_vllm_serves_in_16_bits(changes: dict[str, Any], written: Written) -> None:
    assert load_model(written({**LLAMA, **changes})).torch_dtype == "bfloat16"
    newer = {**LLAMA, "torch_dtype": None, "dtype": "float16"}
    assert load_model(written(newer)).torch_dtype == "float16"


@pytest.mark.parametrize("field", ["num_experts_per_tok", "moe_intermediate_size"])
def test_a_missing_field_of_experts_is_named(field: str, written: Written) -> None:
    config = {name: value for name, value in QWEN_MOE.items() if name != field}
    with pytest.raises(ProfileError, match=rf"'{field}' is missing.*; add it"):
        load_model(written(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_attention_heads": 30},
            "'head_dim' is missing and hidden_size = 4096 is no multiple",
        ),
        ({"hidden_size": "big"}, "hidden_size = 'big': must be a whole number above 0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0: must be a whole number above 0"),
        ({"torch_dtype": "int4"}, "torch_dtype = 'int4'"),
        ({"num_experts": 4, "num_experts_per_tok": 8, "moe_intermediate_size": 64}, "of the num_"),
        ({"kv_lora_rank": 512}, "'qk_nope_head_dim' is missing"),
        ({"index_topk": 2048}, "sparse attention, which is not modelled"),
        (
            {**COMPRESSED, "compress_ratios": [4] * 31},
            "compress_ratios = .* for each of num_hidden",
        ),
        (
            {**COMPRESSED, "compress_ratios": [2] * 32},
            "compress_ratios = .*: must be a list of 0, 4",
        ),
        (
            {**COMPRESSED, "compress_ratios": [4] * 32},
            "index_topk is missing: compressed attention",
        ),
        ({**COMPRESSED, "compress_ratios": [0] * 32, "o_groups": 5}, "o_groups = 5: must divide"),
        (
            {**COMPRESSED, "compress_rates": {"x": 8}},
            "compress_rates = .*: must be .*_attention': 4",
        ),
        ({"layer_types": ["linear_attention"] * 32}, "'layer_types' has 'linear_attention', which"),
        ({"mamba_d_state": 16}, "layers that keep a state in place of keys and values"),
        ({"full_attention_interval": 4}, "layers of linear attention"),
        ({"num_experts_in_all": 64}, "'num_experts_in_all' says .* another name than num_e"),
        ({"num_experts": 4, "moe_shared_experts": 1}, "'moe_shared_experts' .* tokens sh"),
        ({"model_type": "granitemoehybrid"}, "'layer_types' is missing"),
        ({"use_cla": True}, "layers that share keys and values"),
        ({"cross_attention_layers": [3, 8]}, "layers that attend to images alone"),
        ({"sliding_window": "4096"}, "sliding_window = '4096': must be a whole number above 0"),
        ({"layer_types": 3}, "layer_types = 3: must be a list with the type of each layer"),
        (
            {"sliding_window": 62, "sliding_window_pattern": 0},
            "sliding_window_pattern = 0: must be",
        ),
        ({**QWEN_MOE, "mlp_layer_types": ["sparse"] * 3}, "mlp_layer_types = .* for each of num_h"),
        ({**QWEN_MOE, "mlp_layer_types": ["x"] * 32}, "mlp_layer_types = .* 'dense' or 'sparse'"),
        ({**QWEN_MOE, "mlp_layer_types": "dense"}, "mlp_layer_types = 'dense': must be a list"),
        ({**QWEN_MOE, "moe_layer_freq": [{}] * 32}, "moe_layer_freq = .* a list of 0 or 1 for"),
        ({**QWEN_MOE, "decoder_sparse_step": [1]}, r"decoder_sparse_step = \[1\]: must be a whole"),
        ({**QWEN_MOE, "first_k_dense_replace": 32}, "first_k_dense_replace = 32: must be fewer th"),
        ({**NAS, "block_configs": "x"}, "block_configs = 'x': must be a list of mappings"),
        (
            {"model_type": "minimax_m3", "sparse_attention_config": [1]},
            "must be a mapping; correct",
        ),
        ({**QWEN_MOE, "mlp_only_layers": 3}, "mlp_only_layers = 3: must be a list of layers"),
        ({**QWEN_MOE, "num_hidden_layers": 10**12}, "num_hidden_layers = 10+: must be at most 4"),
        ({"compress_ratios": [0, 4]}, "attention to a compressed context"),
        ({"block_configs": [{}] * 32}, "layers of different shapes"),
        ({**NEMOTRON, "hybrid_override_pattern": 2}, "hybrid_override_pattern = 2: must name"),
        (
            {**NEMOTRON, "hybrid_override_pattern": [[]], "num_hidden_layers": 1},
            r"hybrid_override_pattern = \[\[\]\]: must name",
        ),
        (
            {**NEMOTRON, "hybrid_override_pattern": "MX"},
            "hybrid_override_pattern = 'MX': must name",
        ),
        (
            {
                **NAS,
                "block_configs": [
                    {**FFN, "attention": {"n_heads_in_group": 8, "window_length": 8}}
                ],
            },
            "attention with window_l",
        ),
        ({**NAS, "block_configs": [FFN] * 32}, "different numbers of key-value"),
        (
            {"model_type": "minimax_m3", "sparse_attention_config": {"x": 1}},
            "'sparse_topk_blocks' is",
        ),
        ({"num_attention_heads_per_layer": [32, 64] * 16}, "layers of different shapes"),
        ({"share_q_dim": 2048}, "queries of a lower rank"),
        ({"loop_num": 2}, "layers that run several times"),
        ({"output_vocab_size": 1024}, "an LM head of other tokens"),
        ({"conv_L_cache": 3}, "layers of convolution"),
        ({"v_head_dim": 64}, "'v_head_dim' says that the model has values of another width"),
        ({"model_type": "beam"}, "model_type 'beam' says that the model has attention of ano"),
        ({"per_layer_config": {"5": {"head_dim": 512}}}, "layers of different shapes"),
        ({"draft_vocab_size": 32000}, "an EAGLE-3 head"),
        ({"markov_rank": 256, "draft_vocab_size": 32000}, "a drafter whose vocabulary or Markov h"),
        ({"hidden_size": None, "text_config": {"model_type": "x"}}, "text_config: 'num_hidden_la"),
        ({"model_type": "longcat_flash"}, "two attentions in each layer"),
        ({"model_type": "opt", "word_embed_proj_dim": 512}, "an embedding of another width"),
        ({"hidden_size": None, "text_config": []}, r"text_config = \[\]: must be a mapping"),
        ({"hidden_size": None, "text_config": {**LLAMA, "index_topk": 8}}, "config: .* sparse a"),
    ],
)
def test_what_is_not_modelled_is_said(
    changes: dict[str, Any], message: str, written: Written
) -> None:
    config = {name: value for name, value in {**LLAMA, **changes}.items() if value is not None}
    with pytest.raises(ProfileError, match=message) as error:
        load_model(written(config))
    assert "\n" not in str(error.value)


def test_layers_before_those_with_experts_may_be_listed(written: Written) -> None:
    """GLM-4.7-Flash and MiMo list them; DeepSeek's field says how many they are."""
    counted = load_model(written({**QWEN_MOE, "first_k_dense_replace": 2})).num_parameters
    for listed in (
        {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 30},
        {"moe_layer_freq": [0] * 2 + [1] * 30},
    ):
        assert load_model(written({**QWEN_MOE, **listed})).num_parameters == counted


def test_layers_with_and_without_experts_take_turns(written: Written) -> None:
    """By lists or by steps: Qwen counts from 1, DeepSeek from 0, and some layers may be named."""
    turns = {"mlp_layer_types": ["dense", "sparse"] * 16}
    listed = load_model(written({**QWEN_MOE, **turns}))
    assert listed.num_expert_layers == 16
    assert [each.has_experts for each in listed.layers[:3]] == [False, True, False]
    for told in (
        {"moe_layer_freq": [0, 1] * 16},
        {"decoder_sparse_step": 2},
        {"interleave_moe_layer_step": 2},
        {"mlp_only_layers": list(range(0, 32, 2))},
    ):
        assert load_model(written({**QWEN_MOE, **told})).layers == listed.layers
    deepseek = load_model(written({**QWEN_MOE, "moe_layer_freq": 2, "first_k_dense_replace": 1}))
    assert [each.has_experts for each in deepseek.layers[:5]] == [False, False, True, False, True]


UNGATED = ["apertus", "apertus1p5_text", "arcee", "cosmos3_edge_text", "jais2", "nanochat"]


@pytest.mark.parametrize("model_type", UNGATED)
def test_mlps_without_a_gate_have_two_matrices(model_type: str, written: Written) -> None:
    gated = load_model(written(LLAMA)).num_parameters
    plain = load_model(written({**LLAMA, "model_type": model_type})).num_parameters
    assert gated - plain == 32 * 4096 * 14336


def test_the_language_model_s_own_type_of_numbers_comes_first(written: Written) -> None:
    text = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    outer = {"torch_dtype": "float16", "text_config": {**text, "dtype": "bfloat16"}}
    assert load_model(written(outer)).torch_dtype == "bfloat16"


def test_what_modelopt_says_beside_a_config_counts(written: Written) -> None:
    path = Path(written(LLAMA))
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    path.with_name("hf_quant_config.json").write_text(json.dumps(said))
    assert load_model(str(path)).quantization == "fp8"


STATIC = {"num_bits": 8, "type": "float", "dynamic": False}


@pytest.mark.parametrize(
    ("method", "said", "is_small"),
    [
        ("modelopt", {"kv_cache_scheme": STATIC}, True),
        ("modelopt", {"kv_cache_scheme": {**STATIC, "dynamic": True}}, False),
        ("modelopt", {"kv_cache_scheme": "FP8"}, True),
        ("modelopt_fp4", {"quantization": {"kv_cache_quant_algo": "FP8"}}, True),
        ("modelopt", {"kv_cache_quant_algo": "NVFP4"}, False),
        ("compressed-tensors", {"kv_cache_scheme": {**STATIC, "strategy": "tensor"}}, True),
        ("compressed-tensors", {"kv_cache_scheme": None}, False),
        ("fp8", {"kv_cache_scheme": STATIC}, False),
    ],
)
def test_checkpoints_say_how_keys_and_values_are_stored(
    method: str, said: dict[str, Any], is_small: bool, written: Written
) -> None:
    shape = load_model(written({**LLAMA, "quantization_config": {"quant_method": method, **said}}))
    assert load_gpu("h100").kv_dtype(shape) == ("fp8" if is_small else "bfloat16")


@pytest.mark.parametrize(("gpu", "found"), [("b200", "fp8"), ("gb300", "fp8"), ("h200", "bfloat16"),
                                            ("rtx-pro-6000", "bfloat16")])  # fmt: skip
def test_glm_5_keeps_keys_in_8_bits_on_blackwell_of_data_centers(gpu: str, found: str) -> None:
    """As of vLLM 0.33.0 models/config.py, Glm5NextModelConfig, and GLM-5."""
    assert load_gpu(gpu).kv_dtype(load_model("glm-5.3-flash")) == found
    assert load_gpu(gpu).kv_dtype(load_model("kimi-k2.5")) == "bfloat16"


def test_a_folder_stands_for_its_config(written: Written) -> None:
    path = Path(written(LLAMA)).rename(Path(written(LLAMA)).with_name("config.json"))
    assert load_model(str(path.parent)) == load_model(str(path))


def test_attention_of_an_unknown_kind_is_refused_before_its_drafter(written: Written) -> None:
    """DeepSeek-V4.1 has a drafter of its own in its config.json, and layers that share keys."""
    text = {**LLAMA, "model_type": "deepseek_v41_text", "dspark_block_size": 5}
    with pytest.raises(ProfileError, match=r"model_type 'deepseek_v41_text' says .* layers share"):
        load_model(written({"model_type": "deepseek_v41", "text_config": text}))


def test_of_several_models_the_one_for_text_is_taken(written: Written) -> None:
    """Types of numbers, and how they are stored, are those of all parts unless it has its own."""
    text = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    outer = {"model_type": "llava", "vision_config": {"depth": 24}, "dtype": "float16"}
    outer["quantization_config"] = {"quant_method": "fp8"}
    shape = load_model(written({**outer, "text_config": {**text, "rope_theta": 1e6}}))
    assert shape.num_parameters == load_model(written(LLAMA)).num_parameters
    assert (shape.torch_dtype, shape.quantization) == ("float16", "fp8")
    assert "parts for images and sound are not counted" in shape.source


@pytest.mark.parametrize("part", ["text_config", "llm_config", "language_config", "thinker_config"])
def test_the_language_model_goes_by_several_names(part: str, written: Written) -> None:
    """InternVL, DeepSeek-OCR, Qwen-Omni; PaliGemma says the width outside, too."""
    inner = {"text_config": LLAMA} if part == "thinker_config" else LLAMA
    shape = load_model(written({"model_type": "x", "hidden_size": 4096, part: inner}))
    assert shape.num_parameters == load_model(written(LLAMA)).num_parameters


@pytest.mark.parametrize(("outside", "inside"), [(True, False), (False, True), (None, True)])
def test_whether_embeddings_are_tied_is_said_outside_if_at_all(
    outside: bool | None, inside: bool, written: Written
) -> None:
    """LightOnOCR ties though its language model by itself would not, Qwen3-VL the other way."""
    said = {} if outside is None else {"tie_word_embeddings": outside}
    config = {**said, "text_config": {**LLAMA, "tie_word_embeddings": inside}}
    expected = inside if outside is None else outside
    assert load_model(written(config)).tie_word_embeddings is expected


def test_embeddings_of_positions_are_weights(written: Written) -> None:
    plain, gpt = (
        load_model(written({**LLAMA, "model_type": name, "num_key_value_heads": 32}))
        for name in ("gpt_neox", "gpt2")
    )
    positions = LLAMA["max_position_embeddings"] * LLAMA["hidden_size"]
    assert gpt.num_parameters - plain.num_parameters == positions == gpt.other_embeddings


def test_chatglm_is_read_under_its_own_names(written: Written) -> None:
    renamed = {"num_hidden_layers": "num_layers", "vocab_size": "padded_vocab_size"}
    renamed |= {"num_key_value_heads": "multi_query_group_num", "head_dim": "kv_channels"}
    own = {renamed.get(name, name): value for name, value in {**LLAMA, "head_dim": 128}.items()}
    assert load_model(written(own)).num_parameters == load_model(written(LLAMA)).num_parameters


def test_families_leave_out_what_their_classes_say(written: Written) -> None:
    """gpt-oss has a plain name for its experts, Cohere ties, the window of Phi-4-mini is wide."""
    moe = {key: value for key, value in QWEN_MOE.items() if key != "moe_intermediate_size"}
    gpt_oss = load_model(written({**moe, "model_type": "gpt_oss", "intermediate_size": 2880}))
    assert gpt_oss.moe_intermediate_size == 2880
    scout = load_model(written({**moe, "model_type": "llama4_text"}))
    assert (scout.n_shared_experts, scout.moe_intermediate_size) == (1, 14336)
    untied = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    assert load_model(written({**untied, "model_type": "cohere2"})).tie_word_embeddings
    assert load_model(written({**LLAMA, "sliding_window": 262144})).sliding_window is None
    for none in ({"num_experts": 0}, {"num_local_experts": None}):
        assert load_model(written({**LLAMA, **none, "num_experts_per_tok": 8})).num_experts == 0
    qwen = {**LLAMA, "sliding_window": 4096}
    assert load_model(written({**qwen, "model_type": "qwen2"})).sliding_window is None
    exaone = {**qwen, "model_type": "exaone4", "sliding_window_pattern": "LLLG"}
    assert load_model(written(exaone)).layer_counts["full_attention"] == 8
    gemma = {"model_type": "gemma3_text", "sliding_window": 1024, "num_hidden_layers": 34}
    gemma |= {"hidden_size": 2560, "intermediate_size": 10240}
    shape = load_model(written(gemma))
    assert (shape.layer_counts["full_attention"], shape.vocab_size) == (5, 262_208)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}}},
            },
            "mxfp4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["re:.*self_attn.*", "lm_head"],
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "block"}}
                },
            },
            "fp8_block,attention=bfloat16",
        ),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
                    "model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4"},
                },
            },
            "nvfp4,attention=fp8",
        ),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "NVFP4",
                "ignore": [f"model.layers.{number}.self_attn*" for number in range(30)],
            },
            "nvfp4,attention=bfloat16",
        ),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "NVFP4",
                "ignore": [f"model.layers.{number}.self_attn*" for number in range(9)],
            },
            "nvfp4",
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "other"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": None}}, "other"),
        ({"quant_method": "aqlm"}, "other"),
        ({"quant_method": "modelopt"}, "other"),
    ],
)
def test_quantized_weights_are_for_profiles_that_know_them(
    config: dict[str, Any], dtype: str, written: Written
) -> None:
    path = written({**LLAMA, "quantization_config": config})
    assert load_model(path).quantization == dtype
    with pytest.raises(
        ValidationError, match=r"quantized weights .*, which a roofline does not mod"
    ):
        Roofline(model=path, gpu="h100").forward_time(StepLoad(0, 1, 1, 0))
    linear = {"kind": "linear", "alpha_ns": 10.0, "gamma_us": 20.0, "delta_ms": 5.0}
    profile = Profile.model_validate({**PROFILE, "model": path, "target": linear, "drafts": {}})
    with pytest.raises(ProfileError, match="weights_gib is missing in the profile"):
        memory_plan(profile, load_model(path), load_gpu("h100"), ())


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["h100", "l40s", "mi300x"])
def test_of_models_without_a_profile_it_is_said_how_one_is_made(gpu: str) -> None:
    """And not the profile of another model that is spelt alike."""
    shipped = [name.partition("/")[2] for name in resource_names("profiles", f"{gpu}/*.yaml")]
    names = model_names()
    for model in set(names) - {n for n in names for s in shipped if s.startswith(n)}:
        for ending in ("", "-tp4"):
            made = f"make one: specsim profile build --model {model} --gpu {gpu} --out"
            with pytest.raises(ProfileError, match=re.escape(made)):
                load_profile(f"{gpu}/{model}{ending}")
    with pytest.raises(ProfileError, match=r"did you mean 'h100/llama-3.1-8b-tp2'\?"):
        load_profile("h100/llama-3.1-8b-tp3")


def test_a_gpu_is_no_profile() -> None:
    with pytest.raises(ProfileError, match="profile 'h100': is a GPU; name a profile of it, such "):
        load_profile("h100")
    with pytest.raises(ProfileError, match=r"'nope' in profiles/; a name is GPU/MODEL; specsim li"):
        load_profile("nope")
    with pytest.raises(ProfileError, match=r"'l40s/none' in profiles/; choose from (l40s/\S+ ?)+$"):
        load_profile("l40s/none")


def test_a_model_that_is_not_known_by_name_has_a_file() -> None:
    with pytest.raises(ProfileError, match=r"'nope' is known by name; give its config\.json; spec"):
        load_model("nope")


def test_heads_that_vllm_cannot_spread() -> None:
    phi = load_model("llama-3.1-8b").model_copy(
        update={"num_attention_heads": 40, "num_key_value_heads": 10}
    )
    phi.check_split(20)
    with pytest.raises(ValueError, match="10 key-value heads, which can neither be split evenly"):
        phi.check_split(4)


PROFILE = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "tensor_parallel_size": 2,
    "provenance": {"engine": "none", "source": "test", "date": "2026-11-21"},
    "target": {"kind": "roofline", "memory_efficiency": 0.9},
    "drafts": {"eagle3": {"latency": {"kind": "roofline", "model": "eagle3-llama-3.1-8b"}}},
    "valid_range": {"context_tokens": 1000, "batched_tokens": 1000},
}


def test_a_roofline_takes_the_names_of_its_profile() -> None:
    profile = Profile.model_validate(PROFILE)
    assert profile.target == Roofline(
        model="llama-3.1-8b", gpu="h100", tensor_parallel_size=2, memory_efficiency=0.9
    )
    assert profile.drafts["eagle3"].latency == Roofline(
        model="eagle3-llama-3.1-8b", gpu="h100", tensor_parallel_size=2
    )
    assert Profile.model_validate(profile.model_dump()) == profile


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": {"kind": "roofline", "gpu": "h200"}}, "target.gpu = 'h200', but gpu = 'h100'"),
        ({"drafts": {"eagle3": {"latency": {"kind": "roofline"}}}}, "model"),
        ({"target": {"kind": "rooflin"}}, "did you mean 'roofline'"),
        ({"target": "linear"}, "alpha_ns"),
        ({"gpu": "h10"}, "no GPU 'h10' in profiles/; did you mean 'h100'"),
    ],
)
def test_names_that_contradict_or_lack(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Profile.model_validate({**PROFILE, **changes})


def test_key_value_heads_fewer_than_gpus_are_replicated() -> None:
    shape = load_model("qwen3-30b-a3b")  # 4 of them
    assert shape.kv_bytes_per_token_and_gpu(2) == shape.kv_bytes_per_token / 2
    assert shape.kv_bytes_per_token_and_gpu(8) == shape.kv_bytes_per_token / 4


def test_the_command_writes_a_profile_that_runs(cli: Run, written: Written, tmp_path: Path) -> None:
    config = written(LLAMA)
    args = ("--gpu", "h100", "--tp", 2, "--draft", "eagle3=eagle3-llama-3.1-8b", "--out", "p.yaml")
    code, out, err = cli("profile", "roofline", "--model", config, *args)
    assert (code, err) == (0, "")
    for word in ("weights, GiB", "7.48", "67,584", "batch 256", "free budget", "profile: p.yaml"):
        assert word in out
    path = tmp_path / "p.yaml"
    profile = load_profile(str(path))
    assert profile.target.forward_time(StepLoad(0, 1)) == pytest.approx(3.3e-3, rel=0.05)
    experiment = tiny_config(profile=str(path))
    experiment["engine"]["num_gpu_blocks"] = None
    blocks = Deployment.of(Experiment.model_validate(experiment)).engine.num_gpu_blocks
    assert blocks is not None
    assert (blocks - 1) * 16 == profile.valid_range.context_tokens
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(experiment))
    assert cli("run", "exp.yaml")[0] == 0


def test_without_a_file_the_profile_is_standard_output(cli: Run) -> None:
    code, out, err = cli("profile", "roofline", "--model", "llama-2-7b", "--gpu", "ascend-910b4")
    assert code == 0
    assert isinstance(Profile.model_validate(yaml.safe_load(out)).target, Roofline)
    assert "does not fit" in err  # 64 sequences of 1,024 tokens


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--model", "llama-3.1-70b", "--gpu", "l4"), "no KV block fits"),
        (("--model", "llama-2-7", "--gpu", "h100"), "did you mean 'llama-2-7b'"),
        (("--model", "google/gemma-3-27b-it", "--gpu", "h100"), "did you mean 'gemma-3-27b'?"),
        (("--model", "no.json", "--gpu", "h100"), "no.json: cannot be read"),
        (("--model", "llama-2-7b", "--gpu", "h1000"), "no GPU 'h1000'"),
        (("--model", "llama-2-7b", "--gpu", "a100", "--tp", "2"), "; name a100-40gb or a100-80gb,"),
        (("--model", "llama-2-7b", "--gpu", "h100", "--tp", "3"), "32 attention heads"),
        (("--model", "qwen3-8b", "--gpu", "ascend-910b4"), "no peak_tflops for bfloat16"),
        (("--model", "llama-2-7b", "--gpu", "h100", "--draft", "eagle"), "is not METHOD=MODEL"),
        (
            ("--model", "llama-2-7b", "--gpu", "h100", "--memory-efficiency", "0"),
            "target.memory_efficiency = 0.0: should be greater than 0",
        ),
    ],
)
def test_a_profile_that_cannot_be_made_is_one_line(
    args: tuple[str, ...], message: str, cli: Run, tmp_path: Path
) -> None:
    code, out, err = cli("profile", "roofline", *args, "--out", "new/p.yaml")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("called", "found"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 PCIe", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("RTXPRO6000", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("Intel Arc Pro B60", "b60"),
    ],
)
def test_a_gpu_is_found_by_what_others_call_it(called: str, found: str) -> None:
    assert find_gpu([called], "test") == found


def test_a_gpu_that_sounds_alike_is_another_one() -> None:
    with pytest.raises(ProfileError, match="names NVIDIA L40, which is none"):
        find_gpu(["NVIDIA L40"], "test")


@pytest.mark.parametrize(
    ("called", "found"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct-AWQ", "qwen2.5-32b"),
        ("microsoft/Phi-4-mini-instruct", "phi-4-mini"),
        ("zai-org/GLM-4.5-Air/", "glm-4.5-air"),
        ("zai-org/GLM-4.7-FP8", "glm-4.6"),
        ("zai-org/GLM-4.7-Flash", "glm-4.7-flash"),
        ("Qwen/Qwen3.6-35B-A3B", "qwen3.5-35b-a3b"),
        ("zai-org/GLM-5.3-Flash-FP8", "glm-5.3-flash"),
        ("huihui-ai/Huihui-GLM-5.3-Flash-abliterated", "glm-5.3-flash"),
        ("meta-models/Muse-Glimmer-30B-Instruct", "muse-glimmer-30b"),
        ("deepseek-ai/DeepSeek-V2.5-1210", "deepseek-v2"),
        ("moonshotai/Kimi-K2.6", "kimi-k2.5"),
        ("allenai/Llama-3.1-Tulu-3-8B-SFT", "llama-3.1-8b"),
        ("zai-org/GLM-Z1-32B-0414", "glm-4-32b-0414"),
        ("microsoft/Phi-3.5-mini-instruct", "phi-3-mini-128k"),
        ("NousResearch/Hermes-4-14B", "qwen3-14b"),
        ("HuggingFaceH4/zephyr-7b-beta", "mistral-7b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-r1-distill-qwen-1.5b"),
    ],
)
def test_a_model_is_found_by_what_others_call_it(called: str, found: str) -> None:
    assert find_model([called], "test") == found


@pytest.mark.parametrize(
    "called",
    [
        *("microsoft/Phi-4-multimodal-instruct", "microsoft/Phi-4-reasoning-vision-15B"),
        *("nvidia/NVIDIA-Nemotron-Nano-4B-v2", "gemma-3n-E4B-it", "deepseek-ai/deepseek-vl2"),
    ],
)
def test_a_model_that_sounds_alike_is_another_one(called: str) -> None:
    with pytest.raises(ProfileError, match=f"test: names {called}, which is none of those known"):
        find_model([called], "test")


def test_other_names_are_of_models_that_are_known() -> None:
    path = Path(specs.__file__).with_name("model_aliases.yaml")
    aliases = yaml.safe_load(path.read_text())
    assert {*aliases.values()} <= {None, *model_names()}
    assert not {*aliases} & {*model_names()}


@pytest.mark.parametrize("name", ["glm-4.5-air", "qwen3-next-80b-a3b"])
def test_a_model_known_by_name_drafts_with_the_layer_that_vllm_runs(name: str) -> None:
    """Qwen3-Next's config.json does not say that it has one; vLLM takes it for granted."""
    target = load_model(name)
    layer = target.mtp_layer
    assert (target.num_nextn_predict_layers, layer.num_hidden_layers) == (1, 1)
    assert (layer.num_experts, layer.state_layers) == (target.num_experts, 0)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("H100", "h100"),
        ("h100 nvl", "h100-nvl"),
        ("H100 SXM", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("H200-141GB", "h200"),
        ("A100 40GB", "a100-40gb"),
        ("A100-SXM4-80GB", "a100-80gb"),
        ("RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("my/GPU.yaml", "my/GPU.yaml"),
        # Other GPUs, whatever they begin with:
        ("H100 PCIe", "h100-pcie"),
        ("A10G", "a10g"),
        ("L40S 24GB", "l40s-24gb"),
        ("H100 SXM 96GB", "h100-sxm-96gb"),
    ],
)
def test_a_gpu_may_be_typed_as_it_is_called_elsewhere(typed: str, name: str) -> None:
    assert gpu_as_typed(typed) == name
