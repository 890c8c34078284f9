"""Hardware: models and GPUs by their shapes and data sheets."""

from specsim.hardware.kv_groups import KVLayers, kv_layout
from specsim.hardware.model_fields import AttentionWidth
from specsim.hardware.model_shape import ModelShape
from specsim.hardware.specs import (
    GIB,
    GpuSpec,
    MemoryPlan,
    find_gpu,
    find_model,
    gpu_as_typed,
    gpus_alike,
    load_gpu,
    load_model,
    model_names,
    num_kv_blocks,
)

__all__ = [
    "GIB", "AttentionWidth", "GpuSpec", "KVLayers", "MemoryPlan", "ModelShape",
    "find_gpu", "find_model", "gpu_as_typed", "gpus_alike", "kv_layout", "load_gpu", "load_model",
    "model_names", "num_kv_blocks",
]  # fmt: skip
