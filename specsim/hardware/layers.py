"""What each layer of a model consists of, and how HuggingFace's ``config.json`` says so."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from specsim.core.errors import ProfileError
from specsim.core.reading import short
from specsim.hardware.kv_groups import FULL, KINDS, Kind

LayerType = Literal[
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
    "linear_attention",
    "mamba",
    "none",
]
RATIOS: dict[LayerType, int] = {
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
"""Tokens of an entry of the compressed context (DeepSeek-V4)."""
STATES = ("linear_attention", "mamba")
MlpType = Literal["dense", "sparse", "both", "none"]
DENSE: tuple[MlpType, ...] = ("dense",)
SPARSE: tuple[MlpType, ...] = ("sparse",)
IndexerType = Literal["full", "shared", "none"]
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
INDEX_BYTES = 4  # of the scale of an index key, beside its numbers of 8 bits
SPANS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
KV_KINDS: dict[LayerType, Kind] = {
    **dict(zip(get_args(LayerType)[:3], KINDS[:3], strict=True)),
    **dict.fromkeys(RATIOS, FULL),
}


class AttentionWidth(NamedTuple):
    """How wide the attention of a layer is."""

    num_key_value_heads: int
    head_dim: int
    latent_dim: int = 0
    """Numbers kept of a token for all heads together, in place of keys and values (MLA)."""
    value_dim: int = 0
    topk: int = 0
    """Tokens that a token reads, which an indexer chooses; 0: all."""
    index_dim: int = 0
    """Numbers that the layer's own indexer keeps of an entry; 0 where it takes another's choice."""
    kept: float = 1.0
    """Entries of a token that are kept beside those of a window; less where they are compressed."""

    def per_gpu(self, tensor_parallel_size: int) -> int:
        """Return the key-value heads of each of some GPUs, which replicate them if too few."""
        return -(-self.num_key_value_heads // tensor_parallel_size)


class LayerParts(NamedTuple):
    """What a layer consists of."""

    kind: LayerType
    mlp_width: int  # of a dense MLP; 0 without
    has_experts: bool
    indexer: IndexerType = "none"


class LayerMatrix(NamedTuple):
    """A matrix that every token is multiplied with in some layers, as each GPU has it."""

    name: str
    outputs: int
    inputs: int
    layers: int


_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention", "linear_attention"}
_PATTERNS = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4, "exaone4": 4, "gpt_oss": 2, "olmo3": 4}
"""Each so many-th layer attends to all."""
_DENSE_OR_NOT = {"mlp_layer_types": ("dense", "sparse"), "moe_layer_freq": (0, 1)}
_BLOCKS = {
    **dict.fromkeys(("M", "mamba"), ("mamba", "none")),
    **dict.fromkeys(("*", "attention"), ("full_attention", "none")),
    **dict.fromkeys(("E", "moe"), ("none", "sparse")),
    **dict.fromkeys(("-", "mlp"), ("none", "dense")),
}
"""What Nemotron-H calls a layer, which has either attention or a feed-forward part."""
_FFN_MULTIPLE = 256  # to which DeciLM rounds up


class LayerLists:
    """Reads them; a ProfileError names the source.

    Args:
        count: Returns a field that must be a whole number above 0.
    """

    def __init__(
        self, data: Mapping[str, Any], family: str, source: str, count: Callable[[str], int]
    ) -> None:
        self._data, self._type, self._source, self._count = data, family, source, count

    def mlps(self) -> dict[str, Any]:
        """Return which layers have experts, a dense MLP or both; nothing of a dense model."""
        if self._type == "nemotron_h":
            return {"mlp_layer_types": [mlp for _, mlp in self._blocks()]}
        if self._data.get("block_configs"):
            return self._sizes()
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
        for name, words in _DENSE_OR_NOT.items():
            if data.get(name) is None or (
                isinstance(data[name], int) and name != "mlp_layer_types"
            ):
                continue
            return ["dense" if each == words[0] else "sparse" for each in self._listed(name, words)]
        only = data.get("mlp_only_layers") or []
        if not isinstance(only, list):
            raise ProfileError(
                f"{self._source}: mlp_only_layers = {short(only)}: must be a list of layers; "
                "correct it"
            )
        first = self._count("first_k_dense_replace") if data.get("first_k_dense_replace") else 0
        if first >= num_layers:
            raise ProfileError(
                f"{self._source}: first_k_dense_replace = {first}: must be fewer than "
                f"num_hidden_layers = {num_layers}, or no layer has experts; correct one of them"
            )
        steps = {"decoder_sparse_step": 1, "interleave_moe_layer_step": 1, "moe_layer_freq": 0}
        every = [(self._count(name), last) for name, last in steps.items() if data.get(name)]
        return [
            "dense"
            if number < first
            or number in only
            or any((number + last) % step for step, last in every)
            else "sparse"
            for number in range(num_layers)
        ]

    def _listed(self, name: str, words: tuple[Any, ...]) -> list[Any]:
        layers, num_layers = self._data[name], self._count("num_hidden_layers")
        is_list = isinstance(layers, list) and len(layers) == num_layers
        if not is_list or any(each not in words for each in layers):
            said = " or ".join(map(repr, words))
            raise ProfileError(
                f"{self._source}: {name} = {short(layers)}: must be a list of {said} for each of "
                f"num_hidden_layers = {num_layers}; correct it"
            )
        return list(layers)

    def _blocks(self) -> list[tuple[str, str]]:
        blocks = self._data.get("hybrid_override_pattern", ())
        if not blocks or any(each not in _BLOCKS for each in blocks):
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
            raise ProfileError(
                f"{self._source}: block_configs = {short(blocks)}: must be a list of mappings, one "
                "for each layer; correct it"
            )
        return blocks

    def _ffn_size(self, ffn: dict[str, Any]) -> int:
        if ffn.get("no_op"):
            return 0
        if (multiple := ffn.get("ffn_mult")) is None:
            raise self._strange("block_configs", "layers whose feed-forward part has no ffn_mult")
        size = 2 * multiple * self._count("hidden_size") // 3
        return int(-(-size // _FFN_MULTIPLE) * _FFN_MULTIPLE)

    def attention(self) -> list[str] | None:
        """Return how each layer attends; None if all do alike."""
        data, num_layers = self._data, self._count("num_hidden_layers")
        if data.get("o_groups"):
            return self._compressed()
        if self._type == "nemotron_h":
            return [kind for kind, _ in self._blocks()]
        if data.get("block_configs"):
            return [self._of_block(each.get("attention") or {}) for each in self._searched()]
        if data.get("hybrid_layer_pattern"):
            words = ["full_attention", "sliding_attention"]
            return [words[each] for each in self._listed("hybrid_layer_pattern", (0, 1))]
        types = data.get("layer_types")
        if not isinstance(types, list | None):
            raise ProfileError(
                f"{self._source}: layer_types = {types!r}: must be a list with the type of each "
                "layer; correct it"
            )
        if data.get("index_topk"):  # which says the same
            types = ["full_attention" if "sparse" in str(each) else each for each in types or ()]
        known = _LAYER_TYPES - (
            set() if data.get("linear_num_value_heads") else {"linear_attention"}
        )
        if others := sorted(set(map(str, types or ())) - known):
            raise ProfileError(
                f"{self._source}: 'layer_types' has '{others[0]}', which is not modelled; fit a "
                "profile to measured steps instead"
            )
        if not types and data.get("linear_num_value_heads"):
            name = "full_attention_interval"
            every = self._count(name) if name in data else 4
            types = ["linear_attention"] * num_layers
            types[every - 1 :: every] = ["full_attention"] * (num_layers // every)
        return types or None

    def _compressed(self) -> list[str]:
        """Return which layers of DeepSeek-V4 attend to what; MTP layers are listed behind them."""
        words = {0: "sliding_attention", **{ratio: kind for kind, ratio in RATIOS.items()}}
        if (rates := self._data.get("compress_rates", RATIOS)) != RATIOS:
            raise ProfileError(
                f"{self._source}: compress_rates = {short(rates)}: must be {RATIOS}; correct it"
            )
        if "layer_types" in self._data:
            return self._listed("layer_types", tuple(words.values()))
        ratios, num_layers = self._data.get("compress_ratios"), self._count("num_hidden_layers")
        own = ratios[:num_layers] if isinstance(ratios, list) else []
        if len(own) < num_layers or any(each not in words for each in own):
            raise ProfileError(
                f"{self._source}: compress_ratios = {short(ratios)}: must be a list of 0, 4 or 128 "
                f"for each of num_hidden_layers = {num_layers}; correct it"
            )
        return [words[each] for each in own]

    def _of_block(self, attention: dict[str, Any]) -> str:
        for name in ("window_length", "replace_with_linear", "sparsify", "num_sink_tokens"):
            if attention.get(name):
                raise self._strange("block_configs", f"attention with {name}")
        return "none" if attention.get("no_op") else "full_attention"

    def key_value_heads(self) -> int:
        """Return the key-value heads of layers that a search chose, which are all alike."""
        attention = [each.get("attention") or {} for each in self._searched()]
        groups = {each.get("n_heads_in_group") for each in attention if not each.get("no_op")}
        if len(groups) != 1 or not isinstance(group := groups.pop(), int) or group < 1:
            raise self._strange("block_configs", "layers with different numbers of key-value heads")
        return self._count("num_attention_heads") // group

    def _strange(self, name: str, what: str) -> ProfileError:
        return ProfileError(
            f"{self._source}: '{name}' says that the model has {what}, which is not modelled; fit "
            "a profile to measured steps instead"
        )

    def usual(self) -> list[str] | None:
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
