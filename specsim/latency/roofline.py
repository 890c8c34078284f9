"""Step times from a model's shape and a GPU's data sheet, without any measurement."""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, NamedTuple, Self, final

import numpy as np
from pydantic import Field, model_validator

from specsim.core.errors import ProfileError
from specsim.hardware import GpuSpec, ModelShape, gpus_alike, load_gpu, load_model
from specsim.latency import LatencyModel
from specsim.latency.form import ROOFLINE, Form


class Operator(NamedTuple):
    """Matrices that every token is multiplied with; of experts, those that it visits.

    Reads its weights once per step, and per token its inputs; writes its outputs (SSSD, arXiv
    2411.05894, table 1). ``Operator.matmul`` is one matrix.
    """

    name: str
    flops_per_token: float
    weights: float  # numbers in all of its matrices
    activations: float  # numbers that it reads and writes per token
    runs: int = 1  # how often it runs in a forward pass
    num_experts: int = 1
    experts_per_token: int = 1
    is_sampled: bool = False
    """Whether it only sees the tokens that the next one is sampled after: the LM head."""

    @classmethod
    def matmul(cls, name: str, inputs: int, outputs: int, runs: int = 1) -> "Operator":
        """Return the operator of one matrix, shape (inputs, outputs)."""
        return cls(name, 2.0 * inputs * outputs, inputs * outputs, inputs + outputs, runs)

    @property
    def missed_share(self) -> float:
        """Chance that a token leaves an expert out: 1 - k / E.

        Of E experts, E * (1 - (1 - k/E)^n) are expected to be read if each of n tokens chooses k of
        them, all with the same chance.
        """
        return 1 - self.experts_per_token / self.num_experts


class AttentionOperator(NamedTuple):
    """Attention of all layers (SSSD, table 1, fourth row, with grouped queries)."""

    flops_per_pair: float  # per query token and key that it sees
    numbers_per_context_token: float  # keys and values read per token of context
    numbers_per_token: float  # per query token: its query, key and value read, its output written


