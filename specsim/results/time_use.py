"""Where the time went: target, draft, overhead and idle, by batch size.

Shares are of the wall clock of all replicas and add up to 1, unlike those of
`specsim.results.metrics.time_shares`, which are of busy time and count overhead also where
asynchronous scheduling hides it behind the GPU. Liu et al. (2024), "TurboSpec", fig. 16.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.results.folder import StepsTable

__all__ = ["PARTS", "TimeRow", "TimeUse", "time_use"]

PARTS = ("target", "draft", "overhead", "idle")


@dataclass(frozen=True)
class TimeRow:
    """The time of the steps of some batch sizes."""

    sizes: tuple[int, int]
    """First and last batch size, requests; (0, 0) is the time without any."""
    num_steps: int
    share: float
    """Of the time of all replicas, in [0, 1]."""
    parts: dict[str, float]
    """Share of each of `PARTS` in the row's own time; they add up to 1."""

    @property
    def label(self) -> str:
        """The batch sizes as a reader would say them."""
        first, last = self.sizes
        return str(first) if first == last else f"{first}-{last}"


@dataclass(frozen=True)
class TimeUse:
    """How the time of all replicas divides."""

    overall: TimeRow
    rows: list[TimeRow]
    """By batch size, in powers of two; those without a step are left out."""
    hidden_overhead_share: float
    """Overhead that the GPU did not wait for, as a share of the time of all replicas."""


def time_use(steps: StepsTable, num_replicas: int) -> TimeUse:
    """Return how the time from the first step scheduled to the last one ended divides.

    Args:
        steps: Of all replicas.
        num_replicas: Those that ran no step were idle.
    """
    overhead = np.concatenate([_waited_for(steps.of_replica(r)) for r in steps.replicas])
    seconds = {"target": steps["target_time"], "draft": steps["draft_time"], "overhead": overhead}
    start, end = steps.span
    total = num_replicas * (end - start)
    idle = _unless_rounding(total - sum(float(v.sum()) for v in seconds.values()), total)
    powers = np.frexp(steps["num_requests"])[1] - 1
    largest = int(steps["num_requests"].max())
    rows = [_row((0, 0), {}, idle, total)] if idle > 0 else []
    for power in np.unique(powers):
        mine = {name: values[powers == power] for name, values in seconds.items()}
        first = 1 << int(power)
        rows.append(_row((first, min(2 * first - 1, largest)), mine, 0.0, total))
    hidden = _unless_rounding(float((steps["overhead_time"] - overhead).sum()), total)
    return TimeUse(
        overall=_row((0, largest), seconds, idle, total),
        rows=rows,
        hidden_overhead_share=hidden / total,
    )


def _unless_rounding(value: float, whole: float) -> float:
    """Return a difference, or 0 where it is no more than the rounding error of a sum."""
    return value if value > 1e-9 * whole else 0.0


def _row(
    sizes: tuple[int, int], seconds: dict[str, NDArray[Any]], idle: float, total: float
) -> TimeRow:
    parts = {name: float(values.sum()) for name, values in seconds.items()}
    parts = {**dict.fromkeys(PARTS, 0.0), **parts, "idle": idle}
    own = sum(parts.values())
    return TimeRow(
        sizes=sizes,
        num_steps=len(next(iter(seconds.values()), ())),
        share=own / total,
        parts={name: value / own for name, value in parts.items()},
    )


def _waited_for(steps: StepsTable) -> NDArray[np.float64]:
    """Return, per step of one replica, the overhead during which the GPU had nothing to do.

    Synchronous scheduling has it after the GPU's work, before the next step is scheduled;
    asynchronous scheduling before it, as far as the step before has left the GPU.
    """
    gpu_done = steps["started_at"] + steps["target_time"] + steps["draft_time"]
    ready = steps["scheduled_at"].copy()
    np.maximum(ready[1:], gpu_done[:-1], out=ready[1:])
    before = np.maximum(steps["started_at"] - ready, 0.0)
    after = np.maximum(steps.held_until - gpu_done, 0.0)
    return np.asarray(before + after, dtype=np.float64)
