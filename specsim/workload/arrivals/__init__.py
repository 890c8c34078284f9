"""Arrivals: when requests come."""

from specsim.families import Family
from specsim.workload.arrivals.base import Arrivals, OpenArrivals

__all__ = ["ARRIVALS", "Arrivals", "OpenArrivals"]

ARRIVALS = Family("workload.arrivals", Arrivals)
