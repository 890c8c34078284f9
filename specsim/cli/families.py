"""FAMILIES: every family, for whoever wants to look at all of them."""

from typing import Any

from specsim.acceptance import ACCEPTANCE
from specsim.core.families import Family
from specsim.latency import LATENCY
from specsim.policies import POLICIES
from specsim.proposers import PROPOSERS
from specsim.routing import ROUTING
from specsim.workload.arrivals import ARRIVALS
from specsim.workload.lengths import LENGTHS
from specsim.workload.readers import READERS

__all__ = ["FAMILIES"]

FAMILIES: dict[str, Family[Any]] = {
    family.name: family
    for family in (
        ARRIVALS,
        LENGTHS,
        READERS,
        LATENCY,
        ACCEPTANCE,
        PROPOSERS,
        POLICIES,
        ROUTING,
    )
}
