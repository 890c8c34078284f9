"""Latency models: how long a forward pass lasts."""

from typing import Annotated

from specsim.core.families import Family
from specsim.latency._form import COEFFICIENTS, COSTS, forward_time
from specsim.latency.base import LatencyModel

__all__ = ["COEFFICIENTS", "COSTS", "LATENCY", "LatencyModel", "NestedLatency", "forward_time"]

LATENCY = Family("latency", LatencyModel)
NestedLatency = Annotated[LatencyModel, LATENCY, LATENCY.any_member]
"""Type of a field that holds a member inside a member."""
