"""HuggingFace ``config.json``: the fields of a model's shape, under the names of each family."""

from collections.abc import Iterator
from typing import Any

from specsim.core.errors import ProfileError
from specsim.core.reading import short

# Other names of the same thing: BLOOM, OPT, Mixtral, DeepSeek, newer transformers.
_ALIASES = {
    "num_hidden_layers": ("n_layer",),
    "hidden_size": ("n_embed",),
    "intermediate_size": ("ffn_dim",),
    "num_attention_heads": ("n_head",),
    "max_position_embeddings": ("seq_length",),
    "torch_dtype": ("dtype",),
    "num_experts": ("num_local_experts", "n_routed_experts"),
}
# Defaults of the classes of these model types, which their configs leave out.
_TIED = {"bloom", "cohere", "cohere2", "gemma", "gemma2", "gemma3_text", "gemma4_text", "opt"}
_TIED |= {"starcoder2"}
_UNGATED = {"bloom", "gpt_neox", "nemotron", "opt", "phi", "starcoder2"}
_UNGATED |= {"apertus", "arcee", "jais2", "nanochat"}
# Have nothing but experts, so that their width goes by the plain name.
_ONLY_EXPERTS = {"gpt_oss", "granitemoe", "llama4_text", "minimax_m2", "mixtral", "olmoe", "phimoe"}
_SPANS = ("sliding_window", "attention_chunk_size")
_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
_PATTERNS = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4, "exaone4": 4, "gpt_oss": 2, "olmo3": 4}
"""Each so many-th layer attends to all."""
_NO_WINDOW = ("qwen", "mimo")  # begin the types of models whose window counts only if they say so
_DEFAULTS = {
    "gemma3_text": {
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
    }
}
# Counting these models as if they were ordinary ones would give wrong numbers.
_NOT_MODELLED = {
    "index_topk": "sparse attention",
    **dict.fromkeys(("block_configs", "per_layer_config"), "layers of different shapes"),
    "conv_L_cache": "layers of convolution",
    "audio_encoder_config": "a part for sound",
    **dict.fromkeys(
        ("full_attention_interval", "linear_num_value_heads"), "layers of linear attention"
    ),
    **dict.fromkeys(
        ("state_size", "ssm_state_size", "mamba_d_state", "attn_layer_period"),
        "layers that keep a state in place of keys and values",
    ),
    "shared_intermediate_size": "experts that all tokens share",
    "mlp_only_layers": "layers with and without experts",
    "is_encoder_decoder": "an encoder",
    "num_kv_shared_layers": "layers that share keys and values",
    "hidden_size_per_layer_input": "an embedding of each layer",
    "enable_moe_block": "experts beside a dense MLP",
}
_DENSE_OR_NOT = {"mlp_layer_types": ("dense", "sparse"), "moe_layer_freq": (0, 1)}
_OTHER_PARTS = ("vision_config", "audio_config")
_GATED_ATTENTION = {"beam"}  # whose configs do not tell


