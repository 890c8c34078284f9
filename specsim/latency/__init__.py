"""Latency models: how long a step lasts; profiles: their coefficients, with provenance."""

from specsim.families import Family
from specsim.latency.base import LatencyModel

__all__ = ["LATENCY", "LatencyModel"]

LATENCY = Family("latency", LatencyModel)
