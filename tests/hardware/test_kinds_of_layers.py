"""Layers that few models have: their weights, what they keep of a token and of a sequence."""

from collections.abc import Callable
from typing import Any

import pytest

from specsim.core.errors import ProfileError
from specsim.hardware import load_model
from specsim.hardware.kv_groups import KVLayers, kv_layout
from specsim.hardware.model_shape import ModelShape

Written = Callable[[dict[str, Any]], str]


SIZES = {
    "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 4096, "head_dim": 16,
    "torch_dtype": "bfloat16",
}  # fmt: skip
JAMBA = SIZES | {
    "model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 1, "mamba_d_state": 16,
    "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 8, "mamba_d_conv": 4,
    "num_experts_per_tok": 2, "mamba_expand": 2, "mamba_dt_rank": "auto",
}  # fmt: skip
KIMI = SIZES | {
    "model_type": "kimi_linear", "kv_lora_rank": 32, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "qk_rope_head_dim": 8, "linear_attn_config": {
        "kda_layers": [1, 2, 3, 5, 6, 7], "full_attn_layers": [4, 8], "num_heads": 4,
        "head_dim": 8, "short_conv_kernel_size": 4,
    },
}  # fmt: skip
FALCON = SIZES | {
    "model_type": "falcon_h1", "mamba_n_groups": 1, "mamba_n_heads": 8, "mamba_d_state": 32,
    "mamba_d_head": 16, "mamba_d_conv": 4,
}  # fmt: skip
STEP = SIZES | {
    "model_type": "step3p5", "num_nextn_predict_layers": 2, "sliding_window": 512,
    "layer_types": ["full_attention", "sliding_attention"] * 5, "use_head_wise_attn_gate": True,
    "moe_num_experts": 8, "moe_top_k": 2, "moe_intermediate_size": 48, "share_expert_dim": 48,
    "moe_layers_enum": "3,5", "attention_other_setting": {
        "attention_type": "sliding_attention", "num_attention_heads": 6, "num_attention_groups": 2,
        "head_dim": 16,
    },
}  # fmt: skip

GEMMA = SIZES | {
    "model_type": "gemma4_text", "global_head_dim": 32, "sliding_window": 512,
    "layer_types": ["sliding_attention", "full_attention"] * 4, "num_kv_shared_layers": 4,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 100,
}  # fmt: skip


def weights(shape: ModelShape, layers: int) -> dict[str, list[tuple[int, int]]]:
    """Return outputs and inputs of the attention matrices that so many layers have."""
    found: dict[str, list[tuple[int, int]]] = {}
    for each in shape.attention_matrices(1):
        if each.layers == layers:
            found.setdefault(each.name, []).append((each.outputs, each.inputs))
    return found


def groups(shape: ModelShape) -> list[tuple[str, int]]:
    layers = shape.kv_layers(shape.kv_bytes_per_token)
    return [(each.kind, each.num_layers) for each in kv_layout(layers, 16).groups]


def test_attention_and_a_state_side_by_side_in_each_layer() -> None:
    """Falcon-H1-34B: of a state 32 x 128 x 256 numbers, of its convolution 3 x 5,120."""
    shape = load_model("falcon-h1-34b")
    assert shape.state_bytes(1) == 72 * (32 * 128 * 256 + 3 * 5120) * 2
    assert shape.kv_bytes_per_token == 72 * 2 * 4 * 128 * 2
    # As vLLM 0.33.0 has them (kv_cache_planning.py get_kv_cache_groups): attention comes first.
    assert groups(shape) == [("full_attention", 72), ("state", 72)]
    found = weights(shape, 72)
    assert found["qkv"] == [((20 + 2 * 4) * 128, 5120)]
    assert found["state_in"] == [(4096 + 4096 + 2 * 2 * 256 + 32, 5120)]
    assert found["o"] == [(5120, 20 * 128), (5120, 4096)]
    assert (shape.num_halves, shape.num_sums) == (144, 216)


