"""Lengths: how long prompts and outputs are."""

from specsim.core.families import Family
from specsim.workload.lengths.base import Lengths

__all__ = ["LENGTHS", "Lengths"]

LENGTHS = Family("workload.lengths", Lengths)
