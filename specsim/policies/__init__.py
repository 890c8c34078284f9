"""Policies: how many tokens to draft, decided anew at every step."""

from specsim.core.families import Family
from specsim.decisions.loops import Loops, View, row_of
from specsim.decisions.policy import (
    BySize,
    DraftsTrees,
    KnowsModel,
    LoopPolicy,
    ModelView,
    OraclePolicy,
    PicksDrafter,
    PicksPrefix,
    PicksSource,
    Policy,
    ServerView,
    check_proposer,
    has_async_form,
    is_bound,
)
from specsim.policies.parts.times import quick_step_time, quick_step_times

__all__ = [
    "POLICIES", "BySize", "DraftsTrees", "KnowsModel", "LoopPolicy", "Loops", "ModelView",
    "OraclePolicy", "PicksDrafter", "PicksPrefix", "PicksSource", "Policy", "ServerView", "View",
    "check_proposer", "has_async_form", "is_bound", "quick_step_time", "quick_step_times", "row_of",
]  # fmt: skip

POLICIES = Family("policies", Policy)
