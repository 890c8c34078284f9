"""Plug-ins that do in Python what members of specsim's own do in its compiled loop."""

from collections.abc import Sequence
from typing import Any

from specsim.core.step import StepLoad
from specsim.latency import LatencyModel, NestedLatency
from specsim.policies.goodput import Goodput
from specsim.policies.joint import Joint
from specsim.policies.static import Schedule


class Uncompiled(LatencyModel):
    """Another latency model, asked at every step."""

    kind: str = "uncompiled"
    inner: NestedLatency

    @property
    def uses_pieces(self) -> bool:
        """As the other."""
        return self.inner.uses_pieces

    def in_lock_step(self, data_parallel_size: int, *, expert_parallel: bool) -> LatencyModel:
        """Return the other as that of ranks."""
        inner = self.inner.in_lock_step(data_parallel_size, expert_parallel=expert_parallel)
        return self.model_copy(update={"inner": inner})

    def in_graphs(self, sizes: tuple[int, ...] | None, default: tuple[int, ...]) -> LatencyModel:
        """Return the other with an engine's CUDA graphs."""
        return self.model_copy(update={"inner": self.inner.in_graphs(sizes, default)})

    def lock_step_time(self, loads: Sequence[StepLoad]) -> float:
        """Return what the other says."""
        return self.inner.lock_step_time(loads)

    def forward_time(self, load: StepLoad) -> float:
        """Return what the other says."""
        return self.inner.forward_time(load)


class PythonGoodput(Goodput):
    """Asked in Python at every step."""

    kind: str = "python_goodput"
    is_asked_in_loops = property(lambda self: False)


class PythonSchedule(Schedule):
    """Asked at every step."""

    kind: str = "python_schedule"

    def lens_by_size(self, largest: int, memory: Any) -> None:
        """Have no table."""


class PythonJoint(Joint):
    """Likewise."""

    kind: str = "python_joint"
    is_asked_in_loops = property(lambda self: False)
