"""Published models: what their config.json says is read as their classes in transformers have it.

The files are those of the package aiconfigurator-core.
"""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from specsim.api import Experiment, Summary, simulate
from specsim.core.step import StepLoad
from specsim.hardware import load_model
from specsim.profile.from_tables import TableProfile
from specsim.profile.kernel_tables import TableOptions, tables_folder

pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(
        find_spec("aiconfigurator_core") is None, reason="the extra 'tables' is not installed"
    ),
]

# Of transformers 5.23.0 on the meta device, text model without its MTP layers, millions.
PARAMETERS = {
    "MiniMaxAI--MiniMax-M2.5": 228_690,
    "Qwen--Qwen3-235B-A22B": 235_094,
    "Qwen--Qwen3.5-27B": 26_896,
    "Qwen--Qwen3.5-397B-A17B": 396_346,
    "XiaomiMiMo--MiMo-V2-Flash": 308_779,
    "deepseek-ai--DeepSeek-R1": 671_026,
    "deepseek-ai--DeepSeek-V3.2": 671_878,
    "deepseek-ai--DeepSeek-V4-Flash": 284_332,
    "deepseek-ai--DeepSeek-V4-Pro": 1_572_997,
    "google--gemma-4-26B-A4B": 25_233,
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": 400_712,
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": 107_770,
    "moonshotai--Kimi-K2.5": 1_026_408,
    "moonshotai--Kimi-K3": 2_780_000,  # its model card; transformers does not have it
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_578,
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 549_309,
    "nvidia--Nemotron-H-56B-Base-8K": 56_324,
    "openai--gpt-oss-120b": 116_829,
    "zai-org--GLM-5": 743_911,
    "zai-org--GLM-5.2": 743_377,
}


def folder() -> Path:
    return tables_folder().parent / "model_configs"


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_transformers(name: str) -> None:
    shape = load_model(str(folder() / f"{name}_config.json"))
    assert shape.num_parameters / 1e6 == pytest.approx(PARAMETERS[name], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "written"),
    [("XiaomiMiMo--MiMo-7B-Base", "mtp-mimo-7b"), ("deepseek-ai--DeepSeek-R1", "deepseek-v3-mtp")],
)
def test_an_mtp_layer_is_as_somebody_wrote_it_down(name: str, written: str) -> None:
    layer = load_model(str(folder() / f"{name}_config.json")).mtp_layer
    known = load_model(written)
    assert layer.num_parameters == known.num_parameters
    assert layer.kv_bytes_per_token == known.kv_bytes_per_token
    assert layer.layers == known.layers


def test_mtp_layers_of_all_models_have_the_targets_embedding_and_lm_head() -> None:
    files = folder().glob("*_config.json")
    shapes = [load_model(str(file)) for file in files if "hf_quant" not in file.name]
    known = [shape for shape in shapes if shape.mtp_problem is None]
    assert len(known) >= 25
    for shape in known:
        layer = shape.mtp_layer
        one = shape.num_parameters / shape.num_hidden_layers
        # A layer of experts is a little more than the mean; the fusing matrix comes to it.
        assert 0.5 * one < layer.num_parameters - 2 * shape.hidden_size**2 < 1.5 * one
        assert (layer.has_own_embedding, layer.has_own_lm_head) == (False, False)


@pytest.mark.parametrize("name", ["zai-org--GLM-5", "zai-org--GLM-5.2"])
def test_the_mtp_layer_of_glm_5_has_an_indexer_of_its_own(name: str) -> None:
    layer = load_model(str(folder() / f"{name}_config.json")).mtp_layer
    assert [each.indexer for each in layer.layers] == ["full"]
    experts, shared = 256 * 3 * 6144 * 2048, 3 * 6144 * 2048
    latent = 6144 * (2048 + 576) + 2048 * 64 * 256 + 512 * 64 * (192 + 256) + 64 * 256 * 6144
    indexer = 2048 * 32 * 128 + 6144 * (128 + 32)
    counted = experts + shared + latent + indexer + 2 * 6144 * 6144
    assert layer.num_parameters == pytest.approx(counted, rel=1e-3)


def test_all_are_read() -> None:
    files = [file for file in folder().glob("*_config.json") if "hf_quant" not in file.name]
    assert len(files) >= 89
    for file in files:
        assert load_model(str(file)).quantization != "other"


def test_layers_of_nas_have_the_widths_that_were_searched_for() -> None:
    shape = load_model(str(folder() / "nvidia--Llama-3_3-Nemotron-Super-49B-v1_config.json"))
    assert shape.num_parameters == pytest.approx(49.87e9, rel=1e-3)  # its card: 49.9 billion
    assert (shape.num_key_value_heads, sum(shape.layer_counts.values())) == (8, 49)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("moonshotai--Kimi-K2.5", "int4,attention=bfloat16,mlp=bfloat16"),
        ("nvidia--Kimi-K2.5-NVFP4", "nvfp4,attention=bfloat16"),
        ("nvidia--MiniMax-M3-NVFP4", "nvfp4,attention=fp8_block,mlp=fp8_block"),
        ("nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", "nvfp4,attention=fp8"),
        ("nvidia--Llama-3.1-70B-Instruct-FP8", "fp8"),
        ("deepseek-ai--DeepSeek-V4-Pro", "mxfp4_mxfp8,attention=fp8_block,mlp=fp8_block"),
        ("nvidia--DeepSeek-V4-Flash-NVFP4", "nvfp4,attention=fp8_block,mlp=fp8_block"),
        ("zai-org--GLM-5-FP8", "fp8_block"),
        ("openai--gpt-oss-120b", "mxfp4"),
    ],
)
def test_parts_are_stored_as_published(name: str, dtype: str) -> None:
    assert load_model(str(folder() / f"{name}_config.json")).quantization == dtype


