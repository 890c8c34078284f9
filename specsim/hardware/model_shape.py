"""The shape of a model: what its layers are, how many weights it has, what its KV cache keeps."""

from collections import Counter
from functools import cached_property, lru_cache
from typing import Self

from pydantic import model_validator

from specsim.hardware import compressed
from specsim.hardware.kv_groups import RING, STATE, KVLayers
from specsim.hardware.model_fields import (
    DENSE,
    DTYPE_BYTES,
    INDEX_BYTES,
    KV_KINDS,
    OF_EACH,
    SPARSE,
    STATES,
    AttentionWidth,
    IndexerType,
    LayerMatrix,
    LayerParts,
    LayerType,
    MlpType,
    ModelFields,
)


@lru_cache(maxsize=64)
def _layers(shape: ModelFields) -> tuple[LayerParts, ...]:
    """Return each layer; one run asks for them dozens of times."""
    count, first = shape.num_hidden_layers, shape.first_k_dense_replace
    usual: LayerType = "sliding_attention" if shape.sliding_window else "full_attention"
    dense = first if shape.num_experts else count
    mlps: tuple[MlpType, ...] = DENSE * dense + SPARSE * (count - dense)
    indexer: IndexerType = "full" if shape.index_topk else "none"
    has_own_keys = [number < count - shape.num_kv_shared_layers for number in range(count)]
    of_each = zip(
        shape.layer_types or (usual,) * count,
        shape.mlp_layer_types or mlps,
        shape.intermediate_sizes or (shape.intermediate_size,) * count,
        zip(shape.indexer_types or (indexer,) * count, has_own_keys, strict=True),
        strict=True,
    )
    return tuple(
        LayerParts(kind, width * (mlp in ("dense", "both")), mlp in ("sparse", "both"), *own)
        for kind, mlp, width, own in of_each
    )


