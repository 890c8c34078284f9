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
from specsim.hardware import GIB, AttentionWidth, MemoryPlan, ModelShape, load_gpu, load_model
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
from specsim.profile.profile import Profile

Values = NDArray[np.float64]

DTYPES: Mapping[str, "Dtype"]
"""Of weights, by name."""

NOT_MEASURED = "Overhead is not measured: fit it to runs of your own (`specsim profile fit`)."
"""What a profile says of itself that was not fitted yet."""
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
_OF_LATENT = ("hidden_size", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "head_dim")
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
    peak: str = "bfloat16"
    """As GPUs call what multiplies them."""


DTYPES = {
    "bfloat16": Dtype(2.0, "bfloat16", "bfloat16"),
    "fp8": Dtype(1.0, "fp8", "fp8", "float8"),
    "fp8_block": Dtype(1.0, "fp8_block", "fp8_block", "float8"),
    "nvfp4": Dtype(0.5625, "nvfp4", "nvfp4", "float4"),
    "int4": Dtype(0.53, None, "int4_wo"),
    # Of experts only: as in gpt-oss, in Kimi-K2.5, and in its NVFP4 version.
    "mxfp4": Dtype(0.53, "bfloat16", "w4a16_mxfp4"),
    "int4_experts": Dtype(0.53, "bfloat16", "int4_wo"),
    "nvfp4_experts": Dtype(0.5625, "bfloat16", "nvfp4", "float4"),
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
    tables_of: str | None = None
    """Another GPU, as in ``profiles/``, whose tables are carried over by the data sheets."""


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
        tables = GpuTables(folder, options.tables_of or options.gpu, options.engine)
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
    scales, carried = _Scales.of(options), ""
    if options.tables_of is not None:
        carried = (
            f"Carried over from {options.tables_of} by the data sheets: what reads memory takes "
            f"{scales.read:.3g} times as long, what computes {scales.compute:.3g} times. "
        )
    return {
        "engine": f"{options.engine}, kernels measured one by one",
        "source": "aiconfigurator-core (Apache-2.0): " + "; ".join(sources),
        "date": date.today().isoformat(),
        "notes": (
            f"Weights {options.dtype}, KV cache {options.kv_dtype}. Composed by `specsim profile "
            "build`; norms, rotary embedding and activations by their memory traffic. "
            f"{carried}{NOT_MEASURED}"
        ),
    }


def _drafts(options: TableOptions, tables: GpuTables) -> dict[str, Any]:
    """Return the costs of drafters: forward passes of heads and models, host time of lookups."""
    found: dict[str, Any] = {"ngram": {"token_us": 20}, "suffix": {"token_us": 20}}
    for method, name in options.drafts.items():
        shape = load_model(name)
        alone = {"data_parallel_size": 1, "enable_expert_parallel": False}
        dtype = options.dtype if shape.num_experts else "bfloat16"  # a layer like the target's
        plain = TableOptions(**{**vars(options), "model": name, "dtype": dtype, **alone})
        drafter = _Composer(shape, plain, tables)
        found[method] = {
            "basis": "pass",
            "step_ms": _DRAFT_STEP_MS,
            "latency": {**drafter.latency(), "samples_drafts": False},
            "weights_gib": round(drafter.weight_bytes / GIB, 3),
            "kv_bytes_per_token": drafter.kv_bytes_per_token,
        }
    return found


class _Scales(NamedTuple):
    """What times become on another GPU than the one that they were measured on."""

    read: float = 1.0
    """Of what reads memory: attention of decodes, reading weights, small kernels."""
    compute: float = 1.0
    """Of all else: growth with the tokens, attention of prompts."""

    @classmethod
    def of(cls, options: TableOptions) -> "_Scales":
        """Return what the data sheets of both GPUs say; a ProfileError if one does not."""
        if options.tables_of is None:
            return cls()
        if options.tensor_parallel_size * options.data_parallel_size > 1:
            raise ProfileError(
                f"--tables-of {options.tables_of}: what GPUs send each other is not carried over; "
                "leave --tp and --dp out, or use `specsim profile roofline`"
            )
        name = DTYPES[options.dtype].peak
        read, compute = [], []
        for gpu in (options.tables_of, options.gpu):
            spec = load_gpu(gpu)
            if spec.memory_gb_per_s is None or name not in spec.peak_tflops:
                raise ProfileError(
                    f"--tables-of {options.tables_of}: GPU '{gpu}' lacks memory_gb_per_s or "
                    f"peak_tflops of {name}; add them to its file"
                )
            read.append(spec.memory_gb_per_s)
            compute.append(spec.peak_tflops[name])
        return cls(read[0] / read[1], compute[0] / compute[1])


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
        self._scales = _Scales.of(options)
        self._dtype = DTYPES[options.dtype]
        self.sources: list[str] = []

    def latency(self) -> dict[str, Any]:
        """Return the fields of a `specsim.latency.composed.Composed`."""
        tokens, layer = self._sum(self._layer_matrices())
        read, compute = np.full(len(tokens), layer[0]), layer - layer[0]
        if self._shape.num_experts:
            expert_read, expert_rest = self._experts(tokens)
            read, compute = read + expert_read, compute + expert_rest
        read, compute = self._scales.read * read, self._scales.compute * compute
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
            **self._latent_fields,
            **self._parallel_fields,
        }

    @property
    def _latent_fields(self) -> dict[str, Any]:
        """Return how much longer a pair takes where drafts are verified than in a prompt.

        Prompts have keys and values of each head; with drafts, all heads read the latent vector.
        """
        shape = self._shape
        if not shape.kv_lora_rank:
            return {}
        latent = 2 * shape.kv_lora_rank + shape.qk_rope_head_dim
        return {"verify_factor": round(latent / (shape.head_dim + shape.v_head_dim), 3)}

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
        if self._dtype.matrices == "bfloat16":
            experts = shape.expert_bytes // shape.bytes_per_weight
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
        shape, size = self._shape, self._size
        found = [_Matrix(*each[1:]) for each in shape.attention_matrices(size)]
        found += [_Matrix(*sizes) for sizes in shape.fusing_matrices]
        if shape.num_experts:
            found.append(_Matrix(shape.num_experts, shape.hidden_size, shape.num_expert_layers))
        return found + [_Matrix(*each[1:]) for each in shape.mlp_matrices(size)]

    @cached_property
    def _gemm(self) -> "MatrixTimes":
        table = self._tables.table("gemm", "gemm_perf")
        dtype = self._dtype.matrices or "bfloat16"
        found = MatrixTimes(table, dtype, self._options.kernels.get("gemm"))
        self._note(found.source)
        return found

    @cached_property
    def _plain_gemm(self) -> "MatrixTimes | None":
        """What bounds the times of block-scaled matrices, whose table has launches by the host.

        None of it is below 55 microseconds on Hopper, 150 on Blackwell, where those of 8 bits with
        one scale, which read and compute as much, take 5; both meet where computing takes longer.
        Latent attention with four such matrices took 89 in all.
        """
        if self._dtype.matrices != "fp8_block":
            return None
        table = self._tables.table("gemm", "gemm_perf")
        found = MatrixTimes(table, "fp8", None)
        self._note(f"{found.source} where that is shorter")
        return found

    def _sum(self, matrices: list[_Matrix]) -> tuple[Values, Values]:
        """Return the batched tokens that were measured, and all matrices together, microseconds."""
        gemm, plain = self._gemm, self._plain_gemm
        total = np.zeros(len(gemm.tokens))
        for matrix in matrices:
            times = gemm.times(matrix.outputs, matrix.inputs)
            if plain is not None:
                others = plain.times(matrix.outputs, matrix.inputs)
                times = np.minimum(times, np.interp(gemm.tokens, plain.tokens, others))
            if self._dtype.matrices is None:
                times = _small_weights(gemm.tokens, times, self._dtype.bytes_per_weight / 2)
            total += matrix.runs * times
        return gemm.tokens, total

    def _small_kernels(self, tokens: Values) -> Values:
        """Return norms, rotary embedding, writing the KV cache, activation: all layers."""
        shape, size = self._shape, self._size
        width = shape.mlp_width // size * (shape.num_experts_per_tok or 1)
        total = np.zeros(len(tokens))
        for each, count in shape.attention_widths.items():
            queries = shape.num_attention_heads // size * each.head_dim
            keys = shape.num_projected(each, size) * each.head_dim
            numbers, kernels = 8 * shape.hidden_size + 3 * width, _SMALL_KERNELS
            if each.latent_dim:  # rotary embedding and writing the cache were measured with it
                kernels -= 2
            else:
                numbers += 2 * (queries + keys) + 4 * keys
            per_token = numbers * _MATRIX_BYTES / self._bandwidth * 1e6
            total += count * (kernels * _LAUNCH_US + per_token * tokens)
        return total

    @property
    def _bandwidth(self) -> float:
        """What small kernels reach, bytes per second."""
        return float(self._tables.system["gpu"]["mem_bw"]) * _MEMORY_SHARE / self._scales.read

    def _head(self) -> dict[str, Any]:
        shape = self._shape
        table = MatrixTimes(self._tables.table("gemm", "gemm_perf"), "bfloat16", None)
        times = table.times(-(-shape.vocab_size // self._size), shape.hidden_size)
        # Sampling reads the logits a few times.
        logits = 3 * 4 * shape.vocab_size * table.tokens / self._bandwidth * 1e6
        times = self._scales.compute * times + times[0] * (self._scales.read - self._scales.compute)
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
        layers = shape.num_expert_layers
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
        return np.asarray(shape.num_expert_layers * total)

    def _attention(self) -> Iterator[dict[str, Any]]:
        for kind in _layer_kinds(self._shape):
            keys = kind.width.per_gpu(self._size)
            heads = self._shape.num_attention_heads // self._size
            if kind.width.latent_dim:
                decodes, kernel = self._latent(heads, "generation")
                prompts, _ = self._latent(heads, "context")
            else:
                decodes, kernel = self._times_of(kind, heads, keys, "generation")
                prompts, _ = self._times_of(kind, heads, keys, "context")
            contexts, sequences, grid = decodes.grid()
            grid = self._scales.read * grid
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
                "prompt": {
                    "at": lens.astype(int).tolist(),
                    "times_us": _rounded(self._scales.compute * times),
                },
            }

    def _times_of(
        self, kind: "_LayerKind", heads: int, keys: int, phase: str
    ) -> tuple["HeadTimes", str]:
        """Return the times of attention in one phase, and the kernel."""
        table = self._tables.table("attention", f"{phase}_attention_perf")
        wanted = {
            "head_dim": kind.width.head_dim,
            "kv_cache_dtype": self._options.kv_dtype,
            "window_size": kind.window or 0,
        }
        found, kernel = self._heads(
            table, wanted, heads, keys, self._options.kernels.get("attention")
        )
        if phase == "generation":
            self._note(f"{table.source} ({kernel})")
        return found, kernel

    def _latent(self, heads: int, phase: str) -> tuple["HeadTimes", str]:
        """Return the times of latent attention in one phase, and the kernel.

        They were measured in DeepSeek-V3, with all matrices of a layer's attention, which count by
        themselves. Of few sequences the tables of vLLM 0.24 have what the host takes to launch it
        all: on GB300 those of 0.27 are half as long.
        """
        measured = load_model("deepseek-v3").model_copy(update={"num_attention_heads": heads})
        if any(getattr(self._shape, name) != getattr(measured, name) for name in _OF_LATENT):
            sizes = ", ".join(f"{name} {getattr(measured, name)}" for name in _OF_LATENT)
            raise ProfileError(
                f"'{self._options.model}': latent attention was measured with {sizes} only, as in "
                "DeepSeek-V3; use `specsim profile roofline`"
            )
        table = self._tables.table("mla", f"mla_{phase}_module_perf")
        wanted = {
            "model": measured.name,
            "gemm_type": self._dtype.matrices or "bfloat16",
            "kv_cache_dtype": self._options.kv_dtype,
            "mla_dtype": "bfloat16",
            "num_heads": heads,
        }
        rows = chosen(table, "latent attention", **wanted)
        rows, kernel = one_kernel(rows, table, self._options.kernels.get("attention"))
        if phase == "generation":
            self._note(f"{table.source} ({kernel})")
        batch, isl, step, latency = columns(rows, "batch_size", "isl", "step")
        one_layer = [_Matrix(*each[1:3]) for each in measured.attention_matrices(1)]
        tokens, matrices = self._sum(one_layer)
        own = latency - np.interp(batch * isl, tokens, matrices)
        return HeadTimes(batch, isl + step, np.maximum(own, _LAUNCH_US)), kernel

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
    width: AttentionWidth


def _layer_kinds(shape: ModelShape) -> list[_LayerKind]:
    counts = shape.layer_counts
    if "chunked_attention" in counts:
        raise ProfileError(
            f"{shape.name}: has layers of chunked attention, whose kernels no table has; use "
            "`specsim profile roofline`"
        )
    return [
        _LayerKind(
            count,
            shape.sliding_window if kind == "sliding_attention" else None,
            shape.attention_width(kind),
        )
        for kind, count in counts.items()
    ]


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
