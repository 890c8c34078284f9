"""What a ``config.json`` says of each layer, and of how weights are stored.

The latter in the words of ``profile build --dtype``: one, of the experts or of all, and what
differs from it in attention and in dense MLPs: ``nvfp4,attention=bfloat16``.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from specsim.core.errors import ProfileError
from specsim.core.reading import short
from specsim.hardware.model_fields import RATIOS

OTHER = "other"
INSTEAD = (
    "which is not modelled; fit a profile to measured steps instead, for a shape of your own that "
    "keeps as many bytes of a token, in the form of profiles/llama-3.1-8b.json: specsim profile "
    "fit STEPS --model SHAPE.json --gpu GPU --out PROFILE.yaml"
)
"""What to do about a model that is not modelled: the end of a sentence that says why."""
_ALGORITHMS = {
    "fp8": "fp8",
    "fp8_pb_wo": "fp8_block",
    "fp8_pc_pt": "fp8",
    "mxfp8": "fp8_block",  # the nearest that was measured: scales of 32 numbers, not of 128
    "nvfp4": "nvfp4",
    "w4a16_nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "w4a16_awq": "int4",
    "int4_awq": "int4",
    "modelopt_fp4": "nvfp4",
}  # fmt: skip
_PARTS = {
    "experts": re.compile(r"(?<!shared_)experts(?!_proj)"),
    "attention": re.compile(r"attn|attention|mixer\W+(?:in|out|[qkvo])_proj"),
    "mlp": re.compile(r"mlp|shared_expert|ffn|feed_forward"),
}
_SMALL = re.compile(r"gate$|router|norm|indexer|bias|conv1d|^mtp|vision|visual|\bhc_")
"""Modules that nobody stores in fewer bits, or that are not of the layers."""
_BITS_8, _BITS_4, _BLOCK_OF_MXFP4 = 8, 4, 32


def precision(data: Mapping[str, Any], num_layers: int, *, has_experts: bool) -> str | None:
    """Return how weights are stored; None if as ``torch_dtype`` says, `OTHER` if in unknown ways.

    Args:
        data: Of ``quantization_config``, or of ``hf_quant_config.json``, and ``expert_dtype``.
    """
    base = _whole(data)
    parts = dict.fromkeys(_PARTS, base)
    listed = data.get("quantized_layers")
    if isinstance(listed, dict) and listed:
        parts |= _by_layer(listed, "bfloat16" if base == OTHER else base)
    elif base != "mxfp4":  # whose word says that only experts are
        ignored = _texts(data, "ignore", "exclude_modules", "modules_to_not_convert")
        parts |= dict.fromkeys(_left_out(ignored, num_layers), "bfloat16")
        if base == "fp8_block" and "quantized_layers" not in data:
            parts["experts"] = {"fp4": "mxfp4_mxfp8"}.get(data.get("expert_dtype", ""), base)
    kept = parts if has_experts else {name: parts[name] for name in ("mlp", "attention")}
    if OTHER in kept.values():
        return OTHER
    first = next(iter(kept.values()))
    others = [f",{name}={word}" for name, word in kept.items() if word != first]
    return None if {*kept.values()} == {"bfloat16"} else first + "".join(others)


def _whole(data: Mapping[str, Any]) -> str:
    method, algorithm = (
        str(data.get(name) or OTHER).lower() for name in ("quant_method", "quant_algo")
    )
    if method == "fp8":
        return "fp8_block" if data.get("weight_block_size") else "fp8"
    if method in ("awq", "gptq", "auto-round") and data.get("bits", data.get("w_bit")) == _BITS_4:
        return "int4"
    if method == "bitsandbytes" and data.get("load_in_4bit"):
        return "int4"
    if algorithm in _ALGORITHMS:
        return _ALGORITHMS[algorithm]
    groups = data.get("config_groups")
    if isinstance(groups, dict) and groups and algorithm != "mixed_precision":
        words = {_of_group(group, str(data.get("format"))) for group in groups.values()}
        return words.pop() if len(words) == 1 else OTHER
    return _ALGORITHMS.get(method, OTHER)


def _of_group(group: Any, form: str) -> str:
    """Return the word of a group of compressed-tensors."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        return OTHER
    bits, kind, form = weights.get("num_bits"), weights.get("type"), group.get("format") or form
    if (bits, kind) == (_BITS_8, "float"):
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    if (bits, kind) == (_BITS_4, "float"):
        is_mx = "mxfp4" in form or weights.get("group_size") == _BLOCK_OF_MXFP4
        return "mxfp4" if is_mx else "nvfp4"
    return "int4" if (bits, kind) == (_BITS_4, "int") else OTHER


