"""Arrivals: when requests come."""

from specsim.core.families import Family
from specsim.workload.arrivals.base import Arrivals, OpenArrivals

__all__ = ["ARRIVALS", "Arrivals", "OpenArrivals"]

ARRIVALS = Family("workload.arrivals", Arrivals)
