"""Routing: which replica serves a request."""

from specsim.families import Family
from specsim.routing.base import ReplicaView, Router

__all__ = ["ROUTING", "ReplicaView", "Router"]

ROUTING = Family("routing", Router)
