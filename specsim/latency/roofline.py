"""Step times from a model's shape and a GPU's data sheet, without any measurement."""

from functools import cached_property
from typing import Any, Literal, NamedTuple, Self, final

import numpy as np
from pydantic import Field, model_validator

from specsim.core.errors import ProfileError
from specsim.core.step import StepLoad
from specsim.hardware import GpuSpec, ModelShape, load_gpu, load_model
from specsim.latency._form import ROOFLINE, Form
from specsim.latency._operators import attention_operator, free_budget, matrix_operators
from specsim.latency.base import LatencyModel


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
        _ = self._terms  # a model, GPU or number that is missing is found now, not in the run
        return self

    def forward_time(self, load: StepLoad) -> float:
        """Return the sum over operators of the longer of computing and moving data."""
        terms = self._terms
        context, tokens, size, prefill = load[:4]
        # Latency models take arrays in place of numbers; on numbers, `max` is ten times as fast.
        is_array = isinstance(context + tokens + size + prefill, np.ndarray)
        larger: Any = np.maximum if is_array else max
        decodes = tokens - prefill
        rows = larger(size, decodes)
        total: Any = terms.fixed + terms.exchanged * tokens
        for flops, weights, moved, is_sampled, missed_share in terms.matrices:
            count = rows if is_sampled else tokens
            read = weights * (1 - missed_share**count) if missed_share else weights
            total = total + larger(flops * count, read + moved * count)
        # Pairs of query token and key: with the context, and causally among the query tokens.
        pairs = tokens * (context / size + 0.5)
        pairs += 0.5 * (decodes * decodes / size + prefill * prefill / larger(1, size - decodes))
        moved = terms.context_time * context + terms.query_time * tokens
        return total + larger(terms.pair_time * pairs, moved)  # type: ignore[no-any-return]

    def form(self) -> Form | None:
        """Return its terms; None with experts, of which a power says how many are read."""
        terms = self._terms
        if any(matrix.missed_share for matrix in terms.matrices):
            return None
        attention = (terms.pair_time, terms.context_time, terms.query_time)
        numbers = [number for matrix in terms.matrices for number in matrix[:4]]
        head = (ROOFLINE, terms.fixed, terms.exchanged, *attention, len(terms.matrices))
        return np.array([*head, *numbers], dtype=np.float64)

    def free_budget(self) -> float | None:
        """Return how many tokens a step can have before computing takes longer than the weights.

        Of all matrices together, at the given efficiencies: batch size times (draft length + 1).
        None where there is no such limit.
        """
        operators = matrix_operators(self._shape, self.tensor_parallel_size)
        return free_budget(operators, self._flops_per_s, self._numbers_per_s)

    @cached_property
    def _shape(self) -> ModelShape:
        return load_model(self.model)

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

    @cached_property
    def _terms(self) -> "_Terms":
        shape, size = self._shape, self.tensor_parallel_size
        heads = shape.num_attention_heads
        if heads % size:
            raise ProfileError(
                f"tensor_parallel_size = {size}: '{self.model}' has {heads} attention heads, which "
                "cannot be split evenly; choose a divisor of that"
            )
        matrices = tuple(
            _Matrix(
                flops=each.runs * each.flops_per_token / self._flops_per_s,
                weights=each.runs * each.weights / self._numbers_per_s,
                moved=each.runs * each.activations / self._numbers_per_s,
                is_sampled=each.is_sampled,
                missed_share=each.missed_share,
            )
            for each in matrix_operators(shape, size)
        )
        attention = attention_operator(shape, size)
        started, exchanged = self._all_reduce_times()
        return _Terms(
            fixed=self.fixed_ms * 1e-3 + started,
            exchanged=exchanged,
            matrices=matrices,
            pair_time=attention.flops_per_pair / self._flops_per_s,
            context_time=attention.numbers_per_context_token / self._numbers_per_s,
            query_time=attention.numbers_per_token / self._numbers_per_s,
        )

    def _all_reduce_times(self) -> tuple[float, float]:
        """Return what the all-reduces of a step take to start, and per token, seconds."""
        shape, size = self._shape, self.tensor_parallel_size
        if size == 1:
            return 0.0, 0.0
        bandwidth = self._gpu.interconnect_gb_per_s
        if bandwidth is None:
            raise ProfileError(
                f"tensor_parallel_size = {size}: GPU '{self.gpu}' has no interconnect_gb_per_s; "
                "add it to the GPU's file or use 1"
            )
        number = 2 * shape.num_hidden_layers
        # In a ring every GPU sends all but its own part of the vector, twice.
        sent = 2 * (size - 1) / size * shape.hidden_size * shape.bytes_per_weight
        started = (self.all_reduce_us + 2 * (size - 1) * self.hop_us) * 1e-6
        return number * started, number * sent / (bandwidth * 1e9 * self.memory_efficiency)


class _Matrix(NamedTuple):
    """One operator with weights, all of its runs in a forward pass together."""

    flops: float  # seconds of computing per token
    weights: float  # seconds to read all weights
    moved: float  # seconds to read and write the activations of a token
    is_sampled: bool
    missed_share: float  # of the experts, those that a token leaves out; 0 of a dense matrix


class _Terms(NamedTuple):
    """What `forward_time` is made of, seconds."""

    fixed: float
    exchanged: float  # of all-reduces, per token
    matrices: tuple[_Matrix, ...]
    pair_time: float  # of attention, per pair of query token and key
    context_time: float  # to read keys and values, per context token
    query_time: float  # to read queries and write outputs, per batched token
