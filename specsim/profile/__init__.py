"""Profile: what a step costs on one GPU with one model, measured or made from data sheets."""

from specsim.profile.memory import BLOCK_SIZE, GPU_MEMORY_UTILIZATION, memory_plan
from specsim.profile.profile import (
    DraftCost,
    Overhead,
    Profile,
    StepCosts,
    ValidRange,
    find_profile,
    load_profile,
)

__all__ = [
    "BLOCK_SIZE",
    "GPU_MEMORY_UTILIZATION",
    "DraftCost",
    "Overhead",
    "Profile",
    "StepCosts",
    "ValidRange",
    "find_profile",
    "load_profile",
    "memory_plan",
]
