"""Autoscaling: how many replicas there are, decided anew as the load changes."""

from specsim.autoscaling.base import Autoscaler, PoolView, started_by
from specsim.core.families import Family

__all__ = ["AUTOSCALING", "Autoscaler", "PoolView", "started_by"]

AUTOSCALING = Family("autoscaling", Autoscaler)
