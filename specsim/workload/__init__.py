"""Workloads: which requests come, when, and how long they are."""

from specsim.workload.config import WorkloadConfig
from specsim.workload.trace import Trace

__all__ = ["Trace", "WorkloadConfig"]
