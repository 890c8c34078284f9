"""Profile: what a step costs on one GPU with one model, measured or made from data sheets."""

from specsim.profile.memory import (
    BLOCK_SIZE,
    GPU_MEMORY_UTILIZATION,
    LayersOf,
    default_layout,
    kv_layers,
    layer_bytes,
    least_block_size,
    memory_plan,
)
from specsim.profile.profile import (
    DraftCost,
    Overhead,
    Profile,
    StepCosts,
    ValidRange,
    find_profile,
    load_profile,
)
from specsim.profile.step_time import NO_BLOCK, BlockPass, priced, priced_plain, put_load

__all__ = [
    "BLOCK_SIZE", "GPU_MEMORY_UTILIZATION", "NO_BLOCK", "BlockPass", "DraftCost", "LayersOf",
    "Overhead", "Profile", "StepCosts", "ValidRange", "default_layout", "find_profile", "kv_layers",
    "layer_bytes", "least_block_size", "load_profile", "memory_plan", "priced", "priced_plain",
    "put_load",
]  # fmt: skip
