"""Models and GPUs as far as memory goes: how many KV blocks fit.

Source of the rule: vLLM 0.32.0 ``v1/worker/gpu_worker.py determine_available_memory`` and
``v1/core/kv_cache_utils.py``: what gpu_memory_utilization leaves after weights and the peak of a
profiling run is divided into blocks.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from specsim.core.errors import CapacityError, ProfileError
from specsim.core.resources import find_resource, resource_names
from specsim.core.settings import Settings, load_mapping, nearest, validated
from specsim.hardware.kv_groups import KINDS, Kind, KVLayers
from specsim.hardware.model_config import is_model_config, shape_fields

GIB = 1 << 30
LayerType = Literal["full_attention", "sliding_attention", "chunked_attention"]
_SPANS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
_KV_KINDS: dict[LayerType, Kind] = dict(zip(get_args(LayerType), KINDS, strict=True))
_BYTES_OF = {"bfloat16": 2, "float16": 2, "float32": 4}


class GpuSpec(Settings):
    """One GPU, from ``profiles/<gpu>.yaml``."""

    name: str
    memory_gib: float = Field(gt=0)
    """Total memory as the CUDA runtime reports it, GiB."""
    peak_tflops: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """By data type, of the matrix units, without sparsity; 10^12 operations per second."""
    memory_gb_per_s: float | None = Field(default=None, gt=0)
    """Bandwidth of its memory, 10^9 bytes per second; None where it is not known."""
    interconnect_gb_per_s: float | None = Field(default=None, gt=0)
    """To all other GPUs of the server together, one direction, 10^9 bytes per second."""
    collective_us: float | None = Field(default=None, ge=0)
    """Start-up of an all-reduce, all-gather or reduce-scatter between two GPUs, measured."""
    collective_gb_per_s: float | None = Field(default=None, gt=0)
    """What each GPU sends in one of 0.25 to 32 MiB, measured, 10^9 bytes per second."""
    source: str


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


class ModelShape(Settings):
    """A decoder-only transformer in the field names of a HuggingFace ``config.json``.

    Or the head of an EAGLE drafter: one layer, with a matrix before it that fuses its inputs.
    """

    name: str
    num_hidden_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_experts: int = Field(default=0, ge=0)
    """Experts per layer, in place of one MLP; 0 of a dense model."""
    num_experts_per_tok: int = Field(default=0, ge=0)
    """Experts that each token visits."""
    moe_intermediate_size: int = Field(default=0, ge=0)
    """Width of an expert."""
    n_shared_experts: int = Field(default=0, ge=0)
    """Further experts, which every token visits."""
    first_k_dense_replace: int = Field(default=0, ge=0)
    """First layers, which have one MLP of intermediate_size in place of experts."""
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    max_position_embeddings: int = Field(gt=0)
    tie_word_embeddings: bool = False
    has_gated_mlp: bool = True
    """Whether the MLP has a gate, and so three matrices (Llama) instead of two (OPT)."""
    num_fused_inputs: int = Field(default=0, ge=0)
    """Vectors that a drafting head fuses into one: 2 in EAGLE, 3 in EAGLE-3; 0 of a model."""
    num_attention_inputs: int = Field(default=1, gt=0)
    """Vectors, side by side, that attention is computed from; 2 in EAGLE-3."""
    backbone_hidden_size: int | None = Field(default=None, gt=0)
    """Of the target, where a drafting head takes its vectors and gives back such; by default as
    wide as the head's own."""
    has_own_kv_cache: bool = True
    """False where all layers of a drafting head read keys and values of the target's."""
    has_own_embedding: bool = True
    """False where a drafting head uses the target's."""
    has_own_lm_head: bool = True
    """False where a drafting head uses the target's."""
    sliding_window: int | None = Field(default=None, gt=0)
    """Tokens that a token attends to, itself included, in layers of type sliding_attention."""
    attention_chunk_size: int | None = Field(default=None, gt=0)
    """Tokens of a chunk, in layers of type chunked_attention: a token attends to those of its
    own."""
    layer_types: tuple[LayerType, ...] | None = None
    """How each layer attends; by default all alike: in a sliding_window if there is one, else to
    everything."""
    global_head_dim: int | None = Field(default=None, gt=0)
    """In layers of type full_attention, if it is another than head_dim."""
    num_global_key_value_heads: int | None = Field(default=None, gt=0)
    """In layers of type full_attention, if they are others."""
    kv_lora_rank: int | None = Field(default=None, gt=0)
    """Of multi-head latent attention: what is kept of a token for all heads together, besides
    qk_rope_head_dim numbers. head_dim is then that of queries and keys, both parts together."""
    q_lora_rank: int | None = Field(default=None, gt=0)
    """The same of queries; None if they are computed at once."""
    qk_rope_head_dim: int = Field(default=0, ge=0)
    v_head_dim: int = Field(default=0, ge=0)
    torch_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
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

    @property
    def mlp_width(self) -> int:
        """Width of the MLP, or of an expert in its place."""
        return self.moe_intermediate_size if self.num_experts else self.intermediate_size

    @property
    def num_expert_layers(self) -> int:
        """How many layers have experts."""
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
        """Return how wide layers of a type are."""
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
        return _BYTES_OF[self.torch_dtype]

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


