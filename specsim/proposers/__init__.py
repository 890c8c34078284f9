"""Proposers: who drafts, and what that costs."""

from typing import Annotated

from pydantic import WithJsonSchema

from specsim.core.families import Family
from specsim.proposers.base import Proposer

__all__ = ["PROPOSERS", "NestedProposer", "Proposer"]

PROPOSERS = Family("proposers", Proposer, tag="method")

# Spelling out all members inside one of them would never end.
NestedProposer = Annotated[
    Proposer,
    PROPOSERS,
    WithJsonSchema({"type": "object", "description": "any member of proposers"}),
]
"""Type of a field that holds a member inside a member."""
