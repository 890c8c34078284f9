"""Profiles composed from kernels that were measured on a GPU.

What runs in a forward pass follows from the model's shape: matrices, norms and rotary embedding,
attention, experts, all-reduces, LM head. Each is looked up in the GPU's kernel tables
(`specsim.profile.kernel_tables`); between measured shapes the times of matrices are interpolated
linearly in both sizes, which is exact where they depend on the product of the two.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ProfileError
from specsim.core.settings import nearest, validated
from specsim.hardware import GIB, MemoryPlan, ModelShape, load_gpu, load_model
from specsim.profile.kernel_tables import GpuTables, MeasuredTable, chosen, columns, tables_folder
from specsim.profile.kernel_times import (
    ExpertTimes,
    HeadTimes,
    MatrixTimes,
    line_of,
    one_kernel,
    skewed,
)
from specsim.profile.memory import default_layout, memory_plan
from specsim.profile.profile import NOT_MEASURED, Profile

Values = NDArray[np.float64]

DTYPES: Mapping[str, "Dtype"]
"""Of weights, by name."""

_MAX_BATCHED_TOKENS = 16384
_MATRIX_BYTES = 2  # of activations, norms and the LM head
_LAUNCH_US = 1.5  # of a kernel within a CUDA graph, besides what it does
# Time on the host: between what servers of A100, H100 and H200 showed at their smallest loads, none
# to 0.4 ms without and none to 0.45 ms more with drafts, none to 12 ms per request.
_STEP_MS, _DRAFT_STEP_MS = 0.15, 0.3
_SYNC_STEP_MS = 1.2  # as in the measured steps of profiles/h100/llama-3.1-8b.yaml
_FRONT_MS = 3.0  # HTTP, tokenization and handing over
_SMALL_KERNELS = 5  # per layer: two norms, rotary embedding, writing keys and values, activation
_MEMORY_SHARE = 0.8  # of its bandwidth, that such a kernel reaches
_MOST_SAMPLED = 4096  # tokens of a step that the next one is sampled after; beyond, a line
_USUAL_HEAD_DIM = 128
_TOLERANCE = 0.005  # of times, by which points are left out that lie between others
_SMALL_READ, _SMALL_COMPUTE = 1.35, 1.5
_PACKED_ROWS = 128  # query rows of a tile, all heads of a key-value head side by side
_UNPACKED_ROWS = 64  # of a tile of FlashAttention 2, for a single head


class Dtype(NamedTuple):
    """How weights are stored."""

    bytes_per_weight: float
    """Scales included."""
    matrices: str | None
    """As gemm tables call it; None where only weights are small and the tables have 16 bits."""
    experts: str
    """As moe tables call it."""


DTYPES = {
    "bfloat16": Dtype(2.0, "bfloat16", "bfloat16"),
    "fp8": Dtype(1.0, "fp8", "fp8"),
    "fp8_block": Dtype(1.0, "fp8_block", "fp8_block"),
    "nvfp4": Dtype(0.5625, "nvfp4", "nvfp4"),
    "int4": Dtype(0.53, None, "int4_wo"),
    "mxfp4": Dtype(0.53, "bfloat16", "w4a16_mxfp4"),  # experts only, as in gpt-oss
}


@dataclass(frozen=True)
class TableOptions:
    """What to compose a profile of."""

    model: str
    """Name in ``profiles/``, or the path of a HuggingFace config.json."""
    gpu: str
    drafts: Mapping[str, str] = field(default_factory=dict)
    """Model of each proposer that the profile will have costs for."""
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    """Ranks that share the experts, each with as many tokens as the profile is asked about."""
    enable_expert_parallel: bool = False
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    engine: str = "vllm"
    tables: Path | None = None
    """Folder of kernel tables; by default that of the installed package."""
    kernels: Mapping[str, str] = field(default_factory=dict)
    """By family, a part of the name of the kernel that the server logged."""
    reserved_gib: float = 1.15


@dataclass(frozen=True)
class TableProfile:
    """A profile, and what follows from it."""

    fields: dict[str, Any]
    """Of the profile, as they go into a YAML file."""
    profile: Profile
    memory: MemoryPlan
    """Of each GPU."""
    num_blocks: int
    """KV blocks that fit, vLLM's null block included."""
    sources: tuple[str, ...]
    """Tables and kernels that it was composed from."""

    @classmethod
    def of(cls, options: TableOptions) -> "TableProfile":
        """Compose a profile.

        Raises:
            ProfileError: A model, GPU, table, data type or kernel is unknown, or no table covers
                the model's shape.
            CapacityError: The model does not fit into the GPU's memory.
        """
        if options.dtype not in DTYPES:
            raise ProfileError(f"--dtype {options.dtype}: {nearest(options.dtype, [*DTYPES])}")
        model, gpu = load_model(options.model), load_gpu(options.gpu)
        folder = options.tables or tables_folder()
        tables = GpuTables(folder, options.gpu, options.engine)
        target = _Composer(model, options, tables)
        fields: dict[str, Any] = {
            "model": options.model,
            "gpu": options.gpu,
            "tensor_parallel_size": options.tensor_parallel_size,
            "provenance": {},
            "target": target.latency(),
            "drafts": _drafts(options, tables),
            "overhead": {
                "step_ms": _STEP_MS,
                "sync_step_ms": _SYNC_STEP_MS,
                "front_ms": _FRONT_MS,
            },
            "valid_range": {"context_tokens": 1, "batched_tokens": _MAX_BATCHED_TOKENS},
            "reserved_gib": options.reserved_gib,
            "weights_gib": round(target.weight_bytes / GIB, 3),
            "kv_bytes_per_token": target.kv_bytes_per_token,
        }
        fields["provenance"] = _provenance(options, target.sources)
        with validated("profile build", ProfileError):
            draft = Profile.model_validate(fields)
        memory = memory_plan(draft, model, gpu, tuple(draft.drafts.values())[:1])
        num_blocks = memory.num_blocks()
        layout = default_layout(draft, model, tuple(draft.drafts.values())[:1])
        longest = model.max_position_embeddings
        fields["valid_range"]["context_tokens"] = layout.capacity(num_blocks, longest, 0)
        return cls(
            fields, Profile.model_validate(fields), memory, num_blocks, tuple(target.sources)
        )


