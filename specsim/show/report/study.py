"""Study: what a report is made from, whatever folder it was read from."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["HARDWARE", "LOAD", "OTHER", "POLICY", "Axis", "Point", "Study"]

HARDWARE, POLICY, LOAD, OTHER = "hardware", "policy", "load", "other"


@dataclass(frozen=True)
class Axis:
    """One thing that differs between the runs, or that they have in common."""

    role: str
    """``hardware``, ``policy``, ``load`` (the horizontal axis of what is drawn over load), or
    ``other``."""
    title: str
    """Such as ``Request rate``."""
    unit: str
    """Such as ``requests/s``; empty of what has none."""
    field: str
    """Such as ``workload.arrivals.rate``."""
    labels: list[str]
    """Of its values, in order."""
    numbers: list[float] | None = None
    """The values, where all of them are numbers."""


@dataclass(frozen=True)
class Point:
    """One run."""

    number: int
    places: tuple[int, ...]
    """Index of its value on each axis of the study."""
    replication: int
    seed: int
    config_hash: str | None
    """None where the configuration was not valid."""
    error: str | None = None
    """Why it came to nothing, in one line."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Under the names of ``summary.json``."""
    distributions: dict[str, list[float]] = field(default_factory=dict)
    """Quantiles at equal steps from 0 to 100 %, of ``ttft_ms``, ``tpot_ms`` and ``e2el_ms``."""
    timeline: dict[str, list[float | None]] = field(default_factory=dict)
    """``time_s``, and beside it ``running``, ``waiting``, ``kv_usage`` and ``draft_len``."""
    breakdown: dict[str, float] = field(default_factory=dict)
    """Seconds: ``target_s``, ``draft_s``, ``overhead_s`` and ``idle_s``."""


@dataclass(frozen=True)
class Study:
    """Some runs, and along which axes they differ."""

    kind: str
    """``sweep``, ``comparison``, ``run`` or ``capacity``."""
    title: str
    axes: list[Axis]
    """Hardware, policy and load first, each present even with a single value."""
    points: list[Point]
    num_expected: int
    """Runs that were asked for; more than there are points if it is not finished."""
    draft_lens: list[int | None]
    """Draft length that each policy always asks for; 0 of no speculation, None if it decides."""
    profiles: list[str]
    """Profile of each hardware, as configured."""
    config: str
    """What was run, as YAML."""
    version: str
    """Of specsim, by which the runs were made."""
    prices: dict[str, float] = field(default_factory=dict)
    """Of the GPUs of one replica, per hour, by label of the hardware, where known."""
    currency: str = "USD"
    price_date: str = ""
    warnings: list[str] = field(default_factory=list)
    capacity: dict[str, Any] | None = None
    """What each hardware sustains under each policy, where that was asked for."""

    @property
    def baseline(self) -> int | None:
        """Index of the policy that does not speculate; None if there is none."""
        return self.draft_lens.index(0) if 0 in self.draft_lens else None

    @property
    def finished(self) -> list[Point]:
        """The runs that came to an end."""
        return [point for point in self.points if point.error is None]

    @property
    def failed(self) -> list[Point]:
        """The runs that came to nothing."""
        return [point for point in self.points if point.error is not None]

    def axis(self, role: str) -> Axis:
        """Return the axis of a role other than ``other``."""
        return next(axis for axis in self.axes if axis.role == role)

    def place(self, point: Point, role: str) -> int:
        """Return the index of a point's value on the axis of a role."""
        return next(
            place for place, axis in zip(point.places, self.axes, strict=True) if axis.role == role
        )
