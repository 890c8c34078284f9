"""Routing: which replica serves a request."""

from specsim.core.families import Family
from specsim.routing.base import PromptView, ReplicaView, Router

__all__ = ["ROUTING", "PromptView", "ReplicaView", "Router"]

ROUTING = Family("routing", Router)
