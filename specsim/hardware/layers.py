"""What a layer of a model consists of."""

from typing import Literal, NamedTuple, get_args

from specsim.hardware.kv_groups import KINDS, Kind

LayerType = Literal[
    "full_attention", "sliding_attention", "chunked_attention", "linear_attention", "mamba", "none"
]
STATES = ("linear_attention", "mamba")
MlpType = Literal["dense", "sparse", "both", "none"]
DENSE: tuple[MlpType, ...] = ("dense",)
SPARSE: tuple[MlpType, ...] = ("sparse",)
IndexerType = Literal["full", "shared", "none"]
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
INDEX_BYTES = 4  # of the scale of an index key, beside its numbers of 8 bits
SPANS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
KV_KINDS: dict[LayerType, Kind] = dict(zip(get_args(LayerType)[:3], KINDS[:3], strict=True))


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
    """Numbers that the layer's own indexer keeps of a token; 0 where it takes another's choice."""

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