def _provenance(options: TableOptions, sources: list[str]) -> dict[str, Any]:
    return {
        "engine": f"{options.engine}, kernels measured one by one",
        "source": "aiconfigurator-core (Apache-2.0): " + "; ".join(sources),
        "date": date.today().isoformat(),
        "notes": (
            f"Weights {options.dtype}, KV cache {options.kv_dtype}. Composed by `specsim profile "
            "build`; norms, rotary embedding and activations by their memory traffic. "
            f"{NOT_MEASURED}"
        ),
    }


def _drafts(options: TableOptions, tables: GpuTables) -> dict[str, Any]:
    """Return the costs of drafters: forward passes of heads and models, host time of lookups."""
    found: dict[str, Any] = {"ngram": {"token_us": 20}, "suffix": {"token_us": 20}}
    for method, name in options.drafts.items():
        shape = load_model(name)
        alone = {"data_parallel_size": 1, "enable_expert_parallel": False}
        plain = TableOptions(**{**vars(options), "model": name, "dtype": "bfloat16", **alone})
        drafter = _Composer(shape, plain, tables)
        found[method] = {
            "basis": "pass",
            "step_ms": _DRAFT_STEP_MS,
            "latency": {**drafter.latency(), "samples_drafts": False},
            "weights_gib": round(drafter.weight_bytes / GIB, 3),
            "kv_bytes_per_token": drafter.kv_bytes_per_token,
        }
    return found


class _Matrix(NamedTuple):
    """A matrix, as one GPU multiplies tokens with it."""

    outputs: int
    inputs: int
    runs: int = 1


