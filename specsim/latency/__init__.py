"""Latency models: how long a step lasts; profiles: their coefficients, with provenance."""

from typing import Annotated

from pydantic import WithJsonSchema

from specsim.core.families import Family
from specsim.latency._form import COEFFICIENTS, COSTS, forward_time
from specsim.latency.base import LatencyModel

__all__ = ["COEFFICIENTS", "COSTS", "LATENCY", "LatencyModel", "NestedLatency", "forward_time"]

LATENCY = Family("latency", LatencyModel)
"""What every latency model answers: how long a forward pass lasts."""

# Spelling out all members inside one of them would never end.
NestedLatency = Annotated[
    LatencyModel,
    LATENCY,
    WithJsonSchema({"type": "object", "description": "any member of latency"}),
]
"""Type of a field that holds a member inside a member."""
