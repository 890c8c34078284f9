"""Autoscaling: how many replicas there are, decided anew as the load changes."""

from specsim.autoscaling.base import Autoscaler, PoolView
from specsim.core.families import Family

__all__ = ["AUTOSCALING", "Autoscaler", "PoolView"]

AUTOSCALING = Family("autoscaling", Autoscaler)
