"""Acceptance models: which drafts survive."""

from specsim.acceptance.base import Acceptance, Oracle
from specsim.families import Family

__all__ = ["ACCEPTANCE", "Acceptance", "Oracle"]

ACCEPTANCE = Family("acceptance", Acceptance)
