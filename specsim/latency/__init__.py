"""Latency models: how long a forward pass lasts."""

from typing import Annotated

from specsim.core.families import Family
from specsim.latency.base import LatencyModel
from specsim.latency.form import COEFFICIENTS

__all__ = ["COEFFICIENTS", "LATENCY", "LatencyModel", "NestedLatency"]

LATENCY = Family("latency", LatencyModel)
NestedLatency = Annotated[LatencyModel, LATENCY, LATENCY.any_member]
"""Type of a field that holds a member inside a member."""