@dataclass(frozen=True)
class MemoryPlan:
    """What the memory of one GPU is for, bytes."""

    total_bytes: float
    """Total memory of the GPU."""
    usable_bytes: float
    """What vLLM may use of it: times gpu_memory_utilization."""
    weight_bytes: float
    """Weights of the target."""
    draft_weight_bytes: float
    """Weights of the drafter."""
    reserved_bytes: float
    """Activations, CUDA graphs, context."""
    block_bytes: float
    """One KV block of the target."""
    draft_block_bytes: float
    """The drafter's share of one KV block."""

    def num_blocks(self) -> int:
        """Return how many KV blocks fit; see `num_kv_blocks`."""
        return num_kv_blocks(
            memory_bytes=self.usable_bytes,
            taken_bytes=self.weight_bytes + self.draft_weight_bytes + self.reserved_bytes,
            block_bytes=self.block_bytes + self.draft_block_bytes,
        )


def gpu_file(name: str) -> Path | None:
    """Return the file of a GPU, which may be named by its path; None if there is none."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    return find_resource("profiles", f"{name}.yaml")


def load_gpu(name: str) -> GpuSpec:
    """Return the GPU in ``profiles/<name>.yaml``, or in a file; a ProfileError if there is none."""
    path = gpu_file(name)
    if path is None:
        known = resource_names("profiles", "*.yaml")
        raise ProfileError(f"no GPU '{name}' in profiles/; {nearest(name, known)}")
    with validated(str(path), ProfileError):
        return GpuSpec.model_validate(load_mapping(path, ProfileError))


def load_model(name: str) -> ModelShape:
    """Return the shape of a model.

    Args:
        name: As in ``profiles/<name>.json``, or the path of such a file or of a model's HuggingFace
            ``config.json``.

    Raises:
        ProfileError: There is none, or it lacks a field, or has a part that is not modelled.
    """
    path = Path(name) if name.endswith(".json") else find_resource("profiles", f"{name}.json")
    if path is None:
        known = resource_names("profiles", "*.json")
        raise ProfileError(f"no model '{name}' in profiles/; {nearest(name, known)}")
    fields = load_mapping(path, ProfileError)
    if is_model_config(fields):
        fields = shape_fields(fields, str(path))
    with validated(str(path), ProfileError):
        return ModelShape.model_validate(fields)


def find_model(names: list[str], source: str) -> str:
    """Return the name in ``profiles/`` of a model, given what somebody else calls it.

    Args:
        names: Such as ``Qwen/Qwen3-8B`` or ``Llama-3.1-8B-Instruct``: what counts is the part after
            the last slash, and of variants of one size the longest name that it begins with.
        source: Who calls it that, for the error message.

    Raises:
        ProfileError: There is none.
    """
    known = resource_names("profiles", "*.json")
    for name in names:
        key = name.rsplit("/", 1)[-1].lower()
        fitting = [model for model in known if key == model or key.startswith(f"{model}-")]
        if fitting:
            return max(fitting, key=len)
    given = " or ".join(dict.fromkeys(names)) or "no model"
    raise ProfileError(
        f"{source}: names {given}, which is none of profiles/*.json ({', '.join(known)}); put the "
        "model's config.json into the folder, or name one (--model)"
    )


def _runs_of_words(name: str) -> set[str]:
    """Return what any consecutive words of a name spell, so that "RTX 4090" holds "rtx4090"."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    ends = range(1, len(words) + 1)
    return {"".join(words[start:end]) for end in ends for start in range(end)}


def find_gpu(names: list[str], source: str) -> str:
    """Return the name in ``profiles/`` of a GPU, given what somebody else calls it.

    Args:
        names: Such as ``RTX4090`` or ``NVIDIA GeForce RTX 4090``; letters and digits count.
        source: Who calls it that, for the error message.

    Raises:
        ProfileError: There is none.
    """
    known = resource_names("profiles", "*.yaml")
    for name in names:
        called = _runs_of_words(name)
        fitting = [
            gpu for gpu in known if _plain(gpu) in called or set(gpu.lower().split("-")) <= called
        ]
        if fitting:
            return max(fitting, key=len)
    given = " or ".join(dict.fromkeys(names)) or "no GPU"
    raise ProfileError(
        f"{source}: names {given}, which is none of profiles/*.yaml ({', '.join(known)}); add "
        "profiles/<gpu>.yaml with name, memory_gib and source"
    )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def num_kv_blocks(*, memory_bytes: float, taken_bytes: float, block_bytes: float) -> int:
    """Return how many KV blocks fit into one GPU, vLLM's null block included.

    Args:
        memory_bytes: What vLLM may use of the GPU: total memory times gpu_memory_utilization.
        taken_bytes: Weights of target and draft, activations, CUDA graphs.
        block_bytes: One KV block, of target and draft together.

    Raises:
        CapacityError: Not even two blocks fit.
    """
    left = memory_bytes - taken_bytes
    blocks = int(left // block_bytes)
    if blocks < 2:
        raise CapacityError(
            f"weights and activations take {taken_bytes / GIB:.1f} GiB of the usable "
            f"{memory_bytes / GIB:.1f} GiB: no KV block fits; use more or larger GPUs, or raise "
            "gpu_memory_utilization"
        )
    return blocks
