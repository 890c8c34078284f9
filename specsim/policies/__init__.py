"""Policies: how many tokens to draft, decided anew at every step."""

from specsim.core.families import Family
from specsim.policies._times import quick_step_time, quick_step_times
from specsim.policies.base import ModelView, OraclePolicy, Policy, ServerView

__all__ = [
    "POLICIES", "ModelView", "OraclePolicy", "Policy", "ServerView", "quick_step_time",
    "quick_step_times",
]  # fmt: skip

POLICIES = Family("policies", Policy)
