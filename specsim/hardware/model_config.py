"""HuggingFace ``config.json``: the fields of a model's shape, under the names of each family."""

from collections.abc import Iterator
from typing import Any

from specsim.core.errors import ProfileError
from specsim.core.reading import short
from specsim.hardware.config_parts import ALIASES, INSTEAD, LayerLists, precision
from specsim.hardware.model_fields import STATES

# Defaults of the classes of these model types, which their configs leave out.
_TIED = {"bloom", "cohere", "cohere2", "gemma", "gemma2", "gemma3_text", "gemma4_text", "opt"}
_TIED |= {"falcon", "gpt2", "minicpm", "starcoder2"}
_UNGATED = {"bloom", "gpt_neox", "nemotron", "opt", "phi", "starcoder2"}
_UNGATED |= {"apertus", "apertus1p5_text", "arcee", "cosmos3_edge_text", "falcon", "gpt2", "gptj"}
_UNGATED |= {"jais2", "nanochat", "nemotron_h"}
# Whose heads all have keys and values of their own; whose MLP is four times as wide as the rest.
_MANY_HEADS = {"baichuan", "bloom", "gpt2", "gpt_neox", "gptj", "opt"}
_LEARNED = {"gpt2", "opt"}  # have an embedding of each position
_FOUR_TIMES = {"bloom", "falcon", "gpt2", "gptj"}
# Have nothing but experts, so that their width goes by the plain name.
_ONLY_EXPERTS = {
    "aria_text",
    "cohere2_moe",
    "dbrx",
    "flex_olmo",
    "gpt_oss",
    "granitemoe",
    "granitemoe_swa",
    "granitemoeshared",
    "jamba",
    "granitemoehybrid",
    "hunyuan_v1_moe",
    "llama4_text",
    "minimax_m2",
    "minimax_m3",
    "minimax_m3_text",
    "minimax_m3_vl",
    "minimax_m3_vl_text",
    "mixtral",
    "olmoe",
    "phimoe",
}
# Whose layers for multi-token prediction are as the last of the others (vLLM 0.32.0 ``models/``
# ``deepseek_mtp.py``, ``glm4_moe_mtp.py``, ``mimo_mtp.py``, ``qwen3_next_mtp.py``,
# ``qwen3_5_mtp.py``; DeepSeek-V3.2's and GLM-5's: ``vllm/models/deepseek_v32``).
_USUAL_MTP = {"deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "mimo"}
_USUAL_MTP |= {"glm5_next_text"}
_USUAL_MTP_FAMILIES = ("qwen3_next", "qwen3_5")
_SPANS = ("sliding_window", "attention_chunk_size")
_NO_WINDOW = ("qwen", "mimo")  # begin the types of models whose window counts only if they say so
_STATE_FIELDS = {
    "linear_num_key_heads": "n_groups",
    "linear_num_value_heads": "mamba_num_heads",
    "linear_key_head_dim": "ssm_state_size",
    "linear_value_head_dim": "mamba_head_dim",
    "linear_conv_kernel_dim": "conv_kernel",
}
_BLOCK_FIELDS = {
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_block_size": "index_block_size",
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
}
_GLOBAL = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
_AS_TRANSFORMERS = {
    "num_heads": "linear_num_heads",
    "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
_STATE_NAMES = "mamba_n_groups", "mamba_n_heads", "mamba_d_state", "mamba_d_head", "mamba_d_conv"
_OTHER_NAMES = dict(zip(_STATE_FIELDS, _STATE_NAMES, strict=True))
_MAMBA_STATES = {
    "nemotron_h": _STATE_FIELDS,
    "granitemoehybrid": _OTHER_NAMES,
    "falcon_h1": _OTHER_NAMES,
}
_DEFAULTS = {
    "falcon": {"max_position_embeddings": 2048},
    "gemma3_text": {
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
    },
    "hunyuan_v1_moe": {"n_shared_experts": 1},
    # What the copy in aiconfigurator-core leaves out; as published it is a step3p5 in text_config.
    "step3p7": {"num_sliding_attention_heads": 96, "use_head_wise_attn_gate": True},
    "qwen3_next": {"num_nextn_predict_layers": 1},  # vLLM 0.32.0 ``models/qwen3_next_mtp.py``
}
# Counting these models as if they were ordinary ones would give wrong numbers.
_NOT_MODELLED = {
    "per_layer_config": "layers of different shapes",
    "conv_L_cache": "layers of convolution",
    "audio_encoder_config": "a part for sound",
    "state_size": "layers that keep a state in place of keys and values",
    "attn_layer_indices": "layers without attention",
    "cross_attention_layers": "layers that attend to images alone",
    "use_cla": "layers that share keys and values",
    "is_encoder_decoder": "an encoder",
    "altup_num_inputs": "several residual streams",
    "laurel_rank": "a way past attention",
    "num_attention_heads_per_layer": "layers of different shapes",
    "loop_num": "layers that run several times",
    "mova_num_experts": "experts in its attention",
    "share_q_dim": "queries of a lower rank",
    "window_sizes": "windows of several widths",
    "output_vocab_size": "an LM head of other tokens than its embedding",
}
# These are modelled in some families only, as each has its own rules.
_OF_FAMILIES = {
    "full_attention_interval": (("qwen3_5", "qwen3_next"), "layers of linear attention"),
    "linear_num_value_heads": (
        ("qwen3_5", "qwen3_next", "kimi", "glm5_next", "olmo_hybrid"),
        "layers of linear attention",
    ),
    "ssm_state_size": (("nemotron_h",), _NOT_MODELLED["state_size"]),
    "mamba_d_state": (("granitemoehybrid", "falcon_h1", "jamba"), _NOT_MODELLED["state_size"]),
    "attn_layer_period": (("jamba",), _NOT_MODELLED["state_size"]),
    "attention_other_setting": (("step3p",), "layers of different shapes"),
    "block_configs": (("nemotron-nas", "deci"), "layers of different shapes"),
    "compress_ratios": (("deepseek_v4", "deepseek_ref"), "attention to a compressed context"),
    "index_topk": (("deepseek", "glm_moe_dsa", "glm5_next", "hy_v4"), "sparse attention"),
    "sparse_config": ((), "sparse attention"),
    "swa_num_attention_heads": (("mimo_v2",), "layers of different shapes"),
    "sparse_attention_config": (("minimax_m3",), "sparse attention"),
    "num_kv_shared_layers": (("gemma4",), _NOT_MODELLED["use_cla"]),
    "hidden_size_per_layer_input": (("gemma4",), "an embedding of each layer"),
    "use_double_wide_mlp": (("gemma4",), "MLPs of different widths"),
    "enable_moe_block": (("gemma4",), "experts beside a dense MLP"),
    "v_head_dim": (("mimo_v2",), "values of another width"),
    "hybrid_layer_pattern": (("mimo_v2",), "layers of different shapes"),
}
# Whose attention has a gate, of which their configs need not speak.
_GATED = ("qwen3_next", "qwen3_5", "afmoe", "hy_v4", "muse_glimmer")
_STATIC_FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}
_NUMBERS_PER_RANK = 16  # of a token's vector, by default in the first Mamba
_OTHER_PARTS = ("vision_config", "audio_config")
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
# What types of models, which begin so, have whose fields would not tell or are read otherwise.
_OTHER_KINDS = {
    "beam": "attention of another kind",
    "deepseek_v41": "keys and choices of tokens that layers share, and embeddings of n-grams",
    "dots3_note": "latent attention of two widths",
    "evolla": "layers that attend to proteins",
    "inkling": "convolutions in its layers, and positions that queries are compared with",
    "ernie4_5_vl": "experts of two widths, for text and for images",
    "hrm_text": "layers that run several times",
    "kyutai_speech_to_text": "embeddings of sound",
    "longcat": "two attentions in each layer, and experts that compute nothing",
    "muse_spark": "gates of residuals",
    "musespark": "gates of residuals",
    "qwen4_exp": "residual streams that are mixed by small matrices, and embeddings of n-grams",
    "voxtral_realtime": "norms that follow the delay of what is heard",
}
_OF_LAYERS = {"moe_intermediate_size", "n_shared_experts", "num_experts_per_tok"}
_KNOWN_SHARED = {"n_shared_experts", "shared_expert_intermediate_size", "moe_shared_expert_overlap"}
_KNOWN_SHARED |= {"shared_expert_combination_strategy"}  # Cohere's, by which they are added up


def _text_part(data: dict[str, Any], source: str) -> tuple[dict[str, Any], str]:
    """Return the language model of one that reads images, too, with what holds for all parts.

    And its source. Whether embeddings are tied is said outside, if at all (transformers 5.24.0
    ``modeling_utils.py``, vLLM 0.33.0 ``config/vllm.py with_hf_config``).
    """
    part = next((name for name in _TEXT_PARTS if data.get(name) is not None), None)
    if part is None or (data.get("hidden_size") and data.get("num_hidden_layers")):
        return data, source
    if not isinstance(data[part], dict):
        raise ProfileError(
            f"{source}: {part} = {short(data[part])}: must be a mapping, the fields of the "
            "language model; correct it"
        )
    numbers = ("torch_dtype", "dtype", "quantization_config")
    of_all = {name: data[name] for name in (*numbers, *_OTHER_PARTS) if name in data}
    # What the language model says comes first, under whichever name.
    if {"torch_dtype", "dtype"} & data[part].keys():
        of_all = {name: value for name, value in of_all.items() if "dtype" not in name}
    names = {name: data.get(name) for name in ("_name_or_path", "model_type")}
    tied = {name: data[name] for name in ("tie_word_embeddings",) if name in data}
    return _text_part({**names, **of_all, **data[part], **tied}, f"{source}, {part}")


def _as_delta_nets(inner: dict[str, Any]) -> dict[str, Any]:
    """Return Kimi's linear_attn_config under the names of other delta nets.

    Their states have 32 bits (vLLM 0.33.0 ``mamba_utils.py kda_state_dtype``).
    """
    heads, width = inner.get("num_heads"), inner.get("head_dim")
    found = dict(
        zip(
            _STATE_FIELDS,
            (heads, heads, width, width, inner.get("short_conv_kernel_size")),
            strict=True,
        )
    )
    gate = {} if inner.get("use_full_rank_gate") else {"linear_gate_rank": width}
    return {**found, **gate, "linear_decay_rank": width, "mamba_ssm_dtype": "float32"}


def _as_global(data: dict[str, Any]) -> dict[str, Any]:
    """Return what transformers 5.19 writes of single layers as of all full attention (Gemma 4).

    The same if it is of others.
    """
    said, types = data.get("per_layer_config"), data.get("layer_types")
    if not (isinstance(said, dict) and said and isinstance(types, list)):
        return data
    full = [number for number, kind in enumerate(types) if kind == "full_attention"]
    named = [int(number) for number in said if str(number).isdigit()]
    first, *others = said.values()
    is_known = isinstance(first, dict) and first.keys() <= _GLOBAL.keys()
    if sorted(named) != full or any(each != first for each in others) or not is_known:
        return data
    rest = {name: value for name, value in data.items() if name != "per_layer_config"}
    return {**rest, **{_GLOBAL[name]: value for name, value in first.items()}}


def _heads_by_type(data: dict[str, Any]) -> dict[str, Any]:
    """Return query heads that are listed for each layer as those of its type (Laguna).

    The same if layers of a type differ.
    """
    name, types = "num_attention_heads_per_layer", data.get("layer_types")
    listed = data.get(name)
    if not (isinstance(listed, list) and isinstance(types, list)):
        return data
    heads = dict(zip(types, listed, strict=False))
    if [heads[kind] for kind in types] != listed:
        return data
    rest = {key: value for key, value in data.items() if key != name}
    sliding = heads.get("sliding_attention")
    full = heads.get("full_attention", sliding)
    return {**rest, "num_attention_heads": full, "num_sliding_attention_heads": sliding}


def _as_published(data: dict[str, Any]) -> dict[str, Any]:
    """Return what transformers writes of MiniMax-M3 and MiMo-V2-Flash as it was published.

    And the width of Molmo's MLP as others have it (vLLM 0.33.0 ``models/molmo.py``).
    """
    types = data.get("layer_types")
    if data.get("model_type") == "molmo":  # whose MLP's gate is half of that
        return {**data, "intermediate_size": data.get("intermediate_size", 0) // 2}
    if data.get("model_type") == "mimo_v2_flash" and isinstance(types, list):
        pattern = [int(kind == "sliding_attention") for kind in types]
        heads = 2 * data.get("num_key_value_heads", 0)  # as its class has it
        return {**data, "hybrid_layer_pattern": pattern, "swa_num_key_value_heads": heads}
    if "index_topk_blocks" not in data or not isinstance(types, list):
        return data
    sparse: dict[str, Any] = {name: data.get(own) for name, own in _BLOCK_FIELDS.items()}
    sparse["sparse_attention_freq"] = ["sparse" in str(kind) for kind in types]
    rest = {name: value for name, value in data.items() if name != "layer_types"}
    return {**rest, "sparse_attention_config": sparse}


def _of_all(value: Any) -> Any:
    """Return what a list says of each layer, if that is the same (Hunyuan)."""
    alike = isinstance(value, list) and value and value.count(value[0]) == len(value)
    return value[0] if alike else value


class HuggingFaceConfig(LayerLists):
    """A ``config.json``; errors name its source."""

    def __init__(self, data: dict[str, Any], source: str) -> None:
        data, source = _text_part(data, source)
        self._source, self._type = source, str(data.get("model_type"))
        data = _as_published(_as_global(_heads_by_type(data)))
        for part in ("attn_config", "ffn_config"):  # DBRX
            data = {**(inner if isinstance(inner := data.get(part), dict) else {}), **data}
        inner = data.get("linear_attn_config")
        if "linear_num_heads" in data and inner is None:  # GLM-5.3-Flash, as transformers has it
            inner = {name: data.get(field) for name, field in _AS_TRANSFORMERS.items()}
        if isinstance(inner, dict):
            data = {**_as_delta_nets(inner), **data}
        names = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
        # A field under its own name comes before one under another; null is no value.
        given = sorted(data.items(), key=lambda item: item[0] not in names)
        own = {names.get(key, key): value for key, value in given if value is not None}
        own |= {name: _of_all(own[name]) for name in _OF_LAYERS & own.keys()}
        self._data: dict[str, Any] = {**_DEFAULTS.get(self._type, {}), **own}
        blocks = own.get("hybrid_override_pattern")
        if isinstance(blocks, list) and "num_hidden_layers" not in own:
            self._data["num_hidden_layers"] = len(blocks)
        has_none = {"num_experts", *ALIASES["num_experts"]} & data.keys()
        # A dense model among ones with experts: they have none, or one (Jamba), or say so (Step-5).
        if has_none and (own.get("num_experts", 0) in (0, 1) or own.get("use_moe") is False):
            self._data = {key: each for key, each in self._data.items() if "expert" not in key}
            if shared := own.get("shared_expert_intermediate_size"):  # Granite 4.0
                self._data["intermediate_size"] = shared

    def fields(self) -> dict[str, Any]:
        """Return the fields of `specsim.hardware.ModelShape` that it describes.

        A field that is missing and has no default, or a part that is not modelled: ProfileError.
        """
        self._check_modelled()
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
        counts = {name: self._count(name) for name in (*names, "max_position_embeddings")}
        norms = self._data.get("qk_norm_type")
        return {
            **counts,
            **self._mlp(counts["hidden_size"]),
            "name": str(self._data.get("_name_or_path") or self._source),
            "head_dim": self._head_dim(counts),
            "num_key_value_heads": self._key_value_heads(counts),
            "tie_word_embeddings": self._data.get("tie_word_embeddings", self._type in _TIED),
            "has_gated_mlp": self._type not in _UNGATED,
            "has_learned_positions": self._type in _LEARNED,
            **self._attention(),
            **self._own_widths(),
            **self._sparse(counts["num_hidden_layers"]),
            **self._states(),
            **self._gate(),
            **self._fused_inputs(),
            **self._own_drafter(),
            # per_head is as in other models.
            "qk_norm_type": "per_layer" if norms == "per_layer" else None,
            "torch_dtype": self._dtype(),
            "quantization": self._quantization(counts["num_hidden_layers"]),
            "kv_cache_dtype": self._kv_cache_dtype(),
            "max_cudagraph_capture_size": 1024 if self._type == "gpt_oss" else None,
            "source": self._source + self._left_out(),
        }

    def _fused_inputs(self) -> dict[str, Any]:
        """Return what DFlash's drafters have of the target: hidden states and both vocabularies."""
        layers = (self._data.get("dflash_config") or {}).get("target_layer_ids")
        if not layers:
            return {}
        own = {"has_own_embedding": False, "has_own_lm_head": False}
        return {"num_fused_inputs": len(layers), **own}

    def _own_drafter(self) -> dict[str, Any]:
        if not self._data.get("num_nextn_predict_layers"):
            return {}
        count = self._count("num_nextn_predict_layers")
        is_usual = self._type in _USUAL_MTP or self._type.startswith(_USUAL_MTP_FAMILIES)
        return {"num_nextn_predict_layers": count, "has_usual_mtp_layers": is_usual}

    def _left_out(self) -> str:
        has_others = any(part in self._data for part in _OTHER_PARTS)
        return " (weights of parts for images and sound are not counted)" if has_others else ""

    def _check_modelled(self) -> None:
        for prefix, what in _OTHER_KINDS.items():
            if self._type.startswith(prefix):
                raise ProfileError(
                    f"{self._source}: model_type '{self._type}' says that the model has {what}, "
                    f"{INSTEAD}"
                )
        if {"markov_rank", "dspark_block_size", "speculators_model_type"} & self._data.keys():
            raise ProfileError(
                f"{self._source}: describes a drafter whose vocabulary or Markov head it does not "
                "tell; write its shape in the form of profiles/dflash-qwen3-8b.json"
            )
        if "draft_vocab_size" in self._data:
            raise ProfileError(
                f"{self._source}: describes an EAGLE-3 head, whose inputs it does not tell; write "
                "its shape in the form of profiles/eagle3-llama-3.1-8b.json"
            )
        strange = [
            (name, what)
            for name, (families, what) in _OF_FAMILIES.items()
            if not self._type.startswith(families)
            and not (name == "v_head_dim" and "kv_lora_rank" in self._data)
        ]
        for name, what in (*_NOT_MODELLED.items(), *strange, *self._strange_sizes()):
            if self._data.get(name):
                raise self._strange(name, what)

    def _strange_sizes(self) -> Iterator[tuple[str, str]]:
        """Yield fields of widths and experts that are not known, and what they say."""
        for name in self._data:
            if name == "word_embed_proj_dim" and self._data[name] != self._data.get("hidden_size"):
                yield name, "an embedding of another width (OPT-350M)"
            if "shared_expert" in name and name not in _KNOWN_SHARED:
                yield name, "experts that all tokens share"
            elif "num_expert" in name and "num_experts" not in self._data:
                yield name, "experts under another name than num_experts"

    def _head_dim(self, counts: dict[str, int]) -> int:
        hidden, heads = counts["hidden_size"], counts["num_attention_heads"]
        if "kv_lora_rank" in self._data:
            return self._count("qk_nope_head_dim") + self._rope_dim()
        if "head_dim" in self._data:
            return self._count("head_dim")
        if hidden % heads:
            raise ProfileError(
                f"{self._source}: 'head_dim' is missing and hidden_size = {hidden} is no multiple "
                f"of num_attention_heads = {heads}; add head_dim or correct one of them"
            )
        return hidden // heads

    def _rope_dim(self) -> int:
        name = "qk_rope_head_dim"  # none in GLM-5.3-Flash
        return 0 if self._data.get(name) == 0 else self._count(name)

    def _key_value_heads(self, counts: dict[str, int]) -> int:
        if self._type == "falcon" and not self._data.get("new_decoder_architecture"):
            return 1 if self._data.get("multi_query", True) else counts["num_attention_heads"]
        if self._type in _MANY_HEADS:
            return counts["num_attention_heads"]
        if self._data.get("block_configs"):
            return self._searched_heads()
        if self._data.get("hybrid_layer_pattern"):
            return self._count("swa_num_key_value_heads")
        hint = "it equals num_attention_heads unless query heads share keys and values"
        return self._count("num_key_value_heads", hint)

    def _mlp(self, hidden_size: int) -> dict[str, Any]:
        lists = self._mlp_lists()
        if "num_experts" not in self._data:
            if self._type in _FOUR_TIMES and "intermediate_size" not in self._data:
                return {"intermediate_size": 4 * hidden_size}
            widest = max(lists.get("intermediate_sizes", (0,)))
            return {"intermediate_size": widest or self._count("intermediate_size"), **lists}
        is_plain = self._type in _ONLY_EXPERTS and "moe_intermediate_size" not in self._data
        name = "intermediate_size" if is_plain else "moe_intermediate_size"
        width = self._count(name, "the width of one expert")
        dense = self._given("intermediate_size_mlp", "dense_intermediate_size")
        others = self._given(
            "n_shared_experts", "shared_expert_intermediate_size", "moe_latent_size"
        )
        return {
            "num_experts": self._count("num_experts"),
            "num_experts_per_tok": self._count(
                "num_experts_per_tok", "the number of experts that each token visits"
            ),
            "moe_intermediate_size": width,
            **{each: self._count(each) for each in others},
            **lists,
            **({"n_shared_experts": 1} if self._type == "llama4_text" else {}),
            # Of a dense MLP, which perhaps no layer has.
            "intermediate_size": self._data.get(dense[0] if dense else "intermediate_size", width),
        }

    def _sparse(self, num_layers: int) -> dict[str, Any]:
        """Return the sizes of an indexer that chooses which tokens are read (DeepSeek, MiniMax)."""
        data, sparse = self._data, self._data.get("sparse_attention_config") or {}
        if data.get("index_topk"):
            if data.get("index_topk_freq", 1) != 1 and "indexer_types" not in data:
                self._count("indexer_types", "which layers have an indexer of their own")
            names = ("index_topk", "index_n_heads", "index_head_dim")
            types = {"indexer_types": data["indexer_types"]} if "indexer_types" in data else {}
            return {**{name: self._count(name) for name in names}, **types}
        if not isinstance(sparse, dict):
            raise self._wrong("sparse_attention_config", short(sparse), "a mapping")
        if not sparse or not sparse.get("use_sparse_attention", True):
            return {}
        try:
            which = sparse.get("sparse_attention_freq", [1] * num_layers)
            return {
                "index_topk": sparse["sparse_topk_blocks"] * sparse["sparse_block_size"],
                "index_n_heads": sparse["sparse_num_index_heads"],
                "index_head_dim": sparse["sparse_index_dim"],
                "indexer_types": ["full" if each else "none" for each in which],
            }
        except (KeyError, TypeError) as error:
            raise ProfileError(
                f"{self._source}: sparse_attention_config: {error} is missing or no number; add it"
            ) from error

    def _states(self) -> dict[str, Any]:
        """Return the sizes of layers that keep a state, those of Mamba2 in the words of the others.

        Its groups have the keys, its heads the values, and its state size is that of a key.
        """
        data = self._data
        if self._type == "jamba":
            return self._first_mamba()
        names = _MAMBA_STATES.get(self._type, {name: name for name in _STATE_FIELDS})
        if self._type not in _MAMBA_STATES and not data.get("linear_num_value_heads"):
            return {}
        usual = "float32" if self._type == "nemotron_h" else None  # vLLM 0.33.0 models/config.py
        dtype = data.get("mamba_ssm_dtype", usual)
        ranks = ("linear_decay_rank", "linear_gate_rank")
        return {
            **{name: self._count(own) for name, own in names.items()},
            **{name: self._count(name) for name in self._given(*ranks)},
            **({"mamba_ssm_dtype": dtype} if dtype not in (None, "auto") else {}),
        }

    def _first_mamba(self) -> dict[str, int]:
        """Return the sizes of Mamba's first kind: each number that is convolved has a state."""
        hidden, rank = self._count("hidden_size"), self._data.get("mamba_dt_rank", "auto")
        numbers = self._count("mamba_expand") * hidden
        sizes = 0, numbers, self._count("mamba_d_state"), 1, self._count("mamba_d_conv")
        found = dict(zip(_STATE_FIELDS, sizes, strict=True))
        auto = -(-hidden // _NUMBERS_PER_RANK)
        return {**found, "mamba_dt_rank": auto if rank == "auto" else self._count("mamba_dt_rank")}

    def _gate(self) -> dict[str, Any]:
        """Return what multiplies the output of attention, if anything does."""
        if gating := self._data.get("gating"):  # Laguna
            return {"attn_output_gate": True if gating == "per-element" else "per_head"}
        if self._data.get("use_head_wise_attn_gate"):
            return {"attn_output_gate": "per_head"}
        if self._data.get("gating_type") == "headwise" and self._data.get("gated_mla"):  # Hy4
            return {"attn_output_gate": "per_head"}
        usual = self._type.startswith(_GATED)
        names = ("attn_output_gate", "mla_use_output_gate", "gated_mla")
        is_there = next((self._data[name] for name in names if name in self._data), usual)
        return {"attn_output_gate": True} if is_there else {}

    def _own_widths(self) -> dict[str, int]:
        """Return the widths that only some families have."""
        data, found, names = self._data, dict[str, int](), list[str]()
        if data.get("hybrid_layer_pattern"):  # of layers that attend to everything (MiMo-V2)
            found["num_global_key_value_heads"] = self._count("num_key_value_heads")
            names += ["v_head_dim"]
        elif "global_head_dim" in data:  # of the same (Gemma 4)
            names += ["global_head_dim"]
            names += ["num_global_key_value_heads"] if data.get("attention_k_eq_v") else []
        if "kv_lora_rank" in data:  # multi-head latent attention (DeepSeek)
            found["qk_rope_head_dim"] = self._rope_dim()
            names += ["kv_lora_rank", "v_head_dim", *self._given("q_lora_rank", "index_kpool")]
        if "attention_other_setting" in data:
            found["num_sliding_attention_heads"] = self._other_heads()
        names += self._given("attn_res_block_size", "num_sliding_attention_heads")
        names += self._given("num_kv_shared_layers")
        if data.get("hidden_size_per_layer_input"):
            names += ["hidden_size_per_layer_input", "vocab_size_per_layer_input"]
        if data.get("o_groups"):  # compressed attention and hyper-connections (DeepSeek-V4)
            names += ["o_groups", "o_lora_rank", "q_lora_rank", "qk_rope_head_dim"]
        names += self._given("hc_mult")
        return found | {name: self._count(name) for name in names}

    def _other_heads(self) -> int:
        """Return the heads of layers with a window, which differ in nothing else (Step-3.5)."""
        said = self._data["attention_other_setting"]
        same = {
            "attention_type": "sliding_attention",
            "num_attention_groups": self._data.get("num_key_value_heads"),
            "head_dim": self._data.get("head_dim"),
        }
        heads = said.get("num_attention_heads") if isinstance(said, dict) else None
        if type(heads) is int and all(said.get(name, own) == own for name, own in same.items()):
            return heads
        rule = "of layers with a window, of which only the number of query heads differs"
        raise self._wrong("attention_other_setting", short(said), rule)

    def _attention(self) -> dict[str, Any]:
        """Return which layers attend to a part of the sequence only; nothing if none does."""
        data = self._data
        is_used = data.get("use_sliding_window", not self._type.startswith(_NO_WINDOW))
        is_used |= "hybrid_layer_pattern" in data
        spans = [name for name in self._given(*_SPANS) if is_used or name != "sliding_window"]
        if "hybrid_layer_pattern" in data:
            spans = ["sliding_window"]
        fields: dict[str, Any] = {name: self._count(name) for name in spans}
        if fields.get("sliding_window", 0) >= data["max_position_embeddings"]:
            del fields["sliding_window"]
        types = self._layer_types()
        if types and {*types} & {*STATES, "none"}:
            return {**fields, "layer_types": types}
        if not fields:
            return {}
        types = types or self._usual_types()
        if types is not None and not set(types) - {"full_attention"}:
            return {}
        return fields if types is None else {**fields, "layer_types": types}

    def _quantization(self, num_layers: int) -> str | None:
        """Return how the weights are stored, in the words of ``profile build --dtype``."""
        data = self._data.get("quantization_config")
        if not data:
            return None
        data = data if isinstance(data, dict) else {}
        has_experts = "num_experts" in self._data
        block = {"expert_dtype": self._data.get("expert_dtype"), **data}
        return precision(block, num_layers, has_experts=has_experts)

    def _kv_cache_dtype(self) -> str | None:
        """Return how vLLM stores keys and values where it is not told, if in 8 bits.

        As is said beside the weights, or by the class (vLLM 0.33.0 ``utils/torch_utils.py
        get_kv_cache_quant_algo_string``, ``models/config.py Glm5NextModelConfig``).
        """
        data = self._data.get("quantization_config")
        data = data if isinstance(data, dict) else {}
        data = {**data, **(data.get("quantization") or {})}
        said = data.get("kv_cache_scheme") or data.get("kv_cache_quant_algo")
        method = str(data.get("quant_method"))
        is_fp8 = str(said).lower() == "fp8" or said == _STATIC_FP8
        others = method == "compressed-tensors" and said and "kv_lora_rank" not in self._data
        if others or (method.startswith("modelopt") and is_fp8):
            return "fp8"
        is_glm = self._type.startswith(("glm_moe_dsa", "glm5_next"))
        return "fp8_sm100" if is_glm and self._data.get("index_topk") else None

    def _dtype(self) -> str:
        # vLLM serves in 16 bits what is stored in 32 or does not say (_resolve_auto_dtype).
        dtype = str(self._data.get("torch_dtype", "float32")).removeprefix("torch.")
        return "bfloat16" if dtype == "float32" else dtype
