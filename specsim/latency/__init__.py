"""Latency models: how long a forward pass lasts."""

from typing import Annotated

from specsim.core.families import Family
from specsim.latency._form import (
    BASIS,
    COEFFICIENTS,
    COSTS,
    HAS_DRAFTER,
    HAS_LATENCY,
    OVERHEAD_REQUEST,
    OVERHEAD_STEP,
    REQUEST,
    STEP,
    TARGET_SHARE,
    TOKEN,
)
from specsim.latency.base import LatencyModel

__all__ = [
    "BASIS", "COEFFICIENTS", "COSTS", "HAS_DRAFTER", "HAS_LATENCY", "LATENCY",
    "OVERHEAD_REQUEST", "OVERHEAD_STEP", "REQUEST", "STEP", "TARGET_SHARE", "TOKEN",
    "LatencyModel", "NestedLatency",
]  # fmt: skip

LATENCY = Family("latency", LatencyModel)
NestedLatency = Annotated[LatencyModel, LATENCY, LATENCY.any_member]
"""Type of a field that holds a member inside a member."""
