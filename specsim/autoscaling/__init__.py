"""Autoscaling: how many replicas there are, decided anew as the load changes."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.core.blame import held_to, is_whole
from specsim.core.families import Family, Member
from specsim.routing import ReplicaView


@dataclass(frozen=True)
class PoolView:
    """What an autoscaler may know of the pool that it is in."""

    now: float  # seconds since the start of the run
    replicas: Sequence[ReplicaView]  # those that take requests
    name: str | None = None  # ``prefill`` or ``decode``; None without pools
    num_starting: int = 0
    num_draining: int = 0
    num_unrouted: int = 0  # requests that wait for any replica to be up
    limit_use: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Of each request that has ended since the last look: the share that it used of whichever limit
    of `slo` it came nearest to; 1 just keeps them all. Of the time that counts, only what the
    request spent in this pool: in the prefill pool until its prefill had ended, in the decode pool
    from then on."""

    @property
    def num_present(self) -> int:
        """Replicas that take requests or will."""
        return len(self.replicas) + self.num_starting


class Autoscaler(Member):
    """Decides how many replicas there are, as Kubernetes' horizontal pod autoscaler (HPA) does.

    Every `interval_s` it says how many replicas would be just enough. If that is further than
    `tolerance` from what there is, it is rounded up and kept within the bounds; and of what it said
    during the last `scale_in_delay_s`, the largest counts, so that it scales out at once and in
    with a delay. Defaults are those of HPA ("Horizontal Pod Autoscaling", kubernetes.io). New
    replicas take requests, with empty caches, after `start_up_s`. One that is to go, the one
    started last, takes no more and is gone when it has answered what it has; it is missed only at
    the next look.
    """

    kind: str
    min_replicas: int = Field(default=1, ge=0)
    max_replicas: int = Field(ge=1, le=100_000)
    """Slots for replicas: those that start, drain or have failed need theirs."""
    interval_s: float = Field(default=15.0, ge=1e-3)
    """Seconds between two looks."""
    start_up_s: float = Field(default=120.0, ge=0)
    """Seconds from the decision to the first request: a node, the image, weights, compilation."""
    scale_in_delay_s: float = Field(default=300.0, ge=0)
    """Seconds that fewer replicas must have been enough."""
    tolerance: float = Field(default=0.1, ge=0, lt=1)
    """Share of the replicas by which the number wanted must differ to count."""
    price_per_gpu_hour: float | None = Field(default=None, ge=0)
    """In whatever currency, of any GPU, a drafter's own among them; `specsim capacity` has examples
    of list prices."""
    looks_at_ends: ClassVar[bool] = False
    """Whether it asks for `PoolView.limit_use`, for which the experiment must have an `slo`."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas = {self.min_replicas} is more than max_replicas = "
                f"{self.max_replicas}; exchange them"
            )
        return self

    def num_started(self, replicas: int) -> int:
        """Return how many replicas are there from the beginning if so many are asked for."""
        return max(replicas, self.min_replicas)

    def start(self) -> Any:
        """Return a fresh memory for `enough` in one run; by default none."""
        return None

    @abstractmethod
    def enough(self, pool: PoolView, memory: Any) -> float:
        """Return how many replicas would be just enough, not rounded.

        Args:
            memory: From `start`; change it in place.
        """


def started_by(autoscaler: Autoscaler, replicas: int) -> int:
    """Return how many replicas there are from the beginning; a PluginError if that is no number."""
    number, most = autoscaler.num_started(replicas), autoscaler.max_replicas
    is_right = is_whole(number) and 0 <= number <= most
    held_to(autoscaler, "num_started", number, is_right, f"a whole number from 0 to {most}")
    return int(number)


AUTOSCALING = Family("autoscaling", Autoscaler)