def test_an_8_bit_kv_cache_is_composed_where_the_checkpoint_says_so() -> None:
    path = str(folder() / "nvidia--Llama-3.1-70B-Instruct-FP8_config.json")
    options = TableOptions(path, "h200", dtype="auto", tensor_parallel_size=8)
    by_itself, whole = (
        TableProfile.of(replace(options, **said)).profile for said in ({}, {"kv_dtype": "bfloat16"})
    )
    assert by_itself.kv_bytes_per_token == 20_480
    assert whole.kv_bytes_per_token == 2 * 20_480
    assert "KV cache fp8" in by_itself.provenance.notes


def built(name: str, gpu: str, size: int) -> TableProfile:
    path = str(folder() / f"{name}_config.json")
    return TableProfile.of(TableOptions(path, gpu, dtype="auto", tensor_parallel_size=size))


def test_sparse_attention_reads_what_its_indexer_chooses() -> None:
    """Every layer has the chosen tokens, each fourth the scan; together they are as measured."""
    made = built("zai-org--GLM-5.2-FP8", "h200", 8)
    groups = made.profile.target.attention
    assert sorted((each.num_layers, each.window) for each in groups if each.window) == [
        (21, 2048), (57, 2048),
    ]  # fmt: skip
    (scan,) = (each for each in groups if each.window is None)
    assert scan.num_layers == 21
    assert scan.decode_us[-1][-1] > 2 * scan.decode_us[1][-1]  # of all tokens
    assert made.profile.kv_bytes_per_token == 78 * 576 * 2 + 21 * 132


def test_attention_to_a_compressed_context_is_a_window_entries_and_a_scan() -> None:
    made = built("sgl-project--DeepSeek-V4-Flash-FP8", "h200", 8)
    sliding, chosen, scan, entries = made.profile.target.attention
    assert [(each.num_layers, each.window) for each in (sliding, chosen, scan, entries)] == [
        (2, 128), (21, 4 * 512), (21, None), (20, None),
    ]  # fmt: skip
    assert scan.decode_us[-1][-1] > 2 * scan.decode_us[1][-1]  # of all tokens
    assert sliding.decode_us[-1][0] == entries.decode_us[entries.context_tokens.index(129)][0]
    assert made.profile.kv_bytes_per_token == 1_002_240 / 256
    source = made.fields["provenance"]["source"]
    assert "mhc_module_perf" in source
    assert "layers with a window only as heavily_compressed_attention" in source


@pytest.mark.parametrize(
    ("name", "gpu", "size"),
    [
        ("deepseek-ai--DeepSeek-V4-Flash", "b200", 4),
        ("nvidia--DeepSeek-V4-Pro-NVFP4", "b200", 8),
        ("sgl-project--DeepSeek-V4-Pro-FP8", "b300", 8),  # of which a B200 has too little memory
    ],
)
def test_deepseek_v4_is_composed_where_it_fits(name: str, gpu: str, size: int) -> None:
    table = built(name, gpu, size)
    made = table.profile
    # Of Pro on B300 the table begins with 64 sequences.
    assert ("attention of fewer sequences than 64" in "".join(table.sources)) == (gpu == "b300")
    load = StepLoad(num_requests=32, batched_tokens=32, context_tokens=32 * 8192)
    assert 0.005 < made.target.forward_time(load) < 0.05
    assert made.weights_gib is not None


def test_later_turns_of_deepseek_v4_begin_where_the_last_one_ended() -> None:
    turns = {"kind": "sessions", "turns": 4, "first_prompt": 3000, "new_input": 400, "output": 200}
    fields = {
        "workload": {
            "arrivals": {"kind": "closed_loop", "concurrency": 2},
            "lengths": turns,
            "num_requests": 24,
        },
        "profile": "made of tables",
    }
    fields["engine"] = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
    fields["acceptance"] = {"kind": "preset", "name": "deepseek-v4-pro/mtp/speed-bench-coding"}
    path = str(folder() / "sgl-project--DeepSeek-V4-Flash-FP8_config.json")
    drafts = {"mtp": "deepseek-v4-flash-mtp"}
    options = TableOptions(path, "h200", dtype="auto", tensor_parallel_size=8, drafts=drafts)
    profile = TableProfile.of(options).profile
    assert profile.drafts["mtp"].kv_bytes_per_token == 0  # it slides, in blocks that are there
    run = Summary(simulate(Experiment.parse(fields, "compressed"), profile=profile, check=True))
    hits = run.tables.requests["cached_len"]
    assert (hits % 256 == 0).all()  # where blocks of all groups end
    assert hits.sum() > 0.5 * run.tables.requests["prompt_len"].sum()


