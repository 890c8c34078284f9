"""Profile: step times of one model on one GPU, measured, or composed from data sheets or tables."""

from specsim.profile.costs import DraftCost, Overhead, StepCosts
from specsim.profile.profile import (
    BLOCK_SIZE,
    GPU_MEMORY_UTILIZATION,
    LayersOf,
    Profile,
    block_len,
    default_layout,
    find_profile,
    kv_layers,
    layer_bytes,
    load_profile,
    memory_plan,
    shipped_to_the_limits,
)
from specsim.profile.step_time import NO_BLOCK, BlockPass

__all__ = [
    "BLOCK_SIZE", "GPU_MEMORY_UTILIZATION", "NO_BLOCK", "BlockPass", "DraftCost", "LayersOf",
    "Overhead", "Profile", "StepCosts", "block_len", "default_layout", "find_profile", "kv_layers",
    "layer_bytes", "load_profile", "memory_plan", "shipped_to_the_limits",
]  # fmt: skip
