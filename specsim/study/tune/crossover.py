"""Up to which load a fixed k is better than no speculation.

Better is a smaller mean end-to-end latency. Each k is compared with no speculation at a series of
loads up to saturation, and where its speed-up falls through 1 the series is made denser.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from specsim.study.loads import Loads, fixed_policy
from specsim.study.paired import SpeedUp
from specsim.study.tune.batch import BatchTuning
from specsim.study.tune.trials import Trials, latency_ratio

_SHARES = (1 / 8, 1 / 2, 3 / 4, 7 / 8, 0.95)
"""Loads to begin with, as shares of the highest throughput of any k."""
_LOWEST = 1 / 64
"""Share below which nobody asks whether a k pays."""
_FINE = 1.15  # ratio of the two loads between which a crossover is interpolated
_MAX_ROUNDS = 8
_ROUNDS = 4  # requests per request that is in the system at a time
_MIN_REQUESTS = 300


@dataclass(frozen=True)
class LoadSeries:
    """Which loads are worth simulating, and for how long."""

    loads: Loads
    capacities: list[float]
    """Highest load that each k sustains, from 0, as the batch sizes showed it."""
    curve: list[tuple[float, int]]
    """(load, requests in the system) of the best k, both rising."""

    @classmethod
    def of(cls, loads: Loads, batches: BatchTuning) -> "LoadSeries":
        """Return the series that the throughput by batch size suggests."""
        replicas = loads.experiment.replicas
        ks = range(loads.experiment.max_draft_len + 1)
        rates = [[point.requests_per_second(k) * replicas for k in ks] for point in batches.points]
        sizes = [point.batch_size * replicas for point in batches.points]
        if loads.is_closed:
            clients = sorted({*sizes, int(loads.own)})  # more than fit wait, which is no overload
            return cls(loads, [float(clients[-1]) for _ in ks], [(float(n), n) for n in clients])
        best = np.maximum.accumulate([max(row) for row in rates]).tolist()
        return cls(loads, np.max(rates, axis=0).tolist(), list(zip(best, sizes, strict=True)))

    @property
    def capacity(self) -> float:
        """Highest load that any k sustains."""
        return max(self.capacities)

    def start(self, k: int) -> set[float]:
        """Return the loads to begin with, those left out that neither k nor k = 0 sustains.

        Beyond them latencies grow with the length of the run, and say nothing.
        """
        sustained = max(self.capacities[0], self.capacities[k])
        loads = [self.loads.possible(share * self.capacity) for share in _SHARES]
        return {load for load in loads if load <= sustained} or {min(loads)}

    def count(self, load: float) -> int:
        """Return how many requests a run at a load takes, several times what it holds at once."""
        known_loads, in_system = zip(*self.curve, strict=True)
        expected = float(np.interp(load, known_loads, in_system))
        return max(_MIN_REQUESTS, round(_ROUNDS * expected))


@dataclass(frozen=True)
class LoadPoint:
    """A fixed k and no speculation at one load."""

    load: float
    speed_up: SpeedUp
    """Of the mean end-to-end latency over no speculation."""


@dataclass(frozen=True)
class LoadCurve:
    """A fixed k over the load."""

    k: int
    points: list[LoadPoint]
    """By load, up to the last that one of the two sustains."""


@dataclass(frozen=True)
class Crossover:
    """Where a fixed k stops being better than no speculation."""

    k: int
    pays: Literal["always", "never", "below"]
    """``below`` the crossover load; ``always`` and ``never`` hold for all loads looked at."""
    load: float | None
    """None unless `pays` is ``below``."""
    low: float | None
    """Ends of the 95 % interval; None where it is open."""
    high: float | None
    highest_load: float
    """The last load looked at, which one of the two still sustains."""


def find_crossovers(series: LoadSeries, trials: Trials) -> tuple[list[Crossover], list[LoadCurve]]:
    """Find the crossover load of every k.

    Returns:
        By k from 1: the crossovers, and what they rest on.
    """
    ks = range(1, series.loads.experiment.max_draft_len + 1)
    wanted = {k: series.start(k) for k in ks}
    for _ in range(_MAX_ROUNDS):
        curves = _measured(series, trials, wanted)
        new = {curve.k: _next_load(series, curve) for curve in curves}
        if not any(new.values()):
            break
        for k, load in new.items():
            wanted[k] |= {load} if load is not None else set()
    return [_crossover(curve) for curve in curves], curves


def _measured(series: LoadSeries, trials: Trials, wanted: dict[int, set[float]]) -> list[LoadCurve]:
    pairs = [(k, load) for k, some in wanted.items() for load in some]
    everything = sorted({*pairs, *((0, load) for _, load in pairs)})
    measured = trials.measure(
        {
            (k, load): series.loads.trials(fixed_policy(k), load, series.count(load))
            for k, load in everything
        }
    )
    return [
        LoadCurve(
            k,
            [
                LoadPoint(load, latency_ratio(measured[0, load], measured[k, load]))
                for load in sorted(some)
            ],
        )
        for k, some in wanted.items()
    ]


def _next_load(series: LoadSeries, curve: LoadCurve) -> float | None:
    """Return a load between the two where k stops paying; None if they are close enough."""
    first = curve.points[0]
    if first.speed_up.mean <= 1:  # it stops further down, if it ever pays
        lower = series.loads.possible(first.load / 2)
        return lower if _LOWEST * series.capacity <= lower < first.load else None
    for left, right in pairwise(curve.points):
        if left.speed_up.mean > 1 >= right.speed_up.mean:
            middle = series.loads.possible((left.load * right.load) ** 0.5)
            is_between = left.load < middle < right.load
            return middle if is_between and right.load > _FINE * left.load else None
    return None


def _crossover(curve: LoadCurve) -> Crossover:
    points, last = curve.points, curve.points[-1].load
    if points[0].speed_up.mean <= 1:
        return Crossover(curve.k, "never", None, None, None, last)
    load = _falls_through_one(points, [p.speed_up.mean for p in points])
    if load is None:
        return Crossover(curve.k, "always", None, None, None, last)
    low = _falls_through_one(points, [p.speed_up.low or 0.0 for p in points])
    high = _falls_through_one(points, [p.speed_up.high or 0.0 for p in points])
    return Crossover(curve.k, "below", load, low, high, last)


def _falls_through_one(points: list[LoadPoint], speed_ups: list[float]) -> float | None:
    """Return the lowest load at which an interpolated speed-up is down to 1; None if it never is.

    Also None if it is so from the first load on: where it falls through 1 is then not known.
    """
    logs = np.log(speed_ups)
    for (left, above), (right, below) in pairwise(zip(points, logs, strict=True)):
        if above > 0 >= below:
            return float(left.load + (right.load - left.load) * above / (above - below))
    return None