def _text_part(data: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the language model of one that reads images, too, with what holds for all parts."""
    if not isinstance(data["text_config"], dict):
        raise ProfileError(
            f"{source}: text_config = {short(data['text_config'])}: must be a mapping, the fields "
            "of the language model; correct it"
        )
    numbers = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")
    of_all = {name: data[name] for name in (*numbers, *_OTHER_PARTS) if name in data}
    return {"_name_or_path": data.get("_name_or_path"), **of_all, **data["text_config"]}


class HuggingFaceConfig:
    """A ``config.json``; errors name its source."""

    def __init__(self, data: dict[str, Any], source: str) -> None:
        if data.get("text_config") is not None and data.get("hidden_size") is None:
            data, source = _text_part(data, source), f"{source}, text_config"
        self._source, self._type = source, str(data.get("model_type"))
        names = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
        # A field under its own name comes before one under another; null is no value.
        given = sorted(data.items(), key=lambda item: item[0] not in names)
        own = {names.get(key, key): value for key, value in given if value is not None}
        self._data: dict[str, Any] = {**_DEFAULTS.get(self._type, {}), **own}
        has_none = {"num_experts", *_ALIASES["num_experts"]} & data.keys()
        if has_none and not own.get("num_experts"):  # a dense model among ones with experts
            self._data = {key: each for key, each in self._data.items() if "expert" not in key}

    def fields(self) -> dict[str, Any]:
        """Return the fields of `specsim.hardware.ModelShape` that it describes.

        A field that is missing and has no default, or a part that is not modelled: ProfileError.
        """
        self._check_modelled()
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
        counts = {name: self._count(name) for name in (*names, "max_position_embeddings")}
        return {
            **counts,
            **self._mlp(counts["hidden_size"]),
            "name": str(self._data.get("_name_or_path") or self._source),
            "head_dim": self._head_dim(counts),
            "num_key_value_heads": self._key_value_heads(counts),
            "tie_word_embeddings": self._data.get("tie_word_embeddings", self._type in _TIED),
            "has_gated_mlp": self._type not in _UNGATED,
            **self._attention(counts["num_hidden_layers"]),
            **self._global_widths(),
            **self._latent_widths(),
            "torch_dtype": self._dtype(),
            "quantization": self._quantization(),
            "source": self._source + self._left_out(),
        }

    def _left_out(self) -> str:
        has_others = any(part in self._data for part in _OTHER_PARTS)
        return " (weights of parts for images and sound are not counted)" if has_others else ""

    def _check_modelled(self) -> None:
        if "draft_vocab_size" in self._data:
            raise ProfileError(
                f"{self._source}: describes an EAGLE-3 head, whose inputs it does not tell; write "
                "its shape in the form of profiles/eagle3-llama-3.1-8b.json"
            )
        for name, what in (*_NOT_MODELLED.items(), *self._strange_experts()):
            if self._data.get(name):
                raise ProfileError(
                    f"{self._source}: '{name}' says that the model has {what}, which is not "
                    "modelled; fit a profile to measured steps instead"
                )
        has_wide_values = self._data.get("v_head_dim") and "kv_lora_rank" not in self._data
        if self._type in _GATED_ATTENTION or has_wide_values:
            what = "'v_head_dim'" if has_wide_values else f"model_type '{self._type}'"
            raise ProfileError(
                f"{self._source}: {what} says that the model's attention is of another kind, which "
                "is not modelled; fit a profile to measured steps instead"
            )
        for name in ("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"):
            if self._data.get(name, 1) != 1 and name not in self._listed_layers():
                raise self._in_turn(name)

    def _listed_layers(self) -> list[str]:
        """Return the fields that tell layer by layer which have experts."""
        is_list = isinstance(self._data.get("moe_layer_freq"), list)
        return [*self._given("mlp_layer_types"), *(["moe_layer_freq"] if is_list else [])]

    def _dense_layers(self) -> dict[str, int]:
        """Return how many layers come before those with experts, where that is told layer by layer.

        A ProfileError if layers with and without experts take turns.
        """
        num_layers = self._count("num_hidden_layers")
        for name in self._listed_layers():
            layers, words = self._data[name], _DENSE_OR_NOT[name]
            is_list = isinstance(layers, list) and len(layers) == num_layers
            if not is_list or any(each not in words for each in layers):
                raise ProfileError(
                    f"{self._source}: {name} = {short(layers)}: must be a list of {words[0]!r} or "
                    f"{words[1]!r} for each of num_hidden_layers = {num_layers}; correct it"
                )
            is_dense = [each == words[0] for each in layers]
            if is_dense != sorted(is_dense, reverse=True):
                raise self._in_turn(name)
            return {"first_k_dense_replace": sum(is_dense)}
        return {}

    def _in_turn(self, name: str) -> ProfileError:
        value = self._data[name]
        what = name if isinstance(value, list) else f"{name} = {value}"
        return ProfileError(
            f"{self._source}: {what}: layers with and without experts in turn are not modelled; "
            "fit a profile to measured steps"
        )

    def _strange_experts(self) -> Iterator[tuple[str, str]]:
        """Yield fields of experts whose names are not known, and what they say."""
        for name in self._data:
            if "shared_expert" in name and name != "n_shared_experts":
                yield name, "experts that all tokens share"
            elif "num_expert" in name and "num_experts" not in self._data:
                yield name, "experts under another name than num_experts"

    def _count(self, name: str, hint: str = "it is part of every model's config.json") -> int:
        if name not in self._data:
            others = ", ".join(_ALIASES.get(name, ()))
            also = f" (or its other names: {others})" if others else ""
            raise ProfileError(f"{self._source}: '{name}' is missing{also}; add it: {hint}")
        value = self._data[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ProfileError(
                f"{self._source}: {name} = {value!r}: must be a whole number above 0; correct it"
            )
        return value

    def _head_dim(self, counts: dict[str, int]) -> int:
        hidden, heads = counts["hidden_size"], counts["num_attention_heads"]
        if "kv_lora_rank" in self._data:
            return self._count("qk_nope_head_dim") + self._count("qk_rope_head_dim")
        if "head_dim" in self._data:
            return self._count("head_dim")
        if hidden % heads:
            raise ProfileError(
                f"{self._source}: 'head_dim' is missing and hidden_size = {hidden} is no multiple "
                f"of num_attention_heads = {heads}; add head_dim or correct one of them"
            )
        return hidden // heads

    def _key_value_heads(self, counts: dict[str, int]) -> int:
        if self._type in {"bloom", "opt"}:
            return counts["num_attention_heads"]
        hint = "it equals num_attention_heads unless query heads share keys and values"
        return self._count("num_key_value_heads", hint)

    def _mlp(self, hidden_size: int) -> dict[str, int]:
        if "num_experts" not in self._data:
            if self._type == "bloom" and "intermediate_size" not in self._data:
                return {"intermediate_size": 4 * hidden_size}
            return {"intermediate_size": self._count("intermediate_size")}
        is_plain = self._type in _ONLY_EXPERTS and "moe_intermediate_size" not in self._data
        name = "intermediate_size" if is_plain else "moe_intermediate_size"
        width = self._count(name, "the width of one expert")
        return {
            "num_experts": self._count("num_experts"),
            "num_experts_per_tok": self._count(
                "num_experts_per_tok", "the number of experts that each token visits"
            ),
            "moe_intermediate_size": width,
            **{
                each: self._count(each)
                for each in self._given("n_shared_experts", "first_k_dense_replace")
            },
            **self._dense_layers(),
            **({"n_shared_experts": 1} if self._type == "llama4_text" else {}),
            # Of a dense MLP, which no layer has.
            "intermediate_size": self._data.get("intermediate_size", width),
        }

    def _global_widths(self) -> dict[str, int]:
        """Return the width of layers that attend to everything, where it is their own (Gemma 4)."""
        if "global_head_dim" not in self._data:
            return {}
        names = ["global_head_dim"]
        if self._data.get("attention_k_eq_v"):
            names.append("num_global_key_value_heads")
        return {name: self._count(name) for name in names}

    def _latent_widths(self) -> dict[str, int]:
        """Return the widths of multi-head latent attention (DeepSeek)."""
        if "kv_lora_rank" not in self._data:
            return {}
        names = ["kv_lora_rank", "qk_rope_head_dim", "v_head_dim"]
        return {name: self._count(name) for name in (*names, *self._given("q_lora_rank"))}

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if self._data.get(name)]

    def _attention(self, num_layers: int) -> dict[str, Any]:
        """Return which layers attend to a part of the sequence only; nothing if none does."""
        data = self._data
        is_used = data.get("use_sliding_window", not self._type.startswith(_NO_WINDOW))
        spans = [name for name in self._given(*_SPANS) if is_used or name != "sliding_window"]
        fields: dict[str, Any] = {name: self._count(name) for name in spans}
        if fields.get("sliding_window", 0) >= data["max_position_embeddings"]:
            del fields["sliding_window"]
        types = data.get("layer_types")
        if not isinstance(types, list | None):
            raise ProfileError(
                f"{self._source}: layer_types = {types!r}: must be a list with the type of each "
                "layer; correct it"
            )
        if others := sorted(set(map(str, types or ())) - _LAYER_TYPES):
            raise ProfileError(
                f"{self._source}: 'layer_types' has '{others[0]}', which is not modelled; fit a "
                "profile to measured steps instead"
            )
        if not fields:
            return {}
        types = types or self._layer_types(num_layers)
        if types is not None and not set(types) - {"full_attention"}:
            return {}
        return fields if types is None else {**fields, "layer_types": types}

    def _layer_types(self, num_layers: int) -> list[str] | None:
        """Return the type of each layer by the rule of the model's class; None if all slide."""
        numbers = range(1, num_layers + 1)
        if self._type == "llama4_text":
            rotary = self._data.get("no_rope_layers") or [number % 4 for number in numbers]
            return ["chunked_attention" if each else "full_attention" for each in rotary]
        if self._type.startswith("qwen"):
            first = self._data.get("max_window_layers", 0)
            return ["sliding_attention" if i > first else "full_attention" for i in numbers]
        every = self._data.get("_sliding_window_pattern", _PATTERNS.get(self._type))
        every = self._data.get("sliding_window_pattern", every)
        if every is None:
            return None
        if not (every > 0 if isinstance(every, int) else isinstance(every, str) and every):
            raise ProfileError(
                f"{self._source}: sliding_window_pattern = {every!r}: must be a whole number above "
                "0, or letters such as LLLG; correct it"
            )
        if isinstance(every, str):  # LLLG: three local layers, one global one
            local = [letter == "L" for letter in every]
            return [
                "sliding_attention" if local[i % len(local)] else "full_attention"
                for i in range(num_layers)
            ]
        return ["sliding_attention" if i % every else "full_attention" for i in numbers]

    def _quantization(self) -> str | None:
        """Return how the weights are stored, in the words of ``profile build --dtype``."""
        data = self._data.get("quantization_config")
        if not data:
            return None
        data = data if isinstance(data, dict) else {}
        method, algorithm = (
            str(data.get(name, "other")).lower() for name in ("quant_method", "quant_algo")
        )
        if method == "fp8":
            return "fp8_block" if data.get("weight_block_size") else "fp8"
        if method in ("awq", "gptq") and data.get("bits") == 4:
            return "int4"
        known = {"mxfp4": method, "modelopt": algorithm, "modelopt_fp4": "nvfp4"}
        return known.get(method, "other")

    def _dtype(self) -> str:
        # vLLM serves in 16 bits what is stored in 32 or does not say (_resolve_auto_dtype).
        dtype = str(self._data.get("torch_dtype", "float32")).removeprefix("torch.")
        return "bfloat16" if dtype == "float32" else dtype
