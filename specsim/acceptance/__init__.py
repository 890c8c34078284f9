"""Acceptance models: how many tokens of a draft the target accepts."""

from typing import Annotated

from specsim.acceptance.base import Acceptance, Oracle, model_of
from specsim.core.families import Family

__all__ = ["ACCEPTANCE", "Acceptance", "NestedAcceptance", "Oracle", "model_of"]

ACCEPTANCE = Family("acceptance", Acceptance, of_files="preset")
NestedAcceptance = Annotated[Acceptance, ACCEPTANCE, ACCEPTANCE.any_member]
"""Type of a field that holds a member inside a member."""
