"""Policies: how many tokens to draft, decided anew at every step."""

from specsim.families import Family
from specsim.policies.base import OraclePolicy, Policy, ServerView

__all__ = ["POLICIES", "OraclePolicy", "Policy", "ServerView"]

POLICIES = Family("policies", Policy)