class ModelShape(ModelFields):
    """A model, or the head of a drafter; what follows from its fields."""

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if self.state_layers and not self.state_numbers:
            raise ValueError("layer_types has layers with a state, but linear_... fields lack")
        if not self.layer_counts:
            raise ValueError("no layer attends to anything; such a model is not modelled")
        return self

    def check_split(self, tensor_parallel_size: int) -> None:
        """Raise a ValueError if vLLM cannot spread the heads over so many GPUs.

        References:
            vLLM 0.32.0 ``models/llama.py LlamaAttention``.
        """
        size = tensor_parallel_size
        parts = {
            "{} attention heads": self.num_attention_heads,
            "{} attention heads in a window": self.num_sliding_attention_heads or 0,
            "states of {} heads": self.linear_num_value_heads,
            "an output projection of {} groups": self.o_groups,
        }
        for what, count in parts.items():
            if count % size:
                raise ValueError(
                    f"has {what.format(count)}, which cannot be split evenly; choose a divisor of "
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
    def mtp_problem(self) -> str | None:
        """Why nobody knows a head that drafts for it from its own layers; None if that is known."""
        if not self.num_nextn_predict_layers:
            return "has no MTP layers (num_nextn_predict_layers)"
        if not self.has_usual_mtp_layers:
            return (
                "has MTP layers of another kind than its last; write the shape of one in the form "
                "of profiles/deepseek-v3-mtp.json"
            )
        return None

    @property
    def mtp_layer(self) -> Self:
        """The head that each of its MTP layers is; a ValueError if there is a `mtp_problem`.

        It has the target's embedding and LM head (vLLM 0.32.0 ``v1/spec_decode/
        llm_base_proposer.py``), and an indexer of its own, also where the last layers share one
        (GLM-5.2; ``model_executor/models/deepseek_v2.py``). It attends, also where the last layer
        keeps a state, and has one residual stream (GLM-5.3-Flash; ``models/glm5next``).
        """
        if self.mtp_problem:
            raise ValueError(self.mtp_problem)
        last = {name: own[-1:] for name in OF_EACH if (own := getattr(self, name)) is not None}
        if self.indexer_types:
            last["indexer_types"] = ("full",)
        if last.get("layer_types", ("none",))[0] in STATES:
            last["layer_types"] = ("full_attention",)
        last["hc_mult"] = 0
        shared = {"has_own_embedding": False, "has_own_lm_head": False, "num_fused_inputs": 2}
        one = {"num_hidden_layers": 1, "first_k_dense_replace": 0, "num_nextn_predict_layers": 0}
        name = f"MTP layer of {self.name}"
        return self.model_validate({**self.model_dump(), **last, **shared, **one, "name": name})

    @property
    def is_head(self) -> bool:
        """Whether it drafts for a target, on that one's vectors."""
        return self.num_fused_inputs > 0

    @property
    def mlp_width(self) -> int:
        """Width of the MLP, or of an expert in its place."""
        return self.moe_intermediate_size if self.num_experts else self.intermediate_size

    @property
    def layers(self) -> tuple[LayerParts, ...]:
        """Each layer; all else about them follows from these and from the widths."""
        return _layers(self)

    @property
    def is_uniform(self) -> bool:
        """Whether all layers have the same sizes, and keys and values; windows may differ."""
        sizes = {each[1:] for each in self.layers}
        return len(sizes) == len(self.attention_widths) == 1 and not self.state_layers

    @property
    def num_expert_layers(self) -> int:
        return sum(each.has_experts for each in self.layers)

    @property
    def num_halves(self) -> int:
        """How many parts, attention or feed-forward, all layers have: each has a norm."""
        return sum((each.kind != "none") + (each[1:3] != (0, False)) for each in self.layers)

    @property
    def num_sums(self) -> int:
        """How many outputs of parts tensor-parallel GPUs add up: of hybrid layers one more."""
        return self.num_halves + self.num_hybrid

    @property
    def num_hybrid(self) -> int:
        return sum(each.kind == "hybrid" for each in self.layers)

    @property
    def state_layers(self) -> int:
        """How many layers have a state of fixed size in place of keys and values."""
        return sum(each.kind in STATES for each in self.layers)

    @property
    def state_numbers(self) -> int:
        """Size of the state of one layer and sequence, without its convolution."""
        return self.linear_num_value_heads * self.linear_key_head_dim * self.linear_value_head_dim

    @property
    def convolved(self) -> int:
        """Width of the convolution before a state: its queries, keys and values."""
        return self._convolved_of(1)

    def _convolved_of(self, tensor_parallel_size: int) -> int:
        """Return the part of each of some GPUs, which replicate keys of fewer heads."""
        keys = -(-self.linear_num_key_heads // tensor_parallel_size) * self.linear_key_head_dim
        values = self.linear_num_value_heads * self.linear_value_head_dim // tensor_parallel_size
        return 2 * keys + values

    def state_bytes(self, tensor_parallel_size: int) -> float:
        """Return what a sequence's states take on each GPU, all layers, bytes."""
        size, number = tensor_parallel_size, DTYPE_BYTES[self.mamba_ssm_dtype or self.torch_dtype]
        kept = max(0, self.linear_conv_kernel_dim - 1) * self._convolved_of(size)
        own = self.state_numbers * number / size + kept * self.bytes_per_weight
        return self.state_layers * own

    @property
    def num_parameters(self) -> int:
        """Weights of matrices, embeddings and norms; no biases (0.1 % of OPT-125M)."""
        hidden = self.hidden_size
        matrices = (*self.attention_matrices(1), *self.mlp_matrices(1))
        layers = sum(each.outputs * each.inputs * each.layers for each in matrices)
        layers += self.expert_bytes // self.bytes_per_weight
        layers += hidden * (self.num_experts * self.num_expert_layers + self.num_halves)
        layers += self.state_layers * self.convolved * self.linear_conv_kernel_dim
        if self.mamba_dt_rank:  # a decay of each number of the state
            layers += self.state_layers * self.state_numbers
        if self.attn_res_block_size:  # a norm and a product, once more behind the last layer
            layers += 2 * hidden * (self.num_halves + 1)
        layers += compressed.hyper_weights(self) + self.other_embeddings
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
            heads = each.num_attention_heads // size
            queries, outputs = heads * each.head_dim, heads * each.value_dim
            if self.o_groups:
                found += compressed.matrices(self, each, layers, size)
                continue
            if each.latent_dim:
                assert self.kv_lora_rank is not None
                plain = each.head_dim - self.qk_rope_head_dim
                down, up = self.q_lora_rank or queries, heads * (plain + self.v_head_dim)
                gates = outputs * (self.attn_output_gate is True)
                found.append(LayerMatrix("qkv", down + each.latent_dim + gates, inputs, layers))
                if self.q_lora_rank:
                    found.append(LayerMatrix("q", queries, self.q_lora_rank, layers))
                found.append(LayerMatrix("kv", up, self.kv_lora_rank, layers))
            else:
                keys = self.num_projected(each, size) * (each.head_dim + each.value_dim)
                gates = queries * (self.attn_output_gate is True)
                found.append(LayerMatrix("qkv", queries + gates + keys, inputs, layers))
            if self.attn_output_gate == "per_head":
                found.append(LayerMatrix("gate", heads, inputs, layers))
            found.append(LayerMatrix("o", hidden, outputs, layers))
            if each.index_dim:  # the same on each GPU
                indexed, of_all = self.index_n_heads, self.index_n_heads * each.index_dim
                found.append(LayerMatrix("index_q", of_all, self.q_lora_rank or inputs, layers))
                pooled = each.index_dim * (2 if self.index_kpool > 1 else 1)  # and what weighs them
                found.append(LayerMatrix("index_k", pooled + indexed, inputs, layers))
        return found + self._state_matrices(size)

    def _state_matrices(self, size: int) -> list[LayerMatrix]:
        """Return those of states: of what is convolved, a gate, and a decay of each head or number.

        Delta nets have a beta of each head besides, Mamba none. The first Mamba's step sizes, keys
        and queries are computed behind the convolution.
        """
        count, heads = self.state_layers, self.linear_num_value_heads // size
        if not count:
            return []
        values, behind = heads * self.linear_value_head_dim, list[LayerMatrix]()
        is_delta = any(each.kind == "linear_attention" for each in self.layers)
        into = self._convolved_of(size) + heads * is_delta
        for rank, at_once in ((self.linear_gate_rank, values), (self.linear_decay_rank, heads)):
            into += rank or at_once
            behind += [LayerMatrix("rank", values, rank, count)] if rank else []
        if rank := self.mamba_dt_rank:
            into -= heads
            chosen = rank + 2 * self.linear_key_head_dim
            behind.append(LayerMatrix("choose", chosen, values, count))
            behind.append(LayerMatrix("rank", values, rank, count))
        found = LayerMatrix("state_in", into, self.hidden_size, count)
        return [found, LayerMatrix("o", self.hidden_size, values, count), *behind]

    @property
    def other_embeddings(self) -> int:
        """Weights of embeddings beside that of tokens: of layers their own, and of positions."""
        width = self.num_hidden_layers * self.hidden_size_per_layer_input
        positions = self.max_position_embeddings * self.has_learned_positions
        return self.vocab_size_per_layer_input * width + positions * self.hidden_size

    def mlp_matrices(self, tensor_parallel_size: int) -> list[LayerMatrix]:
        """Return those of MLPs and shared experts, split by their width.

        And those of embeddings of each layer, whose input is projected once for all.
        """
        hidden, gated = self.hidden_size, 2 if self.has_gated_mlp else 1
        shared = self.n_shared_experts * self.moe_intermediate_size
        widths = Counter(each.mlp_width for each in self.layers if each.mlp_width)
        own = self.shared_expert_intermediate_size or shared
        found, experts = [], self.num_expert_layers
        for full, layers in (*widths.items(), (own, experts)):
            if full and layers:
                width = -(-full // tensor_parallel_size)
                found.append(LayerMatrix("up", gated * width, hidden, layers))
                found.append(LayerMatrix("down", hidden, width, layers))
        if self.moe_latent_size and experts:
            found.append(LayerMatrix("latent", self.moe_latent_size, hidden, experts))
            found.append(LayerMatrix("latent", hidden, self.moe_latent_size, experts))
        if own := self.hidden_size_per_layer_input:
            layers = self.num_hidden_layers
            found.append(
                LayerMatrix("own_all", -(-layers * own // tensor_parallel_size), hidden, 1)
            )
            found.append(LayerMatrix("own_gate", own, hidden, layers))
            found.append(LayerMatrix("own", hidden, own, layers))
        return found

    def num_projected(self, width: AttentionWidth, tensor_parallel_size: int = 1) -> int:
        """Return the heads of keys, and of values, that each GPU computes of a token."""
        is_own = self.has_own_kv_cache and width.has_own_keys
        return width.per_gpu(tensor_parallel_size) if is_own else 0

    @property
    def fusing_matrices(self) -> tuple[tuple[int, int], ...]:
        """Outputs and inputs of the matrices of a drafting head before and after its layers."""
        if not self.num_fused_inputs:
            return ()
        width = self.backbone_hidden_size or self.hidden_size
        before = (self.hidden_size, self.num_fused_inputs * width)
        return (before, (width, self.hidden_size)) if self.backbone_hidden_size else (before,)

    def attention_width(
        self, kind: LayerType, indexer: IndexerType = "none", has_own_keys: bool = True
    ) -> AttentionWidth:
        if self.o_groups:
            return compressed.width(self, kind)
        queries, heads = self.num_attention_heads, self.num_key_value_heads
        head_dim = self.head_dim
        sparse = (
            self.index_topk if indexer != "none" else 0,
            self.index_head_dim if indexer == "full" else 0,
        )
        if self.kv_lora_rank:
            latent = self.kv_lora_rank + self.qk_rope_head_dim
            return AttentionWidth(queries, 1, head_dim, latent, self.v_head_dim, *sparse)
        if kind == "full_attention":
            heads = self.num_global_key_value_heads or heads
            head_dim = self.global_head_dim or head_dim
        if kind == "sliding_attention":
            queries = self.num_sliding_attention_heads or queries
        values = self.v_head_dim or head_dim
        return AttentionWidth(queries, heads, head_dim, 0, values, *sparse, 1.0, has_own_keys)

    @property
    def layer_counts(self) -> Counter[LayerType]:
        """How many layers of each type keep keys and values, in order of first appearance."""
        kept = (each for each in self.layers if each.has_own_keys)
        return Counter(each.kind for each in kept if each.kind in KV_KINDS)

    @cached_property
    def attention_kinds(self) -> Counter[tuple[LayerType, AttentionWidth]]:
        """How many layers of each type are how wide."""
        attend = (each for each in self.layers if each.kind in KV_KINDS)
        alike = Counter((each.kind, each.indexer, each.has_own_keys) for each in attend)
        kinds: Counter[tuple[LayerType, AttentionWidth]] = Counter()
        for (kind, indexer, has_own_keys), layers in alike.items():
            kinds[kind, self.attention_width(kind, indexer, has_own_keys)] += layers
        return kinds

    @cached_property
    def attention_widths(self) -> Counter[AttentionWidth]:
        counts: Counter[AttentionWidth] = Counter()
        for (_, width), layers in self.attention_kinds.items():
            counts[width] += layers
        return counts

    @property
    def bytes_per_weight(self) -> int:
        """Size of one number, of weights, activations and KV cache alike."""
        return DTYPE_BYTES[self.torch_dtype]

    @property
    def expert_bytes(self) -> int:
        matrices = 3 if self.has_gated_mlp else 2
        width = self.moe_latent_size or self.hidden_size
        each = matrices * width * self.moe_intermediate_size * self.bytes_per_weight
        return self.num_expert_layers * self.num_experts * each

    @property
    def weight_bytes(self) -> int:
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
        if self.o_groups:
            kinds = [each.kind for each in self.layers]
            return compressed.kv_layers(self, kinds, bytes_per_token)
        counts, own = self.layer_counts, self.kv_bytes_per_token_and_gpu(tensor_parallel_size)
        is_uniform = len(self.attention_widths) == 1
        mean = bytes_per_token / sum(counts.values())
        attention = tuple(
            KVLayers(
                kind=KV_KINDS[each],
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
        if self.index_kpool > 1:  # keys that are yet to be pooled
            pooling = sum(n for each, n in self.attention_widths.items() if each.index_dim)
            attention = (*attention, KVLayers(kind=RING, layers=pooling))
        if not (states := self.state_layers):
            return attention
        kept = KVLayers(kind=STATE, layers=states)
        first = next(each.kind for each in self.layers if each.kind != "none")
        return (*attention, kept) if first in KV_KINDS else (kept, *attention)

    def kv_bytes_per_token_and_gpu(self, tensor_parallel_size: int) -> float:
        """Return it for one GPU of several, bytes; of fewer heads than GPUs, each has one."""
        if not self.has_own_kv_cache:
            return 0.0
        return sum(
            layers * self._layer_bytes(each, tensor_parallel_size)
            for each, layers in self.attention_widths.items()
        )

    @property
    def all_index_bytes(self) -> float:
        """What indexers keep of a token in all layers."""
        return sum(n * self._index_bytes(each) for each, n in self.attention_widths.items())

    def _index_bytes(self, width: AttentionWidth) -> float:
        """Return what one keeps of a token: 8 bits and a scale, MiniMax-M3's all its numbers."""
        in_8_bits = width.latent_dim or self.o_groups
        of_key = width.index_dim * (1 if in_8_bits else self.bytes_per_weight)
        return (of_key + INDEX_BYTES * bool(in_8_bits)) / self.index_kpool if of_key else 0.0

    def _layer_bytes(self, width: AttentionWidth, size: int) -> float:
        if self.o_groups:
            return compressed.token_bytes(self, width)
        if not width.has_own_keys:
            return 0.0
        heads = width.num_key_value_heads
        indexed = self._index_bytes(width)
        if width.latent_dim:
            return float(width.latent_dim * self.bytes_per_weight + indexed)
        numbers = heads * (width.head_dim + width.value_dim)
        return numbers * self.bytes_per_weight / min(size, heads) + indexed