def _by_layer(listed: Mapping[str, Any], rest: str) -> dict[str, str]:
    """Return what most modules of each part are stored in, where they are listed one by one."""
    words: dict[str, Counter[str]] = {name: Counter() for name in _PARTS}
    for module, said in listed.items():
        algorithm = str(said.get("quant_algo") if isinstance(said, dict) else said).lower()
        if (part := _part_of(module)) is not None:
            words[part][_ALGORITHMS.get(algorithm, OTHER)] += 1
    return {name: each.most_common(1)[0][0] if each else rest for name, each in words.items()}


def _left_out(ignored: Iterable[str], num_layers: int) -> list[str]:
    """Return the parts that most layers do not have in fewer bits."""
    layers: dict[str, set[str]] = {name: set() for name in _PARTS}
    whole = set()
    for module in ignored:
        part, number = _part_of(module), re.search(r"layers\.(\d+)\.", module)
        if part is not None and number is None:
            whole.add(part)
        elif part is not None and number is not None:
            layers[part].add(number[1])
    return [part for part in _PARTS if part in whole or 2 * len(layers[part]) > num_layers]


def _part_of(module: str) -> str | None:
    plain = module.rstrip("*.")
    if _SMALL.search(plain):
        return None
    return next((name for name, words in _PARTS.items() if words.search(plain)), None)


def _texts(data: Mapping[str, Any], *names: str) -> list[str]:
    found = (data.get(name) for name in names)
    return [str(each) for listed in found if isinstance(listed, list) for each in listed]


# Other names of the same thing: BLOOM, OPT, GPT-J, DBRX, Falcon, Baichuan, Mixtral, DeepSeek,
# ERNIE, Hunyuan, ChatGLM, newer transformers.
ALIASES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embed", "n_embd", "d_model"),
    "intermediate_size": ("ffn_dim", "n_inner", "ffn_hidden_size"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": (
        *("num_kv_heads", "kv_n_heads", "num_attention_groups", "multi_query_group_num"),
    ),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("seq_length", "n_positions", "max_seq_len", "model_max_length"),
    "torch_dtype": ("dtype",),
    "num_nextn_predict_layers": ("mtp_num_hidden_layers",),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": (
        *("num_experts_per_token", "top_k_experts", "moe_k", "moe_topk", "moe_top_k"),
    ),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "first_k_dense_replace": ("moe_layer_start_index", "num_dense_layers"),
    "moe_latent_size": ("routed_expert_hidden_size",),
    "sliding_window_pattern": ("global_attn_every_n_layers",),
    "shared_expert_intermediate_size": (
        "moe_shared_expert_intermediate_size",
        "share_expert_dim",
        "shared_intermediate_size",
    ),
    "head_dim": ("attention_head_dim", "kv_channels"),
    "mamba_ssm_dtype": ("mamba_ssm_cache_dtype",),
    "hybrid_override_pattern": ("layers_block_type",),
}
_MOST_LAYERS = 4096
_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention", "linear_attention"}
_PATTERNS = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4, "exaone4": 4, "gpt_oss": 2, "olmo3": 4}
"""Each so many-th layer attends to all."""
_DENSE_OR_NOT = {
    "mlp_layer_types": ("dense", "sparse", "moe", "hash_moe"),
    "moe_layer_freq": (0, 1),
}
_BLOCKS = {
    **dict.fromkeys(("M", "mamba", "linear_attention"), ("mamba", "none")),
    **dict.fromkeys(("*", "attention", "full_attention"), ("full_attention", "none")),
    **dict.fromkeys(("E", "moe"), ("none", "sparse")),
    **dict.fromkeys(("-", "mlp"), ("none", "dense")),
}
"""What Nemotron-H calls a layer, which has either attention or a feed-forward part."""
_FFN_MULTIPLE = 256  # to which DeciLM rounds up


