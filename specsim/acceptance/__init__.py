"""Acceptance models: which drafts survive."""

from typing import Annotated

from pydantic import WithJsonSchema

from specsim.acceptance.base import Acceptance, Oracle
from specsim.core.families import Family

__all__ = ["ACCEPTANCE", "Acceptance", "NestedAcceptance", "Oracle"]

ACCEPTANCE = Family("acceptance", Acceptance)

# Spelling out all members inside one of them would never end.
NestedAcceptance = Annotated[
    Acceptance,
    ACCEPTANCE,
    WithJsonSchema({"type": "object", "description": "any member of acceptance"}),
]
"""Type of a field that holds a member inside a member."""
