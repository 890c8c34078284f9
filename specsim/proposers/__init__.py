"""Proposers: the drafting methods, and what each of them needs from the engine."""

from typing import Annotated

from specsim.core.families import Family
from specsim.proposers.base import Proposer

__all__ = ["PROPOSERS", "NestedProposer", "Proposer"]

PROPOSERS = Family("proposers", Proposer, tag="method")
NestedProposer = Annotated[Proposer, PROPOSERS, PROPOSERS.any_member]
"""Type of a field that holds a member inside a member."""