def test_states_of_nemotron_h_have_32_bits_where_it_does_not_say() -> None:
    """vLLM 0.33.0 models/config.py, NemotronHForCausalLMConfig."""
    shape = load_model(str(folder() / "nvidia--Nemotron-H-56B-Base-8K_config.json"))
    assert shape.mamba_ssm_dtype == "float32"


def test_layers_with_a_state_take_as_long_at_any_context() -> None:
    made = built("Qwen--Qwen3.5-35B-A3B", "h200", 1)
    attention, states = made.profile.target.attention
    assert (attention.num_layers, states.num_layers, states.window) == (10, 30, 1)
    assert states.decode_us[0] == states.decode_us[1]
    assert states.prompt.times_us[-1] / states.prompt.times_us[-2] == pytest.approx(2, rel=0.05)
    assert made.profile.kv_bytes_per_token == 10 * 2 * 2 * 256 * 2
    roofline = built("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "h200", 1)
    assert "layers with a state by roofline" in roofline.fields["provenance"]["source"]


def test_later_turns_of_a_model_with_states_begin_where_the_last_one_ended() -> None:
    """Full blocks of attention are hit, and the state behind them (vLLM: align, by default)."""
    turns = {"kind": "sessions", "turns": 4, "first_prompt": 3000, "new_input": 400, "output": 200}
    fields = {
        "workload": {
            "arrivals": {"kind": "closed_loop", "concurrency": 2},
            "lengths": turns,
            "num_requests": 24,
        },
        "profile": "made of tables",
    }
    profile = built("Qwen--Qwen3.5-27B", "h200", 1).profile
    run = Summary(simulate(Experiment.parse(fields, "states"), profile=profile, check=True))
    engine = run.run.deployment.engine
    assert (engine.enable_prefix_caching, engine.block_size) == (True, 832)  # 13 times 64
    hits = run.tables.requests["cached_len"]
    assert (hits % engine.block_size == 0).all()
    assert hits.sum() > 0.5 * run.tables.requests["prompt_len"].sum()


def test_kimi_k3_takes_as_much_memory_as_its_checkpoint() -> None:
    """Experts in MXFP4, all else in 16 bits: 1.56 TB lie on HuggingFace, images' part included."""
    made = built("moonshotai--Kimi-K3", "b300", 8)
    assert made.profile.weights_gib is not None
    assert made.profile.weights_gib * 8 * 2**30 == pytest.approx(1.56e12, rel=5e-3)
    attention, states = made.profile.target.attention
    assert (attention.num_layers, states.num_layers, states.window) == (24, 69, 1)
    source = made.fields["provenance"]["source"]
    assert "kda_perf" in source
    assert "12 heads on a latent vector between 8 and 16" in source


def test_heads_with_states_that_nobody_measured_lie_between_others() -> None:
    """Kimi-Linear has 32 heads, or 16 on each of 2 GPUs: 12, 24 and 48 were measured."""
    made = [
        TableProfile.of(TableOptions("kimi-linear-48b-a3b", "h200", tensor_parallel_size=size))
        for size in (1, 2)
    ]
    for table, said in zip(made, ("32 heads .* between 24 and 48", "16 .* 12 and 24"), strict=True):
        assert re.search(said, table.fields["provenance"]["source"])
        assert table.profile.kv_bytes_per_token == 7 * 576 * 2
    whole, half = (table.profile.target.attention[-1] for table in made)
    assert (whole.num_layers, whole.window) == (20, 1)
    assert half.decode_us[0][-1] < whole.decode_us[0][-1] < 2.2 * half.decode_us[0][-1]
    assert half.prompt.times_us[-1] < whole.prompt.times_us[-1] < 2.2 * half.prompt.times_us[-1]


def test_heads_of_layers_with_a_window_may_be_more(tmp_path: Path) -> None:
    """Of Step-3.5, with 96 in place of 64; attention to everything is as if it had 64 in all."""
    made, fewer = (
        TableProfile.of(TableOptions(model, "h200", tensor_parallel_size=8)).profile.target
        for model in ("step-3.5-flash", _with_as_many_heads(tmp_path))
    )
    (full, own), (same, others) = made.attention, fewer.attention
    assert (full.num_layers, own.num_layers, own.window) == (12, 33, 512)
    assert full.decode_us == same.decode_us
    assert own.decode_us[-1][-1] > others.decode_us[-1][-1]


def _with_as_many_heads(folder: Path) -> str:
    shape = load_model("step-3.5-flash").model_copy(update={"num_sliding_attention_heads": None})
    path = folder / "shape.json"
    path.write_text(shape.model_dump_json())
    return str(path)


def test_experts_and_spans_that_nobody_measured_are_carried_over() -> None:
    source = built("stepfun-ai--Step-3.7-Flash-FP8", "h200", 8).fields["provenance"]["source"]
    assert "carried over from 4096 x" in source
    assert "a window of 512 tokens as attention to all of so many" in source
