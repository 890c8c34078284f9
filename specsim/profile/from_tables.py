"""Profiles composed from kernels that were measured on a GPU.

See `specsim.profile.composer` and `specsim.profile.kernel_tables`.
"""

from dataclasses import replace
from datetime import date
from typing import Any, Self

from specsim.core.errors import ProfileError
from specsim.core.settings import nearest
from specsim.hardware import GIB, ModelShape, load_gpu, load_model
from specsim.hardware.config_parts import OTHER
from specsim.hardware.model_fields import DTYPE_BYTES
from specsim.hardware.specs import reserved_gib
from specsim.profile.composer import Composer
from specsim.profile.from_roofline import (
    BLOCK_METHODS,
    MadeProfile,
    is_own_mtp,
    lasting,
    load_drafter,
)
from specsim.profile.kernel_tables import (
    DTYPES,
    TABLE_KEYS,
    GpuTables,
    Precision,
    Scales,
    TableOptions,
    tables_folder,
)
from specsim.profile.parallel import stage_shares
from specsim.profile.profile import NOT_MEASURED

_FAMILIES = ["attention", "moe", "gemm", "allreduce", "a2a", "quant"]  # of kernels in tables
_FAMILIES += ["graphs", "sampling", "drafts"]  # of what else a server does
_MAX_BATCHED_TOKENS = 16384
# Time on the host: between what servers of A100, H100 and H200 showed at their smallest loads, none
# to 0.4 ms without and none to 0.45 ms more with drafts, none to 12 ms per request.
_DRAFT_STEP_MS = 0.3
_PLANNED_PASS_US = 1600.0
"""Before Blackwell FlashInfer verifies drafts outside full CUDA graphs (vLLM 0.32
``v1/attention/backends/flashinfer.py get_cudagraph_support``), and the host plans every pass of a
drafter anew: what that took on an A100 with one client and k = 5, per pass."""
_PIECE_LAYER_US = 280.0
"""What the host takes to launch a layer of a draft model in vLLM, which has no CUDA graph of it: up
to 0.28 graphs of what lies between attention (``v1/spec_decode/llm_base_proposer.py``), from 0.31
on none (``v1/worker/gpu/spec_decode``: ``draft_model``, in 0.32 ``standalone_ar``). Of Llama-3.2-1B
on an H200: experiments/vllm-h200."""
HOST_TIMES = {
    "step_ms": 0.15,
    "sync_step_ms": 1.2,  # as in the measured steps of profiles/h100/llama-3.1-8b.yaml
    "front_ms": 3.0,  # HTTP and handing over
    # Tokenization: what the last of 256 prompts sent at once waited longer, the longer they were.
    "front_token_us": 4.2,
}
"""Overhead of an engine of which nobody has measured it."""

_SAME_BANDWIDTH = 0.1
"""Data sheets of a B200 differ by 0.04 (7.7, 8 TB/s), those of A100 with 40 and 80 GB by 0.24."""


class TableProfile(MadeProfile):
    """Composed from kernel tables."""

    @classmethod
    def of(cls, options: TableOptions) -> Self:
        """Compose a profile.

        A ProfileError if a model, GPU, table, data type or kernel is unknown, or no table covers
        the model's shape. A CapacityError if the model does not fit into the GPU's memory.
        """
        model, spec = load_model(options.model), load_gpu(options.gpu)
        if options.dtype == "auto":
            options = replace(options, dtype=model.quantization or "bfloat16")
            if options.dtype == OTHER:
                raise ProfileError(
                    f"--dtype auto: '{options.model}' says that its weights are quantized, in none "
                    f"of the known ways; name the closest: --dtype {', '.join(DTYPES)}"
                )
        Precision.of(options.dtype)
        if options.kv_dtype == "auto":
            options = replace(options, kv_dtype=spec.kv_dtype(model))
        if model.o_groups:  # whose compressed entries vLLM keeps in 8 bits only
            options = replace(options, kv_dtype="fp8")
        for option, named, known in (
            ("--kernel", options.kernels, _FAMILIES),
            ("--table", options.versions, [*TABLE_KEYS]),
        ):
            if unknown := next((name for name in named if name not in known), None):
                raise ProfileError(f"{option} {unknown}=: {nearest(unknown, known)}")
        folder, gpu = options.tables or tables_folder(), options.tables_of or options.gpu
        tables = GpuTables(folder, gpu, options.engine, options.versions)
        _check_bandwidth(tables, gpu)
        target = Composer(model, options, tables)
        gpus = options.tensor_parallel_size * options.pipeline_parallel_size
        gpus *= options.data_parallel_size
        fields: dict[str, Any] = {
            "model": lasting(options.model),
            "gpu": options.gpu,
            "tensor_parallel_size": options.tensor_parallel_size,
            "provenance": {},
            "target": (latency := target.latency()),
            "drafts": _drafts(options, model, tables),
            "overhead": HOST_TIMES,
            "valid_range": {"context_tokens": 1, "batched_tokens": _MAX_BATCHED_TOKENS},
            "reserved_gib": reserved_gib(options.reserved_gib, gpus),
            "weights_gib": round(target.weight_bytes / GIB, 3),
            "kv_bytes_per_token": target.kv_bytes_per_token,
        }
        if (shares := options.decode_context_parallel_size) > 1:
            fields["decode_context_parallel_size"] = shares
        if options.pipeline_parallel_size > 1:
            fields["stage_shares"] = stage_shares(target.stages, latency)
        for key in options.versions.keys() - tables.keys:
            raise ProfileError(
                f"--table {key}={options.versions[key]}: nothing of this profile comes from such a "
                "table; leave it out"
            )
        fields["provenance"] = _provenance(options, target.sources)
        share = options.gpu_memory_utilization
        return cls.completed(fields, "profile build", 1, share, target.sources)


