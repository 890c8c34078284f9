"""What the memory of each GPU is for, and so how many KV blocks fit.

Source of the defaults: vLLM 0.32.0, ``config/cache.py CacheConfig``.
"""

from collections.abc import Sequence

from specsim.hardware import GIB, GpuSpec, MemoryPlan, ModelShape
from specsim.profile.profile import DraftCost, Profile

BLOCK_SIZE = 16
GPU_MEMORY_UTILIZATION = 0.92


def memory_plan(
    profile: Profile,
    model: ModelShape,
    gpu: GpuSpec,
    drafts: Sequence[DraftCost],
    *,
    block_size: int = BLOCK_SIZE,
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
) -> MemoryPlan:
    """Return the plan for a profile's model on its GPU, with the drafters that are loaded."""
    size = profile.tensor_parallel_size
    weight_bytes, token_bytes = model.weight_bytes / size, model.kv_bytes_per_token_and_gpu(size)
    if profile.weights_gib is not None:
        weight_bytes = profile.weights_gib * GIB
    if profile.kv_bytes_per_token is not None:
        token_bytes = profile.kv_bytes_per_token
    return MemoryPlan(
        total_bytes=gpu.memory_gib * GIB,
        usable_bytes=gpu.memory_gib * GIB * gpu_memory_utilization,
        weight_bytes=weight_bytes,
        draft_weight_bytes=sum(draft.weights_gib for draft in drafts) * GIB,
        reserved_bytes=profile.reserved_gib * GIB,
        block_bytes=block_size * token_bytes,
        draft_block_bytes=block_size * sum(draft.kv_bytes_per_token for draft in drafts),
    )