class _Composer:
    """Looks up every kernel of one model."""

    def __init__(self, shape: ModelShape, options: TableOptions, tables: GpuTables) -> None:
        size, heads = options.tensor_parallel_size, shape.num_attention_heads
        if heads % size:
            raise ProfileError(
                f"--tp {size}: '{options.model}' has {heads} attention heads, which cannot be "
                "split evenly; choose a divisor of that"
            )
        ranks = options.data_parallel_size
        if not shape.num_experts and (ranks > 1 or options.enable_expert_parallel):
            raise ProfileError(
                f"--dp {ranks} or --ep: '{options.model}' has no experts to share out; leave them "
                "out, and set data_parallel_size in the experiment"
            )
        self._shape, self._options, self._tables = shape, options, tables
        self._ranks = ranks
        self._size = size
        self._dtype = DTYPES[options.dtype]
        self.sources: list[str] = []

    def latency(self) -> dict[str, Any]:
        """Return the fields of a `specsim.latency.composed.Composed`."""
        tokens, layer = self._sum(self._layer_matrices())
        read, compute = np.full(len(tokens), layer[0]), layer - layer[0]
        if self._shape.num_experts:
            expert_read, expert_rest = self._experts(tokens)
            read, compute = read + expert_read, compute + expert_rest
        small = self._small_kernels(tokens)
        compute = compute + small + self._all_reduces(tokens) + self._exchanges(tokens)
        total = np.maximum.accumulate(read + compute)
        read = np.minimum(np.maximum.accumulate(read), total)
        kept = _needed(tokens, np.stack([total, total + read]))
        return {
            "kind": "composed",
            "batched_tokens": tokens[kept].astype(int).tolist(),
            "read_us": _rounded(read[kept]),
            "compute_us": _rounded((total - read)[kept]),
            "head": self._head(),
            "attention": list(self._attention()),
            **self._parallel_fields,
        }

    @property
    def _parallel_fields(self) -> dict[str, Any]:
        if self._ranks == 1 and not self._options.enable_expert_parallel:
            return {}
        names = ("data_parallel_size", "enable_expert_parallel")
        return {name: getattr(self._options, name) for name in names}

    @property
    def weight_bytes(self) -> float:
        """Memory of the weights on each GPU, bytes."""
        shape = self._shape
        of_vocabulary = shape.hidden_size * shape.vocab_size
        own = shape.has_own_embedding + (shape.has_own_lm_head and not shape.tie_word_embeddings)
        plain = of_vocabulary * own * _MATRIX_BYTES
        rest = shape.num_parameters - of_vocabulary * own
        if self._options.dtype == "mxfp4":
            experts = 3 * shape.hidden_size * shape.moe_intermediate_size
            experts *= shape.num_experts * shape.num_hidden_layers
            small = experts * self._dtype.bytes_per_weight + (rest - experts) * _MATRIX_BYTES
        else:
            small = rest * self._dtype.bytes_per_weight
        elsewhere = (1 - 1 / self._ranks) * shape.expert_bytes / shape.bytes_per_weight
        return float(plain + small - elsewhere * self._dtype.bytes_per_weight) / self._size

    @property
    def kv_bytes_per_token(self) -> float:
        """Key and value of a token in every layer, on each GPU, bytes."""
        share = 0.5 if self._options.kv_dtype == "fp8" else 1.0
        return self._shape.kv_bytes_per_token_and_gpu(self._size) * share

    def _layer_matrices(self) -> list[_Matrix]:
        shape, size, layers = self._shape, self._size, self._shape.num_hidden_layers
        queries = shape.num_attention_heads // size * shape.head_dim
        keys = self._key_value_heads * shape.head_dim
        inputs = shape.num_attention_inputs * shape.hidden_size
        found = [
            _Matrix(queries + 2 * keys, inputs, layers),
            _Matrix(shape.hidden_size, queries, layers),
        ]
        if shape.num_fused_inputs:
            found.append(_Matrix(shape.hidden_size, shape.num_fused_inputs * shape.hidden_size))
        if shape.num_experts:
            return [*found, _Matrix(shape.num_experts, shape.hidden_size, layers)]
        width = -(-shape.mlp_width // size)
        gated = 2 if shape.has_gated_mlp else 1
        return [
            *found,
            _Matrix(gated * width, shape.hidden_size, layers),
            _Matrix(shape.hidden_size, width, layers),
        ]

    @property
    def _key_value_heads(self) -> int:
        return -(-self._shape.num_key_value_heads // self._size)

    @cached_property
    def _gemm(self) -> "MatrixTimes":
        table = self._tables.table("gemm", "gemm_perf")
        dtype = self._dtype.matrices or "bfloat16"
        found = MatrixTimes(table, dtype, self._options.kernels.get("gemm"))
        self._note(found.source)
        return found

    def _sum(self, matrices: list[_Matrix]) -> tuple[Values, Values]:
        """Return the batched tokens that were measured, and all matrices together, microseconds."""
        gemm = self._gemm
        total = np.zeros(len(gemm.tokens))
        for matrix in matrices:
            times = gemm.times(matrix.outputs, matrix.inputs)
            if self._dtype.matrices is None:
                times = _small_weights(gemm.tokens, times, self._dtype.bytes_per_weight / 2)
            total += matrix.runs * times
        return gemm.tokens, total

    def _small_kernels(self, tokens: Values) -> Values:
        """Return norms, rotary embedding, writing the KV cache, activation: all layers."""
        shape, size = self._shape, self._size
        queries = shape.num_attention_heads // size * shape.head_dim
        keys = self._key_value_heads * shape.head_dim
        width = shape.mlp_width // size * (shape.num_experts_per_tok or 1)
        numbers = 8 * shape.hidden_size + 2 * (queries + keys) + 4 * keys + 3 * width
        bandwidth = float(self._tables.system["gpu"]["mem_bw"]) * _MEMORY_SHARE
        per_token = numbers * _MATRIX_BYTES / bandwidth * 1e6
        layer = _SMALL_KERNELS * _LAUNCH_US + per_token * tokens
        return np.asarray(shape.num_hidden_layers * layer)

    def _head(self) -> dict[str, Any]:
        shape = self._shape
        table = MatrixTimes(self._tables.table("gemm", "gemm_perf"), "bfloat16", None)
        times = table.times(-(-shape.vocab_size // self._size), shape.hidden_size)
        # Sampling reads the logits a few times.
        bandwidth = float(self._tables.system["gpu"]["mem_bw"]) * _MEMORY_SHARE
        logits = 3 * 4 * shape.vocab_size * table.tokens / bandwidth * 1e6
        times = np.maximum.accumulate(times + 5 * _LAUNCH_US + logits)
        sampled = table.tokens <= _MOST_SAMPLED
        tokens, times = table.tokens[sampled], times[sampled]
        kept = _needed(tokens, times[None])
        return {"at": tokens[kept].astype(int).tolist(), "times_us": _rounded(times[kept])}

    def _experts(self, tokens: Values) -> tuple[Values, Values]:
        """Return what reading experts takes, and what all else of them does, all layers."""
        shape = self._shape
        table = self._tables.table("moe", "moe_perf")
        experts = ExpertTimes(
            shape.hidden_size,
            shape.moe_intermediate_size,
            shape.num_experts,
            shape.num_experts_per_tok,
        )
        gpus, is_whole = self._size * self._ranks, self._options.enable_expert_parallel
        split = {"moe_tp_size": 1 if is_whole else gpus, "moe_ep_size": gpus if is_whole else 1}
        tokens = tokens * self._ranks
        wanted = {"moe_dtype": self._dtype.experts, **split}
        rows = chosen(table, "experts", **wanted)
        measured, kernel = experts.rows_of(rows, table, self._options.kernels.get("moe"))
        times = experts.times(skewed(measured, table), tokens)
        if "carried over" in kernel:
            # Few tokens only read weights, which no kernel does faster than at this very size.
            here, name = experts.rows_of(rows, table, None)
            times = np.maximum(times, experts.times(skewed(here, table), tokens))
            kernel = f"{kernel}; at least as long as {name}"
        self._note(f"{table.source} ({kernel})")
        missed = 1 - experts.chosen / experts.number
        read = times[0] * (1 - missed**tokens) / (1 - missed ** tokens[0])
        read = np.minimum(read, times)
        layers = shape.num_hidden_layers
        return layers * read, layers * (times - read)

    def _all_reduces(self, tokens: Values) -> Values:
        """Return two per layer, one after the embedding; after experts of all ranks, none."""
        if self._size == 1:
            return np.zeros(len(tokens))
        sent = tokens * self._shape.hidden_size * _MATRIX_BYTES
        table = self._tables.table("comm", "custom_allreduce_perf")
        rows = chosen(table, "all-reduce", num_gpus=self._size, backend="vllm_graph")
        self._note(table.source)
        sizes, times = line_of(rows, "message_size")
        each = np.interp(sent, sizes, times)
        slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        each = np.where(sent > sizes[-1], times[-1] + slope * (sent - sizes[-1]), each)
        per_layer = 2 if self._ranks == 1 else 1
        return np.asarray((per_layer * self._shape.num_hidden_layers + 1) * each)

    def _exchanges(self, tokens: Values) -> Values:
        """Return how long all ranks' tokens take to their experts and back, all layers.

        By all-gather and reduce-scatter, as vLLM does unless it is told otherwise, or by the
        all-to-all kernel that is named, such as ``a2a=deepep_ht``.
        """
        shape, gpus = self._shape, self._size * self._ranks
        if self._ranks == 1:
            return np.zeros(len(tokens))
        name, total = self._options.kernels.get("a2a"), np.zeros(len(tokens))
        if name is not None:
            table = self._tables.table("comm", "moe_a2a_perf")
            sizes = {"ep_size": gpus, "hidden_size": shape.hidden_size, "comm_backend": name}
            for phase in ("dispatch", "combine"):
                points, times = line_of(
                    chosen(table, "all-to-all", phase=phase, **sizes), "num_tokens"
                )
                total += np.interp(tokens, points, times)
        else:
            table = GpuTables(self._tables.folder, self._options.gpu, "nccl").table(
                "comm", "nccl_perf"
            )
            for operation in ("all_gather", "reduce_scatter"):
                wanted = {"op_name": operation, "num_gpus": gpus, "nccl_dtype": "half"}
                points, times = line_of(chosen(table, "exchange", **wanted), "message_size")
                total += np.interp(tokens * self._ranks * shape.hidden_size, points, times)
        self._note(table.source)
        return np.asarray(shape.num_hidden_layers * total)

    def _attention(self) -> Iterator[dict[str, Any]]:
        decode = self._tables.table("attention", "generation_attention_perf")
        prompt = self._tables.table("attention", "context_attention_perf")
        for kind in _layer_kinds(self._shape):
            heads, keys = kind.heads // self._size, -(-kind.key_heads // self._size)
            wanted = {
                "head_dim": kind.head_dim,
                "kv_cache_dtype": self._options.kv_dtype,
                "window_size": kind.window or 0,
            }
            name = self._options.kernels.get("attention")
            decodes, kernel = self._heads(decode, wanted, heads, keys, name)
            prompts, _ = self._heads(prompt, wanted, heads, keys, name)
            self._note(f"{decode.source} ({kernel})")
            contexts, sequences, grid = decodes.grid()
            kept = _needed(contexts, grid.T)
            contexts, grid = contexts[kept], grid[kept]
            lens, times = prompts.prompts()
            yield {
                "num_layers": kind.num_layers,
                **({"window": kind.window} if kind.window else {}),
                "tile": _tile(kernel, heads // keys),
                "context_tokens": contexts.astype(int).tolist(),
                "sequences": sequences.astype(int).tolist(),
                "decode_us": [_rounded(row) for row in grid],
                "prompt": {"at": lens.astype(int).tolist(), "times_us": _rounded(times)},
            }

    def _heads(
        self,
        table: MeasuredTable,
        wanted: Mapping[str, Any],
        heads: int,
        keys: int,
        kernel: str | None,
    ) -> tuple["HeadTimes", str]:
        """Return the rows of a number of heads, or of an n-th of them at n times the batch."""
        there = table.rows["head_dim"].to_pylist()
        if wanted["head_dim"] not in there and _USUAL_HEAD_DIM in there:
            # As many numbers per token in fewer, wider heads.
            share = wanted["head_dim"] / _USUAL_HEAD_DIM
            heads, keys = max(1, round(heads * share)), max(1, round(keys * share))
            wanted = {**wanted, "head_dim": _USUAL_HEAD_DIM}
        rows = chosen(table, "attention", **wanted)
        rows, name = one_kernel(rows, table, kernel)
        known = set(
            zip(rows["num_heads"].to_pylist(), rows["num_key_value_heads"].to_pylist(), strict=True)
        )
        parts = [n for n in range(1, keys + 1) if not heads % n and not keys % n]
        times = next((n for n in parts if (heads // n, keys // n) in known), 1)
        of = MeasuredTable(rows, f"{table.source}, {name}")
        split = {"num_key_value_heads": keys // times, "num_heads": heads // times}
        rows = chosen(of, "attention", **split)
        batch, isl, step, latency = columns(rows, "batch_size", "isl", "step")
        return HeadTimes(batch / times, isl + step, latency), name

    def _note(self, source: str) -> None:
        if source not in self.sources:
            self.sources.append(source)


class _LayerKind(NamedTuple):
    """Layers whose attention is alike."""

    num_layers: int
    window: int | None
    heads: int
    key_heads: int
    head_dim: int


def _layer_kinds(shape: ModelShape) -> list[_LayerKind]:
    heads = (shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim)
    kinds = shape.kv_layers(1.0)
    if any(each.chunk for each in kinds):
        raise ProfileError(
            f"{shape.name}: has layers of chunked attention, whose kernels no table has; use "
            "`specsim profile roofline`"
        )
    return [_LayerKind(each.layers, each.window, *heads) for each in kinds]


def _small_weights(tokens: Values, times: Values, share: float) -> Values:
    """Return times for weights of 4 bits from those of 16, which the tables have.

    A small share of the memory is read, at less of its bandwidth, and unpacking makes computing
    longer: `_SMALL_READ` and `_SMALL_COMPUTE`, fitted once to vLLM's Marlin kernel on an A100.
    """
    computing = tokens * (times[-1] / tokens[-1])
    read = _SMALL_READ * share * times[0]
    return np.asarray(np.maximum(read, _SMALL_COMPUTE * computing))


def _needed(axis: Values, curves: Values) -> NDArray[np.int64]:
    """Return the points between which straight lines keep to all curves, within `_TOLERANCE`.

    Args:
        axis: Shape (n,), rising.
        curves: Shape (curves, n), above 0.
    """
    kept, last = [0], 0
    for end in range(2, len(axis)):
        share = (axis[last + 1 : end] - axis[last]) / (axis[end] - axis[last])
        line = curves[:, [last]] + share * (curves[:, [end]] - curves[:, [last]])
        if np.abs(line / curves[:, last + 1 : end] - 1).max() > _TOLERANCE:
            last = end - 1
            kept.append(last)
    return np.array([*kept, len(axis) - 1])


def _tile(kernel: str, group: int) -> int:
    """Return the query tokens of a tile; see `specsim.latency.composed.AttentionLayers.tile`."""
    unpacked = kernel.endswith(("flash_attn", "fa2"))
    return _UNPACKED_ROWS if unpacked else max(1, _PACKED_ROWS // group)


def _rounded(values: Values) -> list[float]:
    """Return values to five significant digits, which is finer than anybody measures."""
    return [float(f"{value:.5g}") for value in values]