def _check_bandwidth(tables: GpuTables, gpu: str) -> None:
    """Raise a ProfileError if the tables are of a card of that name with another memory."""
    here, there = load_gpu(gpu).memory_gb_per_s, tables.system["gpu"]["mem_bw"] * 1e-9
    if here is not None and abs(here / there - 1) > _SAME_BANDWIDTH:
        raise ProfileError(
            f"--gpu {gpu}: its memory reads {here:,.0f} GB/s, that of {tables.gpu}, of which "
            f"{tables.folder} has tables, {there:,.0f}; name a GPU like that one (--tables-of), "
            "and its times are carried over"
        )


def _provenance(options: TableOptions, sources: list[str]) -> dict[str, Any]:
    scales, carried = Scales.of(options), ""
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


def _drafts(options: TableOptions, target: ModelShape, tables: GpuTables) -> dict[str, Any]:
    """Return the costs of drafters: forward passes of heads and models, host time of lookups."""
    found: dict[str, Any] = {"ngram": {"token_us": 20}, "suffix": {"token_us": 20}}
    for method, name in options.drafts.items():
        shape = load_drafter(method, name, target)
        alone: dict[str, Any] = {"pipeline_parallel_size": 1}
        if not shape.num_experts:  # else it is a layer whose experts the same ranks share
            alone |= {"data_parallel_size": 1, "enable_expert_parallel": False}
        dtype = _drafter_dtype(method, name, shape, options)
        kernels = {key: kernel for key, kernel in options.kernels.items() if key != "sampling"}
        own = {"model": name, "dtype": dtype, "kernels": kernels}  # a draft is not sampled
        plain = TableOptions(**{**vars(options), **own, **alone})
        drafter = Composer(shape, plain, tables)
        weight_bytes = drafter.weight_bytes
        if options.pipeline_parallel_size > 1 and not shape.has_own_embedding:
            # The target's is on the first stage, and the last one drafts.
            embedding = target.vocab_size * target.hidden_size * DTYPE_BYTES["bfloat16"]
            weight_bytes += embedding / options.tensor_parallel_size
        is_planned = kernels.get("drafts") == "flashinfer"
        found[method] = {
            "basis": "pass",
            "step_ms": _DRAFT_STEP_MS,
            "latency": {
                **drafter.latency(),
                "samples_drafts": method in BLOCK_METHODS,
                **({"fixed_us": _PLANNED_PASS_US} if is_planned else {}),
                **_launches(options.engine, method, shape.num_hidden_layers),
            },
            "weights_gib": round(weight_bytes / GIB, 3),
            "kv_bytes_per_token": drafter.kv_bytes_per_token,
        }
    return found


def _drafter_dtype(method: str, name: str, shape: ModelShape, options: TableOptions) -> str:
    """Return how a drafter's weights are stored; a ProfileError if that is not known.

    As its own config.json says, else in 16 bits, or with experts as the target. Layers that come
    with the target are as its experts, and in 16 bits if they have none.
    """
    as_target = options.dtype if shape.num_experts else "bfloat16"
    if shape.is_head and shape.num_experts:
        return as_target
    own = None if is_own_mtp(method, load_model(name)) else shape.quantization
    if own == OTHER:
        raise ProfileError(
            f"--draft {method}={name}: says that its weights are quantized, in none of the known "
            f"ways: {', '.join(DTYPES)}; name a config.json that says one of them"
        )
    return own or as_target


def _launches(engine: str, method: str, num_layers: int) -> dict[str, float]:
    """Return what a pass of a drafter takes at least, for the host launches it layer by layer."""
    if engine != "vllm" or method != "draft_model":
        return {}
    least = _PIECE_LAYER_US * num_layers
    return {"prompts_at_least_us": least, "decodes_at_least_us": least}