def test_keys_of_fewer_groups_than_gpus_are_on_each(written: Written) -> None:
    shape = load_model(written(FALCON))
    convolved, state = 8 * 16 + 2 * 32, 8 * 16 * 32
    assert shape.state_bytes(1) == 8 * (state + 3 * convolved) * 2
    assert shape.state_bytes(4) == 8 * (state / 4 + 3 * (8 * 16 // 4 + 2 * 32)) * 2


def test_the_first_mamba_has_a_state_of_each_number_that_is_convolved(written: Written) -> None:
    shape = load_model(written(JAMBA))
    kinds = ["mamba", "full_attention", "mamba", "mamba"] * 2
    assert [each.kind for each in shape.layers] == kinds
    assert [each.has_experts for each in shape.layers] == [False, True] * 4
    assert shape.state_bytes(1) == 6 * (128 * 16 + 3 * 128) * 2
    assert shape.state_bytes(2) == shape.state_bytes(1) / 2
    assert weights(shape, 6) == {
        "state_in": [(2 * 128, 64)],
        "o": [(64, 128)],
        "choose": [(4 + 2 * 16, 128)],
        "rank": [(128, 4)],
    }
    assert groups(shape) == [("state", 2), ("state", 2), ("state", 2), ("full_attention", 2)]


@pytest.mark.parametrize("said", [{"num_experts": 1, "num_experts_per_tok": 1}, {"use_moe": False}])
def test_one_expert_is_a_dense_mlp(written: Written, said: dict[str, Any]) -> None:
    shape = load_model(written({**JAMBA, **said}))
    assert (shape.num_experts, shape.num_expert_layers) == (0, 0)
    assert {each.mlp_width for each in shape.layers} == {96}


def test_decays_of_each_number_of_a_key_come_from_few_numbers(written: Written) -> None:
    shape = load_model(written(KIMI))
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    assert [each.kind for each in shape.layers] == kinds * 2
    assert weights(shape, 6) == {
        "state_in": [(3 * 32 + 4 + 8 + 8, 64)],  # q, k, v; beta; both ranks
        "o": [(64, 32)],
        "rank": [(32, 8), (32, 8)],
    }
    assert shape.state_bytes(1) == 6 * (4 * 8 * 8 * 4 + 3 * 96 * 2)  # the state in 32 bits
    assert shape.kv_bytes_per_token == 2 * (32 + 8) * 2
    inner = {**KIMI["linear_attn_config"], "use_full_rank_gate": True}
    at_once = load_model(written({**KIMI, "linear_attn_config": inner}))
    assert weights(at_once, 6)["state_in"] == [(4 * 32 + 4 + 8, 64)]
    gated = load_model(written({**KIMI, "mla_use_output_gate": True}))
    assert weights(gated, 2)["qkv"][0][0] == weights(shape, 2)["qkv"][0][0] + 4 * 16


def test_groups_of_kimi_linear_are_vllms() -> None:
    """Of vLLM 0.33.0 kv_cache_planning.py get_kv_cache_groups: 20 and 7 layers."""
    kept = [("state", 7), ("state", 7), ("state", 6), ("full_attention", 7)]
    assert groups(load_model("kimi-linear-48b-a3b")) == kept


def test_glm_5_3_flash_pools_its_index_keys() -> None:
    """Of vLLM 0.33.0 models/glm5next; groups and bytes as its kv_cache_planning.py has them."""
    shape = load_model("glm-5.3-flash")
    assert weights(shape, 11)["index_k"] == [(2 * 128 + 32, 4096)]
    assert shape.kv_bytes_per_token == 11 * (512 * 2 + (128 + 4) // 4)
    layer = shape.mtp_layer
    assert (layer.state_layers, layer.hc_mult, layer.kv_bytes_per_token) == (0, 0, 1057)
    assert shape.quantization == "fp8_block,attention=bfloat16"
    kept = shape.kv_layers(shape.kv_bytes_per_token)
    states = [("state", n) for n in (9, 9, 8, 8)]
    assert groups(shape) == [*states, ("full_attention", 11), ("full_attention", 11)]
    own = kv_layout((*kept, KVLayers(kind="full_attention", layers=1, bytes_per_token=1057)), 640)
    assert [each.num_layers for each in own.groups] == [12, 11, 11, 12, 11]
    assert (own.block_bytes, own.common_block_size, own.hash_block_size) == (8_117_760, 640, 640)
    assert own.most_blocks(640, 0) == 3 + 1 + 1  # a state of each group, attention, and the ring


def test_layers_of_delta_attention_may_be_counted_from_0_or_named(written: Written) -> None:
    counted = {"kda_layers": [0, 1, 2, 4, 5, 6], "full_attn_layers": [3, 7]}
    inner = {**KIMI["linear_attn_config"], **counted}
    assert load_model(written({**KIMI, "linear_attn_config": inner})).layers == (
        load_model(written(KIMI)).layers
    )
    named = {name: value for name, value in KIMI.items() if name != "linear_attn_config"}
    named |= {"linear_num_heads": 4, "linear_head_dim": 8, "linear_conv_kernel_dim": 4}
    named |= {"index_topk": 64, "index_n_heads": 2, "index_head_dim": 8, "index_kpool": 4}
    types = (["linear_attention"] * 3 + ["indexed_attention"]) * 2
    shape = load_model(written({**named, "model_type": "glm5_next_text", "layer_types": types}))
    assert shape.state_bytes(1) == load_model(written(KIMI)).state_bytes(1)
    assert shape.kv_bytes_per_token == 2 * ((32 + 8) * 2 + (8 + 4) // 4)


def test_what_transformers_writes_of_single_layers_is_of_full_attention(written: Written) -> None:
    """Gemma 4, saved by transformers 5.19: no global_head_dim."""
    plain = {name: GEMMA[name] for name in GEMMA if name != "global_head_dim"}
    said = {f"{number:02}": {"head_dim": 32} for number in (1, 3, 5, 7)}
    known = load_model(written({**plain, "per_layer_config": said}))
    assert known.attention_widths == load_model(written(GEMMA)).attention_widths
    with pytest.raises(ProfileError, match="has layers of different shapes"):
        load_model(written({**plain, "per_layer_config": said | {"01": {"head_dim": 64}}}))


def test_what_transformers_writes_of_minimax_m3_is_as_published(written: Written) -> None:
    sparse = {"sparse_topk_blocks": 4, "sparse_block_size": 16, "sparse_num_index_heads": 2}
    sparse |= {"sparse_index_dim": 8, "sparse_attention_freq": [0, 0] + [1] * 6}
    published = {"model_type": "minimax_m3", "sparse_attention_config": sparse}
    saved = {"model_type": "minimax_m3_vl_text", "index_topk_blocks": 4, "index_block_size": 16}
    saved |= {"index_n_heads": 2, "index_head_dim": 8}
    saved |= {"layer_types": ["full_attention"] * 2 + ["minimax_m3_sparse"] * 6}
    shapes = [load_model(written(SIZES | each)) for each in (published, saved)]
    assert shapes[0].layers == shapes[1].layers
    assert shapes[0].index_topk == shapes[1].index_topk == 64


def test_heads_may_be_listed_for_each_layer(written: Written) -> None:
    """Laguna's, as its class in transformers 5.24.0 counts them; its gate is of heads or more."""
    types = ["full_attention", "sliding_attention"] * 4
    own = SIZES | {"model_type": "laguna", "layer_types": types, "sliding_window": 16}
    own |= {"num_attention_heads_per_layer": [8, 16] * 4, "gating": True, "num_attention_heads": 4}
    shape = load_model(written(own))
    widths = {kind: each.num_attention_heads for kind, each in shape.attention_kinds}
    assert widths == {"full_attention": 8, "sliding_attention": 16}
    assert shape.attn_output_gate == "per_head"
    assert load_model(written(own | {"gating": "per-element"})).attn_output_gate is True
    own["num_attention_heads_per_layer"] = [8, 16, 8, 16, 8, 16, 8, 8]
    with pytest.raises(ProfileError, match="layers of different shapes"):
        load_model(written(own))


def test_what_transformers_writes_of_mimo_v2_is_as_published(written: Written) -> None:
    """Layers with a window have twice as many key-value heads, which its class says."""
    own = SIZES | {"model_type": "mimo_v2_flash", "v_head_dim": 8, "sliding_window": 16}
    published = {"hybrid_layer_pattern": [0, 1] * 4, "swa_num_key_value_heads": 4}
    saved = {"layer_types": ["full_attention", "sliding_attention"] * 4}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
    shapes = [load_model(written(own | heads | each)) for each in (published, saved)]
    assert shapes[0].attention_kinds == shapes[1].attention_kinds
    assert [each.num_key_value_heads for each in shapes[1].attention_widths] == [2, 4]


@pytest.mark.parametrize(
    ("family", "name", "words"),
    [
        ("nemotron_h", "hybrid_override_pattern", ["linear_attention", "moe", "full_attention"]),
        ("deepseek_v4", "mlp_layer_types", ["hash_moe", "moe", "moe"]),
    ],
)
def test_words_of_newer_transformers_are_known(
    written: Written, family: str, name: str, words: list[str]
) -> None:
    config = {**SIZES, "model_type": family, "num_hidden_layers": 3, "num_experts": 8, name: words}
    config |= {"num_experts_per_tok": 2, "moe_intermediate_size": 48, "mamba_num_heads": 8}
    if family == "nemotron_h":
        config |= {"n_groups": 1, "ssm_state_size": 16, "mamba_head_dim": 16, "conv_kernel": 4}
    shape = load_model(written(config))
    assert [each.has_experts for each in shape.layers] == ["moe" in word for word in words]


def test_index_keys_of_minimax_m3_have_16_bits(written: Written) -> None:
    """Of vLLM 0.33.0 models/minimax_m3/nvidia/model.py, resolve_indexer_kv_dtype("bf16")."""
    sparse = {"sparse_topk_blocks": 4, "sparse_block_size": 16, "sparse_num_index_heads": 2}
    sparse |= {"sparse_index_dim": 8, "sparse_attention_freq": [0, 0] + [1] * 6}
    shape = load_model(
        written(SIZES | {"model_type": "minimax_m3", "sparse_attention_config": sparse})
    )
    assert shape.kv_bytes_per_token == 8 * 2 * 2 * 16 * 2 + 6 * 8 * 2


@pytest.mark.parametrize(("said", "width"), [("elementwise", 4 * 16), ("headwise", 0)])
def test_latent_attention_of_hy4_has_an_indexer_and_a_gate(
    written: Written, said: str, width: int
) -> None:
    """Of vLLM 0.33.0 models/hy_v4/nvidia/attention.py; counts as transformers 5.19 has them."""
    latent = {name: KIMI[name] for name in KIMI if name != "linear_attn_config"}
    indexed = {"index_topk": 64, "index_n_heads": 2, "index_head_dim": 8, "hc_mult": 4}
    types = {"indexer_types": ["full", "shared"] * 4, "gated_mla": True, "gating_type": said}
    shape = load_model(written({**latent, **indexed, **types, "model_type": "hy_v4"}))
    assert {inputs_of[0] for inputs_of in weights(shape, 4)["qkv"]} == {4 * 24 + 32 + 8 + width}
    assert ("gate" in weights(shape, 4)) == (said == "headwise")
    assert shape.kv_bytes_per_token == 8 * 40 * 2 + 4 * (8 + 4)


def test_residual_streams_are_no_mlp_that_is_stored_in_16_bits(written: Written) -> None:
    streams = [f"model.layers.{number}.hc_ffn_fn" for number in range(8)]
    stored = {"quant_method": "fp8", "modules_to_not_convert": streams}
    assert load_model(written({**SIZES, "quantization_config": stored})).quantization == "fp8"


def test_residuals_of_blocks_have_two_vectors_for_each_part(written: Written) -> None:
    plain = load_model(written(KIMI))
    blocks = load_model(written({**KIMI, "attn_res_block_size": 4}))
    assert blocks.num_parameters - plain.num_parameters == 2 * 64 * (2 * 8 + 1)


def test_layers_with_a_window_may_have_more_heads(written: Written) -> None:
    shape = load_model(written(STEP))
    assert [each.kind for each in shape.layers] == ["full_attention", "sliding_attention"] * 4
    assert [number for number, each in enumerate(shape.layers) if each.has_experts] == [3, 5]
    heads = [each.num_attention_heads for each in shape.attention_widths]
    assert heads == [4, 6]
    assert weights(shape, 4)["qkv"] == [((4 + 2 * 2) * 16, 64), ((6 + 2 * 2) * 16, 64)]
    assert weights(shape, 4)["gate"] == [(4, 64), (6, 64)]
    with pytest.raises(ValueError, match="has 6 attention heads in a window"):
        shape.check_split(4)


def test_gates_of_trinity_are_as_wide_as_its_queries() -> None:
    shape = load_model("trinity-nano")
    assert shape.attn_output_gate is True
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    assert [each.kind for each in shape.layers] == kinds * 14
    assert [each.has_experts for each in shape.layers] == [False] * 2 + [True] * 54


def test_last_layers_may_read_the_keys_and_values_of_earlier_ones(written: Written) -> None:
    shape = load_model(written(GEMMA))
    alone = load_model(written(GEMMA | {"num_kv_shared_layers": 0}))
    assert shape.kv_bytes_per_token == alone.kv_bytes_per_token / 2
    assert [each.has_own_keys for each in shape.layers] == [True] * 4 + [False] * 4
    keys = 2 * (2 * 16 + 2 * 32) * 64 * 2  # of two layers of each kind
    assert alone.num_parameters - shape.num_parameters == keys
    window, everything = (4 * 16, 64), (4 * 32, 64)
    assert {window, everything} < set(weights(shape, 2)["qkv"])  # queries alone
    assert sum(shape.attention_kinds.values()) == 8  # all of them read


def test_mlps_of_layers_without_keys_may_be_twice_as_wide(written: Written) -> None:
    shape = load_model(written(GEMMA | {"use_double_wide_mlp": True}))
    assert [each.mlp_width for each in shape.layers] == [96] * 4 + [192] * 4


def test_embeddings_of_each_layer_lie_in_memory_and_are_projected(written: Written) -> None:
    shape = load_model(written(GEMMA))
    without = load_model(written(GEMMA | {"hidden_size_per_layer_input": 0}))
    assert shape.other_embeddings == 100 * 8 * 8
    matrices = 64 * 8 * 8 + 8 * 2 * 64 * 8
    assert shape.num_parameters - without.num_parameters == shape.other_embeddings + matrices


def test_groups_of_gemma_4_e4b_are_vllms() -> None:
    """Of vLLM 0.33.0 kv_cache_planning.py get_kv_cache_groups: 24 layers keep something."""
    shape = load_model("gemma-4-e4b")
    layout = kv_layout(shape.kv_layers(shape.kv_bytes_per_token), 16)
    found = [(each.kind, each.block_size, each.num_layers) for each in layout.groups]
    assert found == [("sliding_window", 32, 4)] * 5 + [("full_attention", 16, 4)]
    assert layout.block_bytes == 4 * 65536


def test_layers_of_a_searched_model_are_known_by_name() -> None:
    shape = load_model("llama-3_3-nemotron-super-49b-v1")
    assert [each.kind for each in shape.layers].count("none") == 31
    assert shape.kv_bytes_per_token == 49 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (JAMBA | {"attn_layer_offset": 4}, "attn_layer_offset = 4: must be a whole number below"),
        (JAMBA | {"attn_layer_period": 0}, "attn_layer_period = 0: must be a whole number above"),
        (JAMBA | {"mamba_expand": None}, "'mamba_expand' is missing"),
        (FALCON | {"attn_layer_indices": [1]}, "has layers without attention, which is not model"),
        (KIMI | {"linear_attn_config": {"kda_layers": [1]}}, "must be kda_layers and full_attn_la"),
        (KIMI | {"linear_attn_config": {"kda_layers": 7}}, "which name each of 1 to 8 once"),
        (STEP | {"num_nextn_predict_layers": "x"}, "num_nextn_predict_layers = 'x': must be a who"),
        (KIMI | {"model_type": "other"}, "has layers of linear attention, which is not modelled"),
        (SIZES | {"model_type": "qwen4_exp_text"}, "embeddings of n-grams, which is not modelled"),
        (SIZES | {"model_type": "step5", "sparse_config": {"topk": 512}}, "has sparse attention, "),
        (SIZES | {"swa_num_attention_heads": 8}, "has layers of different shapes, which is not"),
        (
            STEP | {"attention_other_setting": {"num_attention_heads": 6, "head_dim": 32}},
            "attention_other_setting = .* only the number of query heads differs",
        ),
        (STEP | {"attention_other_setting": 96}, "must be of layers with a window"),
        (GEMMA | {"num_kv_shared_layers": 8}, "num_kv_shared_layers = 8: must be fewer than num_"),
        (GEMMA | {"model_type": "gemma3n_text"}, "has layers that share keys and values, which"),
        (GEMMA | {"altup_num_inputs": 4}, "has several residual streams, which is not modelled"),
        (STEP | {"model_type": "other"}, "has layers of different shapes, which is not modelled"),
    ],
)
def test_what_is_not_modelled_is_refused_in_one_line(
    written: Written, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProfileError, match=message) as caught:
        load_model(written(config))
    assert "\n" not in str(caught.value)
