"""Hardware: models and GPUs by their shapes and data sheets."""

from specsim.hardware.specs import (
    GIB,
    GpuSpec,
    MemoryPlan,
    ModelShape,
    find_gpu,
    find_model,
    load_gpu,
    load_model,
    num_kv_blocks,
)

__all__ = [
    "GIB",
    "GpuSpec",
    "MemoryPlan",
    "ModelShape",
    "find_gpu",
    "find_model",
    "load_gpu",
    "load_model",
    "num_kv_blocks",
]