def matrix_operators(shape: ModelShape, tensor_parallel_size: int = 1) -> list[Operator]:
    """Return the operators with weights, as one of the GPUs runs them.

    Attention is sharded by heads (where there are fewer key-value heads than GPUs, these are
    replicated), MLP and experts by their width, the LM head by its vocabulary. Norms, rotary
    embeddings, activation functions and the router's choice are left out, as in SSSD's table 1.
    """
    size, hidden = tensor_parallel_size, shape.hidden_size
    operators = [
        Operator.matmul(name, inputs, outputs, count)
        for name, outputs, inputs, count in shape.attention_matrices(size)
    ]
    for outputs, inputs in shape.fusing_matrices:
        operators.append(Operator.matmul("fuse", inputs, outputs))
    mlp = [
        Operator.matmul(name, inputs, outputs, count)
        for name, outputs, inputs, count in shape.mlp_matrices(size)
    ]
    if shape.num_experts:
        layers, width = shape.num_expert_layers, -(-shape.moe_intermediate_size // size)
        gated = 2 if shape.has_gated_mlp else 1
        operators.append(Operator.matmul("router", hidden, shape.num_experts, layers))
        mlp += [
            _experts(Operator.matmul("up", hidden, gated * width, layers), shape),
            _experts(Operator.matmul("down", width, hidden, layers), shape),
        ]
    head = Operator.matmul("lm_head", hidden, -(-shape.vocab_size // size))
    return [*operators, *mlp, head._replace(is_sampled=True)]


def attention_operator(shape: ModelShape, tensor_parallel_size: int = 1) -> AttentionOperator:
    """Return the attention of all layers, as one of the GPUs runs it."""
    queries = pairs = keys = latent = 0.0
    for each, count in shape.attention_widths.items():
        own = each.num_attention_heads // tensor_parallel_size * count * each.head_dim
        queries, pairs = queries + own, pairs + own * each.kept
        keys += each.per_gpu(tensor_parallel_size) * count * each.head_dim
        latent += count * each.latent_dim * each.kept
    if latent:
        return AttentionOperator(4.0 * pairs, latent, latent + 2.0 * queries)
    return AttentionOperator(4.0 * queries, 2.0 * keys, 2.0 * keys + 2.0 * queries)


def free_budget(
    operators: Sequence[Operator], flops_per_s: float, numbers_per_s: float
) -> float | None:
    """Return how many tokens a step can have before computing takes longer than reading weights.

    Up to there, tokens are almost free. None where moving the tokens alone takes longer than
    computing on them.

    Args:
        operators: Taken together. The budget of one matrix is SSSD's.
        numbers_per_s: Bytes per second over bytes per number.

    References:
        Marzollo et al. (2024), "SSSD: Simply-Scalable Speculative Decoding", arXiv 2411.05894,
        section 3.2.1: 1 / (2 (1/h + 1/(2 b s_q))) = peak / bandwidth, for two bytes per number.
    """
    # All experts count as read: wherever computing takes as long, next to none is left out.
    read_time = sum(each.runs * each.weights for each in operators) / numbers_per_s
    moved_time = sum(each.runs * each.activations for each in operators) / numbers_per_s
    token_time = sum(each.runs * each.flops_per_token for each in operators) / flops_per_s
    return read_time / (token_time - moved_time) if token_time > moved_time else None


def _experts(operator: Operator, shape: ModelShape) -> Operator:
    chosen = shape.num_experts_per_tok
    return operator._replace(
        flops_per_token=operator.flops_per_token * chosen,
        weights=operator.weights * shape.num_experts,
        activations=operator.activations * chosen,
        num_experts=shape.num_experts,
        experts_per_token=chosen,
    )


@final
class Roofline(LatencyModel):
    """Each operator takes as long as its arithmetic or its memory traffic, whichever is longer.

    max(FLOPs / (peak * compute_efficiency), bytes / (bandwidth * memory_efficiency)) for QKV
    projection, output projection, the MLP's two halves or the router and the experts, the LM head,
    and attention; with several GPUs, two ring all-reduces per layer. In a profile, `model`, `gpu`
    and `tensor_parallel_size` may be left out: they are the profile's. Source: Williams, Waterman,
    Patterson (2009), "Roofline"; per operator as in SSSD (arXiv 2411.05894), table 1.

    Attention is known by sums only. All sequences are taken to have the mean context, decodes to
    have equally many query tokens, and the prefill tokens to be spread evenly over as many
    sequences as there are besides one per other token (exact without drafts). The LM head runs on
    all tokens of decodes and one token of each prefill, so that at equal batched tokens a step with
    more prefill tokens can be shorter. Left out are norms, rotary embeddings, activation functions
    and sampling; tokens are taken to choose experts at random.
    """

    kind: Literal["roofline"] = "roofline"
    examples = (
        {"model": "llama-3.1-8b", "gpu": "h100"},
        {"model": "mixtral-8x7b", "gpu": "a100-80gb", "tensor_parallel_size": 2, "fixed_ms": 1.0},
    )
    model: str
    """As in ``profiles/<model>.json``, or the path of a HuggingFace config.json."""
    is_mtp: bool = False
    """Whether a pass is of the layer that this model has to draft with (MTP), not of the model."""
    gpu: str
    """As in ``profiles/<gpu>.yaml``."""
    tensor_parallel_size: int = Field(default=1, gt=0)
    compute_efficiency: float = Field(default=0.7, gt=0, le=1)
    """Share of the peak FLOP/s that matrix multiplications reach."""
    memory_efficiency: float = Field(default=0.8, gt=0, le=1)
    """Share of the memory's, and of the interconnect's, bandwidth that is reached."""
    fixed_ms: float = Field(default=0.0, ge=0)
    """What every forward pass takes in addition."""
    all_reduce_us: float = Field(default=6.6, ge=0)
    """Start-up of an all-reduce; by default NCCL's own estimate for a ring (src/graph/tuning.cc,
    base latency, protocol LL)."""
    hop_us: float = Field(default=0.6, ge=0)
    """Of each of its 2 (N - 1) steps; by default NCCL's estimate for NVLink (same table)."""

    @model_validator(mode="after")
    def _check_hardware(self) -> Self:
        self.form()  # a model, GPU or number that is missing is found now, not in the run
        return self

    def free_budget(self) -> float | None:
        """Return how many tokens a step can have before computing takes longer than the weights.

        Of all matrices together, at the given efficiencies: batch size times (draft length + 1).
        None where there is no such limit.
        """
        operators = matrix_operators(self._shape, self.tensor_parallel_size)
        return free_budget(operators, self._flops_per_s, self._numbers_per_s)

    @cached_property
    def _shape(self) -> ModelShape:
        model = load_model(self.model)
        if not self.is_mtp:
            return model
        try:
            return model.mtp_layer
        except ValueError as error:
            raise ProfileError(f"is_mtp: '{self.model}' {error}") from error

    @cached_property
    def _gpu(self) -> GpuSpec:
        return load_gpu(self.gpu)

    @cached_property
    def _flops_per_s(self) -> float:
        peaks, dtype = self._gpu.peak_tflops, self._shape.torch_dtype
        if dtype not in peaks:
            raise ProfileError(
                f"GPU '{self.gpu}' has no peak_tflops for {dtype}, the torch_dtype of "
                f"'{self.model}' (it has: {', '.join(peaks) or 'none'}); add it to the GPU's file "
                "or choose another"
            )
        return peaks[dtype] * 1e12 * self.compute_efficiency

    @cached_property
    def _numbers_per_s(self) -> float:
        bandwidth = self._gpu.memory_gb_per_s
        if bandwidth is None:
            raise ProfileError(
                f"GPU '{self.gpu}' has no memory_gb_per_s; add it to the GPU's file or choose "
                "another"
            )
        return bandwidth * 1e9 * self.memory_efficiency / self._shape.bytes_per_weight

    def form(self) -> Form:
        shape, size = self._shape, self.tensor_parallel_size
        if shape.quantization:
            raise ProfileError(
                f"model = {self.model}: has quantized weights ({shape.quantization}), which a "
                "roofline does not model; use `specsim profile build`, or fit a profile to "
                "measured steps"
            )
        try:
            shape.check_split(size)
        except ValueError as error:
            raise ProfileError(f"tensor_parallel_size = {size}: '{self.model}' {error}") from error
        operators, attention = matrix_operators(shape, size), attention_operator(shape, size)
        matrices: list[float] = []
        for each in operators:
            matrices += [
                each.runs * each.flops_per_token / self._flops_per_s,
                each.runs * each.weights / self._numbers_per_s,
                each.runs * each.activations / self._numbers_per_s,
                each.is_sampled,
                each.missed_share,
            ]
        started, exchanged = self._all_reduce_times()
        head = [
            *(ROOFLINE, self.fixed_ms * 1e-3 + started, exchanged),
            attention.flops_per_pair / self._flops_per_s,
            attention.numbers_per_context_token / self._numbers_per_s,
            attention.numbers_per_token / self._numbers_per_s,
            len(operators),
        ]
        return np.array([*head, *matrices], dtype=np.float64)

    def _all_reduce_times(self) -> tuple[float, float]:
        """Return what the all-reduces of a step take to start, and per token, seconds."""
        shape, size = self._shape, self.tensor_parallel_size
        if size == 1:
            return 0.0, 0.0
        bandwidth = self._gpu.interconnect_gb_per_s
        if bandwidth is None:
            others = gpus_alike(self.gpu)
            remedy = f"name {' or '.join(others)}" if others else "add it to the GPU's file"
            raise ProfileError(
                f"tensor_parallel_size = {size}: GPU '{self.gpu}' ({self._gpu.name}) has no "
                f"interconnect_gb_per_s; {remedy}, or use 1"
            )
        number = 2 * shape.num_hidden_layers
        # In a ring every GPU sends all but its own part of the vector, twice.
        sent = 2 * (size - 1) / size * shape.hidden_size * shape.bytes_per_weight
        started = (self.all_reduce_us + 2 * (size - 1) * self.hop_us) * 1e-6
        return number * started, number * sent / (bandwidth * 1e9 * self.memory_efficiency)
