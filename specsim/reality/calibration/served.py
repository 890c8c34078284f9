"""What a run of an engine of our own leaves, and what a calibration asks of such an engine."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from specsim.core.request import Request
from specsim.profile import Profile
from specsim.reality.host_speed import HostSpeed
from specsim.reality.profile_fit.grid import GridPoint, Sample
from specsim.reality.run_writer import RequestRow, RunWriter, StepRow
from specsim.run.experiment import Experiment

__all__ = ["Served", "Spans", "SteppedEngine"]


class Spans(NamedTuple):
    """Where the time of one step went, seconds."""

    num_requests: int
    target: float
    draft: float
    overhead: float
    """Scheduling, decisions, and what is between the forward passes."""


@dataclass
class Served:
    """What came of a run; rows in the order in which they came about."""

    requests: list[RequestRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    spans: list[Spans] = field(default_factory=list)
    probes: list[tuple[float, float]] = field(default_factory=list)
    """When the machine's speed was probed, the run's clock standing still, and how long that took,
    seconds; empty if the engine does not probe."""

    @property
    def host_speed(self) -> HostSpeed | None:
        """What the probes say; None without."""
        return HostSpeed.of(self.probes) if self.probes else None

    def slowness(self, usual: float) -> list[float]:
        """Return of each step how many times as long as usual it took; 1 without probes.

        Args:
            usual: What a probe takes on the machine that all is expressed for, seconds.
        """
        speed = self.host_speed
        if speed is None:
            return [1.0] * len(self.steps)
        middles = np.array([step["started_at"] + step["seconds"] / 2 for step in self.steps])
        found: list[float] = speed.slowness(middles, usual).tolist()
        return found

    def write(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write the run's folder; see `RunWriter`."""
        with RunWriter(folder, meta) as writer:
            for request in self.requests:
                writer.add_request(request)
            for step in self.steps:
                writer.add_step(step)
            for at, seconds in self.probes:
                writer.add_probe(at, seconds)


class SteppedEngine(Protocol):
    """An engine that can be profiled step by step, and that serves experiments."""

    @property
    def description(self) -> dict[str, Any]:
        """What it is and what it runs on, for ``meta.json``."""

    @property
    def drafter_gib(self) -> float:
        """Memory of the draft model's own weights, GiB."""

    @property
    def drafter_kv_bytes(self) -> float:
        """Memory of the draft model's KV cache, bytes per token."""

    def measure(self, points: Iterable[GridPoint]) -> Iterator[Sample]:
        """Run steps of given sizes, one after the other, and time them."""

    def serve(
        self,
        experiment: Experiment,
        profile: Profile,
        requests: list[Request],
        *,
        is_synthetic: bool,
    ) -> Served:
        """Serve what `specsim.run.simulate.simulate` simulates, from the same arguments."""