def _list_in(said: Any, name: str) -> list[Any]:
    found = said.get(name) if isinstance(said, dict) else None
    return found if isinstance(found, list) else []


class LayerLists:
    """A ``config.json`` under one name for each field, and what it says of each layer.

    A ProfileError names its source.
    """

    _data: dict[str, Any]
    _type: str  # of the model
    _source: str

    def _count(self, name: str, hint: str = "it is part of every model's config.json") -> int:
        if name not in self._data:
            others = ", ".join(ALIASES.get(name, ()))
            also = f" (or its other names: {others})" if others else ""
            raise ProfileError(f"{self._source}: '{name}' is missing{also}; add it: {hint}")
        value = self._data[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong(name, repr(value), "a whole number above 0")
        if name == "num_hidden_layers" and value > _MOST_LAYERS:
            raise self._wrong(name, str(value), f"at most {_MOST_LAYERS}")
        return value

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if self._data.get(name)]

    def _wrong(self, name: str, value: str, rule: str) -> ProfileError:
        return ProfileError(f"{self._source}: {name} = {value}: must be {rule}; correct it")

    def _strange(self, name: str, what: str) -> ProfileError:
        return ProfileError(f"{self._source}: '{name}' says that the model has {what}, {INSTEAD}")

    def _mlp_lists(self) -> dict[str, Any]:
        """Return which layers have experts, a dense MLP or both; nothing of a dense model."""
        if self._type == "nemotron_h":
            return {"mlp_layer_types": [mlp for _, mlp in self._blocks()]}
        if self._data.get("block_configs"):
            return self._sizes()
        if self._data.get("use_double_wide_mlp"):  # where keys are another layer's (Gemma-4 E2B)
            width, shared = self._count("intermediate_size"), self._count("num_kv_shared_layers")
            own = self._count("num_hidden_layers") - shared
            return {"intermediate_sizes": [width] * own + [2 * width] * shared}
        if "num_experts" not in self._data:
            return {}
        types = self._mlp_types()
        dense = types.count("dense")
        if types == ["dense"] * dense + ["sparse"] * (len(types) - dense):
            return {"first_k_dense_replace": dense} if dense else {}
        return {"mlp_layer_types": types}

    def _mlp_types(self) -> list[str]:
        data, num_layers = self._data, self._count("num_hidden_layers")
        if data.get("enable_moe_block"):
            return ["both"] * num_layers
        if numbers := data.get("moe_layers_enum"):  # 3,4,5 (Step-3.5)
            listed = set(str(numbers).split(","))
            return ["sparse" if str(each) in listed else "dense" for each in range(num_layers)]
        if "expert_layer_period" in data:
            return self._every("expert_layer", "sparse", "dense")
        for name, words in _DENSE_OR_NOT.items():
            if data.get(name) is None or (
                isinstance(data[name], int) and name != "mlp_layer_types"
            ):
                continue
            return ["dense" if each == words[0] else "sparse" for each in self._listed(name, words)]
        only = data.get("mlp_only_layers") or []
        if not isinstance(only, list):
            raise self._wrong("mlp_only_layers", short(only), "a list of layers")
        first = self._count("first_k_dense_replace") if data.get("first_k_dense_replace") else 0
        if first >= num_layers:
            raise ProfileError(
                f"{self._source}: first_k_dense_replace = {first}: must be fewer than "
                f"num_hidden_layers = {num_layers}, or no layer has experts; correct one of them"
            )
        steps = {"decoder_sparse_step": 1, "interleave_moe_layer_step": 1, "moe_layer_freq": 0}
        steps["moe_layer_interval"] = 1
        every = [(self._count(name), last) for name, last in steps.items() if data.get(name)]
        end = data.get("moe_layer_end_index")
        last_sparse = end if isinstance(end, int) and end >= 0 else num_layers
        return [
            "dense"
            if number < first
            or number in only
            or number > last_sparse
            or any((number + last) % step for step, last in every)
            else "sparse"
            for number in range(num_layers)
        ]

    def _every(self, name: str, one: str, others: str) -> list[str]:
        """Return what each layer has, where each so many-th after the first few differs (Jamba)."""
        period, first = self._count(f"{name}_period"), self._data.get(f"{name}_offset", 0)
        if not isinstance(first, int) or not 0 <= first < period:
            rule = f"a whole number below {name}_period = {period}"
            raise self._wrong(f"{name}_offset", short(first), rule)
        numbers = range(self._count("num_hidden_layers"))
        return [one if number % period == first else others for number in numbers]

    def _listed(self, name: str, words: tuple[Any, ...]) -> list[Any]:
        layers, num_layers = self._data[name], self._count("num_hidden_layers")
        is_list = isinstance(layers, list) and len(layers) == num_layers
        if not is_list or any(each not in words for each in layers):
            said = " or ".join(map(repr, words))
            each = f"for each of num_hidden_layers = {num_layers}"
            raise self._wrong(name, short(layers), f"a list of {said} {each}")
        return list(layers)

    def _blocks(self) -> list[tuple[str, str]]:
        blocks = self._data.get("hybrid_override_pattern", ())
        listed = list(blocks) if isinstance(blocks, str | list) else []
        if not listed or any(str(each) not in _BLOCKS for each in listed):
            raise ProfileError(
                f"{self._source}: hybrid_override_pattern = {short(blocks)}: must name each layer, "
                f"by one of {', '.join(_BLOCKS)}; correct it"
            )
        return [_BLOCKS[each] for each in blocks]

    def _sizes(self) -> dict[str, Any]:
        """Return the widths of dense MLPs that a search chose for each layer (Nemotron NAS)."""
        sizes = [self._ffn_size(block.get("ffn") or {}) for block in self._searched()]
        mlps = ["dense" if size else "none" for size in sizes]
        return {"intermediate_sizes": sizes, "mlp_layer_types": mlps}

    def _searched(self) -> list[dict[str, Any]]:
        blocks = self._data["block_configs"]
        if not isinstance(blocks, list) or not all(isinstance(each, dict) for each in blocks):
            rule = "a list of mappings, one for each layer"
            raise self._wrong("block_configs", short(blocks), rule)
        return blocks

    def _ffn_size(self, ffn: dict[str, Any]) -> int:
        if ffn.get("no_op"):
            return 0
        if (multiple := ffn.get("ffn_mult")) is None:
            raise self._strange("block_configs", "layers whose feed-forward part has no ffn_mult")
        size = 2 * multiple * self._count("hidden_size") // 3
        return int(-(-size // _FFN_MULTIPLE) * _FFN_MULTIPLE)

    def _layer_types(self) -> list[str] | None:
        """Return how each layer attends; None if all do alike."""
        of_type: dict[str, Callable[[], list[str]]] = {
            "falcon_h1": lambda: ["hybrid"] * self._count("num_hidden_layers"),
            "granitemoehybrid": self._mixed,
            "jamba": lambda: self._every("attn_layer", "full_attention", "mamba"),
            "nemotron_h": lambda: [kind for kind, _ in self._blocks()],
        }
        of_field: dict[str, Callable[[], list[str] | None]] = {
            "o_groups": self._compressed,
            "linear_attn_config": self._delta_types,
            "block_configs": self._searched_types,
            "hybrid_layer_pattern": self._window_or_not,
        }
        found = [rule for name, rule in of_field.items() if self._data.get(name)]
        return of_type.get(self._type, found[0] if found else self._named_types)()

    def _named_types(self) -> list[str] | None:
        """Return what layer_types says, or the rule of delta nets; None if neither is there."""
        data, num_layers = self._data, self._count("num_hidden_layers")
        types = data.get("layer_types")
        if not isinstance(types, list | None):
            raise self._wrong("layer_types", repr(types), "a list with the type of each layer")
        name = "num_nextn_predict_layers"  # whose types may come behind (Step-3.5)
        if types and data.get(name) and len(types) == num_layers + self._count(name):
            types = types[:num_layers]
        if data.get("index_topk"):  # which says the same
            words = ("sparse", "indexed")
            types = [
                "full_attention" if any(word in str(each) for word in words) else each
                for each in types or ()
            ]
        known = _LAYER_TYPES - (
            set() if data.get("linear_num_value_heads") else {"linear_attention"}
        )
        if others := sorted(set(map(str, types or ())) - known):
            raise ProfileError(f"{self._source}: 'layer_types' has '{others[0]}', {INSTEAD}")
        if not types and data.get("linear_num_value_heads"):
            name = "full_attention_interval"
            every = self._count(name) if name in data else 4
            types = ["linear_attention"] * num_layers
            types[every - 1 :: every] = ["full_attention"] * (num_layers // every)
        return types or None

    def _window_or_not(self) -> list[str]:
        words = ["full_attention", "sliding_attention"]
        return [words[each] for each in self._listed("hybrid_layer_pattern", (0, 1))]

    def _mixed(self) -> list[str]:
        """Return which layers of Granite 4.0 keep a state."""
        if "layer_types" not in self._data:
            self._count("layer_types", "which layers have attention and which keep a state")
        words = {"mamba": "mamba", "attention": "full_attention"}
        words |= {"linear_attention": "mamba", "full_attention": "full_attention"}  # transformers 5
        return [words[each] for each in self._listed("layer_types", tuple(words))]

    def _delta_types(self) -> list[str]:
        """Return which layers have Kimi's delta attention; they are counted from 1, or from 0."""
        said, num_layers = self._data["linear_attn_config"], self._count("num_hidden_layers")
        kinds = {"kda_layers": "linear_attention", "full_attn_layers": "full_attention"}
        named = [
            (str(number), kind) for name, kind in kinds.items() for number in _list_in(said, name)
        ]
        first = 0 if ("0", "linear_attention") in named else 1  # GLM-5.3-Flash; Kimi
        numbers = [str(number + first) for number in range(num_layers)]
        if sorted(number for number, _ in named) != sorted(numbers):
            rule = f"{' and '.join(kinds)}, which name each of 1 to {num_layers} once"
            raise self._wrong("linear_attn_config", short(said), rule)
        return [dict(named)[number] for number in numbers]

    def _compressed(self) -> list[str]:
        """Return which layers of DeepSeek-V4 attend to what; MTP layers are listed behind them."""
        words = {0: "sliding_attention", **{ratio: kind for kind, ratio in RATIOS.items()}}
        if (rates := self._data.get("compress_rates", RATIOS)) != RATIOS:
            raise self._wrong("compress_rates", short(rates), str(RATIOS))
        if "layer_types" in self._data:
            return self._listed("layer_types", tuple(words.values()))
        ratios, num_layers = self._data.get("compress_ratios"), self._count("num_hidden_layers")
        own = ratios[:num_layers] if isinstance(ratios, list) else []
        if len(own) < num_layers or any(each not in words for each in own):
            rule = f"a list of 0, 4 or 128 for each of num_hidden_layers = {num_layers}"
            raise self._wrong("compress_ratios", short(ratios), rule)
        return [words[each] for each in own]

    def _searched_types(self) -> list[str]:
        return [self._of_block(each.get("attention") or {}) for each in self._searched()]

    def _of_block(self, attention: dict[str, Any]) -> str:
        for name in ("window_length", "replace_with_linear", "sparsify", "num_sink_tokens"):
            if attention.get(name):
                raise self._strange("block_configs", f"attention with {name}")
        return "none" if attention.get("no_op") else "full_attention"

    def _searched_heads(self) -> int:
        """Return the key-value heads of layers that a search chose, which are all alike."""
        attention = [each.get("attention") or {} for each in self._searched()]
        groups = {each.get("n_heads_in_group") for each in attention if not each.get("no_op")}
        if len(groups) != 1 or not isinstance(group := groups.pop(), int) or group < 1:
            raise self._strange("block_configs", "layers with different numbers of key-value heads")
        return self._count("num_attention_heads") // group

    def _usual_types(self) -> list[str] | None:
        """Return the type of each layer by the rule of the model's class; None if all slide."""
        num_layers = self._count("num_hidden_layers")
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
            rule = "a whole number above 0, or letters such as LLLG"
            raise self._wrong("sliding_window_pattern", repr(every), rule)
        if isinstance(every, str):  # LLLG: three local layers, one global one
            local = [letter == "L" for letter in every]
            return [
                "sliding_attention" if local[i % len(local)] else "full_attention"
                for i in range(num_layers)
            ]
        return ["sliding_attention" if i % every else "full_attention" for i in numbers]
