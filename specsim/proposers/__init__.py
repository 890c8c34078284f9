"""Proposers: who drafts, and what that costs."""

from specsim.families import Family
from specsim.proposers.base import Proposer

__all__ = ["PROPOSERS", "Proposer"]

PROPOSERS = Family("proposers", Proposer, tag="method")
