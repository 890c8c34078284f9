"""What is told of a model's shape: the fields, which go together, and what layers consist of."""

from typing import Literal, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from specsim.core.settings import Settings
from specsim.hardware.kv_groups import FULL, KINDS, Kind

LayerType = Literal[
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
    "linear_attention",
    "mamba",
    "hybrid",
    "none",
]
"""How a layer attends; hybrid: to everything, with Mamba2 beside it (Falcon-H1)."""
RATIOS: dict[LayerType, int] = {
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
"""Tokens of an entry of the compressed context (DeepSeek-V4)."""
STATES = ("linear_attention", "mamba", "hybrid")
MlpType = Literal["dense", "sparse", "both", "none"]
DENSE: tuple[MlpType, ...] = ("dense",)
SPARSE: tuple[MlpType, ...] = ("sparse",)
IndexerType = Literal["full", "shared", "none"]
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
INDEX_BYTES = 4  # of the scale of an index key, beside its numbers of 8 bits
OF_EACH = ("layer_types", "mlp_layer_types", "intermediate_sizes", "indexer_types")
"""Fields that say something of each layer."""
SPANS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
KV_KINDS: dict[LayerType, Kind] = {
    **dict(zip(get_args(LayerType)[:3], KINDS[:3], strict=True)),
    **dict.fromkeys((*RATIOS, "hybrid"), FULL),
}


class AttentionWidth(NamedTuple):
    """How wide the attention of a layer is."""

    num_attention_heads: int
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
    has_own_keys: bool = True
    """False where it reads keys and values of an earlier layer."""

    def per_gpu(self, tensor_parallel_size: int) -> int:
        """Return the key-value heads of each of some GPUs, which replicate them if too few."""
        return -(-self.num_key_value_heads // tensor_parallel_size)


class LayerParts(NamedTuple):
    """What a layer consists of."""

    kind: LayerType
    mlp_width: int  # of a dense MLP; 0 without
    has_experts: bool
    indexer: IndexerType = "none"
    has_own_keys: bool = True


class LayerMatrix(NamedTuple):
    """A matrix that every token is multiplied with in some layers, as each GPU has it."""

    name: str
    outputs: int
    inputs: int
    layers: int


_MOST = 2**31  # of any size of a model


class ModelFields(Settings):
    """A decoder-only transformer in the field names of a HuggingFace ``config.json``.

    Or the head of an EAGLE drafter: one layer, with a matrix before it that fuses its inputs.
    """

    name: str
    num_hidden_layers: int = Field(gt=0, le=4096)
    hidden_size: int = Field(gt=0, le=_MOST)
    intermediate_size: int = Field(gt=0, le=_MOST)
    num_experts: int = Field(default=0, ge=0, le=_MOST)
    """Experts per layer, in place of one MLP; 0 of a dense model."""
    num_experts_per_tok: int = Field(default=0, ge=0, le=_MOST)
    """Experts that each token visits."""
    moe_latent_size: int = Field(default=0, ge=0, le=_MOST)
    """Numbers of a token that experts see, if not all of hidden_size (Nemotron 3)."""
    moe_intermediate_size: int = Field(default=0, ge=0, le=_MOST)
    """Width of an expert."""
    n_shared_experts: int = Field(default=0, ge=0, le=_MOST)
    """Further experts, which every token visits."""
    shared_expert_intermediate_size: int = Field(default=0, ge=0, le=_MOST)
    """Width of these together, if not that of the others."""
    first_k_dense_replace: int = Field(default=0, ge=0, le=_MOST)
    """First layers, which have one MLP of intermediate_size in place of experts."""
    mlp_layer_types: tuple[MlpType, ...] | None = None
    """Whether each layer has a dense MLP, experts, both or none, where that does not follow."""
    intermediate_sizes: tuple[int, ...] | None = None
    """Width of each layer's dense MLP, where they differ."""
    num_attention_heads: int = Field(gt=0, le=_MOST)
    num_key_value_heads: int = Field(gt=0, le=_MOST)
    head_dim: int = Field(gt=0, le=_MOST)
    vocab_size: int = Field(gt=0, le=_MOST)
    max_position_embeddings: int = Field(gt=0, le=_MOST)
    num_kv_shared_layers: int = Field(default=0, ge=0, le=_MOST)
    """Last layers, which read the keys and values of the last earlier one of their type (Gemma-4
    E4B)."""
    hidden_size_per_layer_input: int = Field(default=0, ge=0, le=_MOST)
    """Numbers of a token that each layer has an embedding of its own for; 0: none has."""
    vocab_size_per_layer_input: int = Field(default=0, ge=0, le=_MOST)
    """Tokens of these embeddings."""
    tie_word_embeddings: bool = False
    has_gated_mlp: bool = True
    """Whether the MLP has a gate, and so three matrices (Llama) instead of two (OPT)."""
    has_learned_positions: bool = False
    """Whether each position has an embedding (GPT-2)."""
    num_fused_inputs: int = Field(default=0, ge=0, le=_MOST)
    """Vectors that a drafting head fuses into one: 2 in EAGLE, 3 in EAGLE-3; 0 of a model."""
    num_attention_inputs: int = Field(default=1, gt=0, le=_MOST)
    """Vectors, side by side, that attention is computed from; 2 in EAGLE-3."""
    backbone_hidden_size: int | None = Field(default=None, gt=0, le=_MOST)
    """Of the target, where a drafting head takes its vectors and gives back such; by default as
    wide as the head's own."""
    num_nextn_predict_layers: int = Field(default=0, ge=0, le=_MOST)
    """Layers of its own that draft (MTP), beside all others."""
    has_usual_mtp_layers: bool = True
    """Whether these are as the last of the others: else nothing here tells what they are."""
    has_own_kv_cache: bool = True
    """False where all layers of a drafting head read keys and values of the target's."""
    has_own_embedding: bool = True
    """False where a drafting head uses the target's."""
    has_own_lm_head: bool = True
    """False where a drafting head uses the target's."""
    sliding_window: int | None = Field(default=None, gt=0, le=_MOST)
    """Tokens that a token attends to, itself included, in layers of type sliding_attention."""
    attention_chunk_size: int | None = Field(default=None, gt=0, le=_MOST)
    """Tokens of a chunk, in layers of type chunked_attention: a token attends to those of its
    own."""
    layer_types: tuple[LayerType, ...] | None = None
    """How each layer attends; by default all alike: in a sliding_window if there is one, else to
    everything."""
    global_head_dim: int | None = Field(default=None, gt=0, le=_MOST)
    """In layers of type full_attention, if it is another than head_dim."""
    num_global_key_value_heads: int | None = Field(default=None, gt=0, le=_MOST)
    """In layers of type full_attention, if they are others."""
    num_sliding_attention_heads: int | None = Field(default=None, gt=0, le=_MOST)
    """In layers of type sliding_attention, if they are others (Step-3.5)."""
    kv_lora_rank: int | None = Field(default=None, gt=0, le=_MOST)
    """Of multi-head latent attention: what is kept of a token for all heads together, besides
    qk_rope_head_dim numbers. head_dim is then that of queries and keys, both parts together."""
    q_lora_rank: int | None = Field(default=None, gt=0, le=_MOST)
    """The same of queries; None if they are computed at once."""
    qk_rope_head_dim: int = Field(default=0, ge=0, le=_MOST)
    v_head_dim: int = Field(default=0, ge=0, le=_MOST)
    """Of values, if not head_dim."""
    qk_norm_type: Literal["per_layer"] | None = None
    """Whether queries, and keys, are normalized over all heads (MiniMax-M2), which tensor-parallel
    GPUs exchange their squares for; None: each head by itself, or not at all."""
    attn_output_gate: bool | Literal["per_head"] = False
    """Whether a gate as wide as that multiplies what attention gives out (Qwen3.5), or one number
    of each head (Step-3.5)."""
    attn_res_block_size: int = Field(default=0, ge=0, le=_MOST)
    """Layers of a block, of whose sums each half of a layer takes a mixture for its input
    (attention residuals, Kimi-K3); 0: what all earlier ones add up to."""
    o_groups: int = Field(default=0, ge=0, le=_MOST)
    """Of attention to a compressed context (DeepSeek-V4): groups of heads, each of which is
    projected to o_lora_rank numbers."""
    o_lora_rank: int = Field(default=0, ge=0, le=_MOST)
    hc_mult: int = Field(default=0, ge=0, le=_MOST)
    """Residual streams that hyper-connections mix; 0: one, without."""
    index_topk: int = Field(default=0, ge=0, le=_MOST)
    """Of sparse attention: tokens that an indexer of index_n_heads heads chooses to be read."""
    index_n_heads: int = Field(default=0, ge=0, le=_MOST)
    index_head_dim: int = Field(default=0, ge=0, le=_MOST)
    index_kpool: int = Field(default=1, gt=0, le=_MOST)
    """Tokens that one index key is pooled of (GLM-5.3-Flash)."""
    indexer_types: tuple[IndexerType, ...] | None = None
    """Whether each layer has an indexer, shares that of an earlier one or attends to all; by
    default all have one if there is an index_topk."""
    linear_num_key_heads: int = Field(default=0, ge=0, le=_MOST)
    """Of layers with a state in place of keys and values; of Mamba2 its groups."""
    linear_num_value_heads: int = Field(default=0, ge=0, le=_MOST)
    linear_key_head_dim: int = Field(default=0, ge=0, le=_MOST)
    """Of Mamba2 the size of its state."""
    linear_value_head_dim: int = Field(default=0, ge=0, le=_MOST)
    linear_conv_kernel_dim: int = Field(default=0, ge=0, le=_MOST)
    linear_decay_rank: int = Field(default=0, ge=0, le=_MOST)
    """Numbers that the decay of each number of a key is computed from (Kimi's delta attention); 0:
    each head has one decay."""
    linear_gate_rank: int = Field(default=0, ge=0, le=_MOST)
    """The same of the gate; 0: it is computed at once."""
    mamba_dt_rank: int = Field(default=0, ge=0, le=_MOST)
    """Of the first Mamba (Jamba), whose heads are one number wide: numbers that their step sizes
    are computed from; 0: it is Mamba2."""
    mamba_ssm_dtype: Literal["bfloat16", "float16", "float32"] | None = None
    """Of the states; None: torch_dtype."""
    torch_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    quantization: str | None = None
    """How the weights are stored, if in fewer bits than `torch_dtype` says, as in ``profile build
    --dtype``; or other. Only a profile of kernel tables knows what follows."""
    kv_cache_dtype: Literal["fp8", "fp8_sm100"] | None = None
    """How vLLM stores keys and values where it is not told, if in 8 bits: fp8, or that on GPUs of
    compute capability 10 alone (GLM-5)."""
    max_cudagraph_capture_size: int | None = Field(default=None, gt=0, le=_MOST)
    """Tokens of vLLM's largest CUDA graph where it is not told, if its class says so (gpt-oss)."""
    source: str

    @model_validator(mode="after")
    def _check_layer_types(self) -> Self:
        for name in OF_EACH:
            listed = getattr(self, name)
            if listed is not None and len(listed) != self.num_hidden_layers:
                raise ValueError(
                    f"{name} names {len(listed)} layers of num_hidden_layers = "
                    f"{self.num_hidden_layers}; name each"
                )
        types = self.layer_types or ()
        for kind, name in SPANS.items():
            if kind in types and getattr(self, name) is None:
                raise ValueError(f"layer_types has '{kind}', but {name} is missing; add it")
        if self.num_kv_shared_layers >= self.num_hidden_layers:
            raise ValueError(
                f"num_kv_shared_layers = {self.num_kv_shared_layers}: must be fewer than "
                f"num_hidden_layers = {self.num_hidden_layers}; correct one of them"
            )
        return self

    @model_validator(mode="after")
    def _check_compressed(self) -> Self:
        compressed = set(self.layer_types or ()) & RATIOS.keys()
        needed = ["o_lora_rank", "q_lora_rank", "sliding_window"] if self.o_groups else []
        needed += ["o_groups"] if compressed else []
        if "compressed_sparse_attention" in compressed:
            needed += ["index_topk", "index_n_heads", "index_head_dim"]
        for name in needed:
            if not getattr(self, name):
                raise ValueError(f"{name} is missing: compressed attention has one; add it")
        if self.o_groups and self.num_attention_heads % self.o_groups:
            raise ValueError(
                f"o_groups = {self.o_groups}: must divide num_attention_heads = "
                f"{self.num_attention_heads}; correct one of them"
            )
        return self

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        most = self.num_attention_heads
        for name in ("num_key_value_heads", "num_global_key_value_heads"):
            if (heads := getattr(self, name)) is not None and heads > most:
                raise ValueError(
                    f"{name} = {heads}: each is shared by at least one of num_attention_heads = "
                    f"{most}; correct one of them"
                )
        return self

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        if not min(self.num_experts, 1) <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok = {self.num_experts_per_tok}: each token visits at least 1 "
                f"of the num_experts = {self.num_experts} experts; a dense model has 0 of 0"
            )
        if self.num_experts and not self.moe_intermediate_size:
            raise ValueError("moe_intermediate_size is missing: the width of an expert")
        if self.num_experts and self.first_k_dense_replace >= self.num_hidden_layers:
            raise ValueError(
                f"first_k_dense_replace = {self.first_k_dense_replace}: must be fewer than "
                f"num_hidden_layers = {self.num_hidden_layers}; correct one of them"
            )
        return self
