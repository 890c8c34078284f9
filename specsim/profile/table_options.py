"""What a profile is composed of: a model on a GPU, data types, kernels, tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from specsim.core.errors import ProfileError
from specsim.hardware import load_gpu

DTYPES: Mapping[str, "Dtype"]  # of weights, by name


class Dtype(NamedTuple):
    bytes_per_weight: float  # scales included
    matrices: str | None
    """As gemm tables call it; None where only weights are small and the tables have 16 bits."""
    experts: str  # as moe tables call it
    peak: str = "bfloat16"  # as GPUs call what multiplies them


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
    model: str  # name in ``profiles/``, or the path of a HuggingFace config.json
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
    tables: Path | None = None  # folder of kernel tables; by default that of the installed package
    kernels: Mapping[str, str] = field(default_factory=dict)
    """By family, a part of the name of the kernel that the server logged."""
    reserved_gib: float = 1.15
    tables_of: str | None = None
    """Another GPU, as in ``profiles/``, whose tables are carried over by the data sheets."""


class Scales(NamedTuple):
    """What times become on another GPU than the one that they were measured on."""

    read: float = 1.0  # of what reads memory: attention of decodes, reading weights, small kernels
    compute: float = 1.0  # of all else: growth with the tokens, attention of prompts

    @classmethod
    def of(cls, options: TableOptions) -> "Scales":
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
