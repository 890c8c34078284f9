"""The shape of a model: what its layers are, how many weights it has, what its KV cache keeps."""

from collections import Counter
from typing import Literal, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from specsim.core.settings import Settings
from specsim.hardware.kv_groups import KINDS, Kind, KVLayers

LayerType = Literal["full_attention", "sliding_attention", "chunked_attention"]
_SPANS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
_KV_KINDS: dict[LayerType, Kind] = dict(zip(get_args(LayerType), KINDS, strict=True))


class AttentionWidth(NamedTuple):
    """How wide the attention of a layer is."""

    num_key_value_heads: int
    head_dim: int
    latent_dim: int = 0
    """Numbers kept of a token for all heads together, in place of keys and values (MLA)."""

    def per_gpu(self, tensor_parallel_size: int) -> int:
        """Return the key-value heads of each of some GPUs, which replicate them if too few."""
        return -(-self.num_key_value_heads // tensor_parallel_size)


class LayerMatrix(NamedTuple):
    """A matrix that every token is multiplied with in some layers, as each GPU has it."""

    name: str
    outputs: int
    inputs: int
    layers: int


_MOST = 2**31  # of any size of a model


class ModelShape(Settings):
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
    moe_intermediate_size: int = Field(default=0, ge=0, le=_MOST)
    """Width of an expert."""
    n_shared_experts: int = Field(default=0, ge=0, le=_MOST)
    """Further experts, which every token visits."""
    first_k_dense_replace: int = Field(default=0, ge=0, le=_MOST)
    """First layers, which have one MLP of intermediate_size in place of experts."""
    num_attention_heads: int = Field(gt=0, le=_MOST)
    num_key_value_heads: int = Field(gt=0, le=_MOST)
    head_dim: int = Field(gt=0, le=_MOST)
    vocab_size: int = Field(gt=0, le=_MOST)
    max_position_embeddings: int = Field(gt=0, le=_MOST)
    tie_word_embeddings: bool = False
    has_gated_mlp: bool = True
    """Whether the MLP has a gate, and so three matrices (Llama) instead of two (OPT)."""
    num_fused_inputs: int = Field(default=0, ge=0, le=_MOST)
    """Vectors that a drafting head fuses into one: 2 in EAGLE, 3 in EAGLE-3; 0 of a model."""
    num_attention_inputs: int = Field(default=1, gt=0, le=_MOST)
    """Vectors, side by side, that attention is computed from; 2 in EAGLE-3."""
    backbone_hidden_size: int | None = Field(default=None, gt=0, le=_MOST)
    """Of the target, where a drafting head takes its vectors and gives back such; by default as
    wide as the head's own."""
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
    kv_lora_rank: int | None = Field(default=None, gt=0, le=_MOST)
    """Of multi-head latent attention: what is kept of a token for all heads together, besides
    qk_rope_head_dim numbers. head_dim is then that of queries and keys, both parts together."""
    q_lora_rank: int | None = Field(default=None, gt=0, le=_MOST)
    """The same of queries; None if they are computed at once."""
    qk_rope_head_dim: int = Field(default=0, ge=0, le=_MOST)
    v_head_dim: int = Field(default=0, ge=0, le=_MOST)
    torch_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    quantization: str | None = None
    """How the weights are stored, if in fewer bits than `torch_dtype` says, in the words of
    ``profile build --dtype``; or other. Only a profile of kernel tables knows what follows."""
    source: str

    @model_validator(mode="after")
    def _check_layer_types(self) -> Self:
        types = self.layer_types
        if types is None:
            return self
        if len(types) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types names {len(types)} layers of num_hidden_layers = "
                f"{self.num_hidden_layers}; name each"
            )
        for kind, name in _SPANS.items():
            if kind in types and getattr(self, name) is None:
                raise ValueError(f"layer_types has '{kind}', but {name} is missing; add it")
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

    def check_split(self, tensor_parallel_size: int) -> None:
        """Raise a ValueError if vLLM cannot spread the heads over so many GPUs.

        References:
            vLLM 0.32.0 ``models/llama.py LlamaAttention``.
        """
        size, heads = tensor_parallel_size, self.num_attention_heads
        if heads % size:
            raise ValueError(
                f"has {heads} attention heads, which cannot be split evenly; choose a divisor of "
                "that"
            )
        for each in self.attention_widths:
            keys = each.num_key_value_heads
            if keys % size and size % keys:
                raise ValueError(
                    f"has {keys} key-value heads, which can neither be split evenly nor copied as "
                    "often to each GPU; choose a divisor or a multiple of that"
                )

    @property
    def mlp_width(self) -> int:
        """Width of the MLP, or of an expert in its place."""
        return self.moe_intermediate_size if self.num_experts else self.intermediate_size

    @property
    def num_expert_layers(self) -> int:
        return self.num_hidden_layers - self.first_k_dense_replace if self.num_experts else 0

    @property
    def num_parameters(self) -> int:
        """Weights of matrices and norms; no biases, no learned positions (1.3 % of OPT-125M)."""
        hidden = self.hidden_size
        matrices = (*self.attention_matrices(1), *self.mlp_matrices(1))
        layers = sum(each.outputs * each.inputs * each.layers for each in matrices)
        layers += self.expert_bytes // self.bytes_per_weight
        layers += hidden * (self.num_experts * self.num_expert_layers + 2 * self.num_hidden_layers)
        has_matrix = self.has_own_lm_head and not self.tie_word_embeddings
        vocabulary = self.vocab_size * (self.has_own_embedding + has_matrix)
        fusing = sum(outputs * inputs for outputs, inputs in self.fusing_matrices)
        return layers + fusing + hidden * (vocabulary + 1)

    def attention_matrices(self, tensor_parallel_size: int) -> list[LayerMatrix]:
        """Return those of attention: split by heads, replicated where those are too few.

        Where values are the keys (Gemma 4), vLLM has their matrix twice (0.32.0
        ``models/gemma4.py``).
        """
        size, hidden, found = tensor_parallel_size, self.hidden_size, []
        inputs = self.num_attention_inputs * hidden
        for each, layers in self.attention_widths.items():
            heads = self.num_attention_heads // size
            queries = outputs = heads * each.head_dim
            if each.latent_dim:
                assert self.kv_lora_rank is not None
                plain = each.head_dim - self.qk_rope_head_dim
                outputs = heads * self.v_head_dim
                down, up = self.q_lora_rank or queries, heads * (plain + self.v_head_dim)
                found.append(LayerMatrix("qkv", down + each.latent_dim, inputs, layers))
                if self.q_lora_rank:
                    found.append(LayerMatrix("q", queries, self.q_lora_rank, layers))
                found.append(LayerMatrix("kv", up, self.kv_lora_rank, layers))
            else:
                keys = 2 * self.num_projected(each, size) * each.head_dim
                found.append(LayerMatrix("qkv", queries + keys, inputs, layers))
            found.append(LayerMatrix("o", hidden, outputs, layers))
        return found

    def mlp_matrices(self, tensor_parallel_size: int) -> list[LayerMatrix]:
        """Return those of MLPs and shared experts, split by their width."""
        hidden, gated = self.hidden_size, 2 if self.has_gated_mlp else 1
        shared = self.n_shared_experts * self.moe_intermediate_size
        dense_layers = self.num_hidden_layers - self.num_expert_layers
        found = []
        for full, layers in (
            (self.intermediate_size, dense_layers),
            (shared, self.num_expert_layers),
        ):
            if full and layers:
                width = -(-full // tensor_parallel_size)
                found.append(LayerMatrix("up", gated * width, hidden, layers))
                found.append(LayerMatrix("down", hidden, width, layers))
        return found

    def num_projected(self, width: AttentionWidth, tensor_parallel_size: int = 1) -> int:
        """Return the heads of keys, and of values, that each GPU computes of a token."""
        return width.per_gpu(tensor_parallel_size) if self.has_own_kv_cache else 0

    @property
    def fusing_matrices(self) -> tuple[tuple[int, int], ...]:
        """Outputs and inputs of the matrices of a drafting head before and after its layers."""
        if not self.num_fused_inputs:
            return ()
        width = self.backbone_hidden_size or self.hidden_size
        before = (self.hidden_size, self.num_fused_inputs * width)
        return (before, (width, self.hidden_size)) if self.backbone_hidden_size else (before,)

    def attention_width(self, kind: LayerType) -> AttentionWidth:
        heads, head_dim = self.num_key_value_heads, self.head_dim
        if self.kv_lora_rank:
            return AttentionWidth(1, head_dim, self.kv_lora_rank + self.qk_rope_head_dim)
        if kind == "full_attention":
            heads = self.num_global_key_value_heads or heads
            head_dim = self.global_head_dim or head_dim
        return AttentionWidth(heads, head_dim)

    @property
    def layer_counts(self) -> Counter[LayerType]:
        """How many layers of each type, in order of first appearance."""
        usual: LayerType = "sliding_attention" if self.sliding_window else "full_attention"
        return Counter(self.layer_types or (usual,) * self.num_hidden_layers)

    @property
    def attention_widths(self) -> Counter[AttentionWidth]:
        """How many layers are how wide."""
        counts: Counter[AttentionWidth] = Counter()
        for kind, layers in self.layer_counts.items():
            counts[self.attention_width(kind)] += layers
        return counts

    @property
    def bytes_per_weight(self) -> int:
        """Size of one number, of weights, activations and KV cache alike."""
        return {"bfloat16": 2, "float16": 2, "float32": 4}[self.torch_dtype]

    @property
    def expert_bytes(self) -> int:
        """Memory of the experts' weights, bytes; 0 of a dense model."""
        matrices = 3 if self.has_gated_mlp else 2
        each = matrices * self.hidden_size * self.moe_intermediate_size * self.bytes_per_weight
        return self.num_expert_layers * self.num_experts * each

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights, bytes."""
        return self.num_parameters * self.bytes_per_weight

    @property
    def kv_bytes_per_token(self) -> int:
        """Key and value of one token in every layer, bytes; 0 without a cache of its own."""
        return int(self.kv_bytes_per_token_and_gpu(1))

    def kv_layers(
        self, bytes_per_token: float, tensor_parallel_size: int = 1
    ) -> tuple[KVLayers, ...]:
        """Return the layers as far as their KV cache goes, alike ones together.

        Args:
            bytes_per_token: Of key and value in all layers, on each GPU.
        """
        counts, own = self.layer_counts, self.kv_bytes_per_token_and_gpu(tensor_parallel_size)
        is_uniform = len(self.attention_widths) == 1
        mean = bytes_per_token / self.num_hidden_layers
        return tuple(
            KVLayers(
                kind=_KV_KINDS[each],
                layers=count,
                window=self.sliding_window if each == "sliding_attention" else None,
                chunk=self.attention_chunk_size if each == "chunked_attention" else None,
                bytes_per_token=mean
                if is_uniform
                else self._layer_bytes(self.attention_width(each), tensor_parallel_size)
                * (bytes_per_token / own),
            )
            for each, count in counts.items()  # as vLLM has them
        )

    def kv_bytes_per_token_and_gpu(self, tensor_parallel_size: int) -> float:
        """Return it for one GPU of several, bytes; of fewer heads than GPUs, each has one."""
        if not self.has_own_kv_cache:
            return 0.0
        return sum(
            layers * self._layer_bytes(each, tensor_parallel_size)
            for each, layers in self.attention_widths.items()
        )

    def _layer_bytes(self, width: AttentionWidth, size: int) -> float:
        heads = width.num_key_value_heads
        if width.latent_dim:
            return float(width.latent_dim * self.bytes_per_weight)
        return 2 * heads * width.head_dim * self.bytes_per_weight / min(size, heads)
