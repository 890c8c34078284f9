"""Up to which load a fixed k beats no speculation, and what the schedule gains at a load.

Better means a smaller mean end-to-end latency. Each k is compared with no speculation at loads up
to saturation, with additional loads where its speed-up falls through 1. The schedule is then
compared with the best fixed k and the oracle.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from math import log, nan
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from specsim.policies import Policy
from specsim.policies.references import OracleGoodput
from specsim.policies.static import Schedule
from specsim.results.stability import Stability, together
from specsim.study.loads import Loads, fixed_policy
from specsim.study.paired import SpeedUp, speed_up
from specsim.study.tune.batch import BatchTuning, Measurement, Trials, latency_ratio

_SHARES = (1 / 8, 1 / 2, 3 / 4, 7 / 8, 0.95)
"""First loads, as shares of the highest throughput of any k."""
_LOWEST = 1 / 64  # share below which it does not matter whether a k pays
_FINE = 1.15  # ratio of the two loads between which a crossover is interpolated
_MAX_ROUNDS = 8
_ROUNDS = 4  # requests of a run per request that is in the system at a time
_MIN_REQUESTS = 300


@dataclass(frozen=True)
class LoadSeries:
    """Which loads are worth simulating, and with how many requests."""

    loads: Loads
    capacities: list[float]
    """Highest load that each k, from 0, sustained in batches of some size."""
    curve: list[tuple[float, int]]  # (load, requests in the system) of the best k, both rising

    @classmethod
    def of(cls, loads: Loads, batches: BatchTuning) -> "LoadSeries":
        servers = loads.experiment.replicas
        ks = range(loads.experiment.max_draft_len + 1)
        points = batches.points + batches.beyond
        rates = [[point.requests_per_second(k) * servers for k in ks] for point in points]
        sizes = [point.batch_size * loads.num_batches * servers for point in points]
        if loads.is_closed:
            clients = sorted({*sizes, int(loads.own)})  # who do not fit wait; no overload
            return cls(loads, [float(clients[-1]) for _ in ks], [(float(n), n) for n in clients])
        best = np.maximum.accumulate([max(row) for row in rates]).tolist()
        return cls(loads, np.max(rates, axis=0).tolist(), list(zip(best, sizes, strict=True)))

    @property
    def capacity(self) -> float:
        return max(self.capacities)

    def start(self, k: int) -> set[float]:
        """Return the first loads, without those that neither k nor k = 0 sustains.

        At such loads latencies grow with the length of the run, and show nothing.
        """
        sustained = max(self.capacities[0], self.capacities[k])
        loads = [self.loads.possible(share * self.capacity) for share in _SHARES]
        return {load for load in loads if load <= sustained} or {min(loads)}

    def count(self, load: float) -> int:
        """Return the requests of a run at a load, several times as many as are in the system."""
        known_loads, in_system = zip(*self.curve, strict=True)
        expected = float(np.interp(load, known_loads, in_system))
        return max(_MIN_REQUESTS, round(_ROUNDS * expected))


@dataclass(frozen=True)
class LoadPoint:
    """A fixed k and no speculation at one load."""

    load: float
    off: list[Measurement]  # by replication
    own: list[Measurement]

    @property
    def speed_up(self) -> SpeedUp:
        """Speed-up of the mean end-to-end latency over no speculation."""
        return latency_ratio(self.off, self.own)


@dataclass(frozen=True)
class LoadCurve:
    """A fixed k at several loads."""

    k: int
    points: list[LoadPoint]  # ascending, up to the last load that k or k = 0 sustains


@dataclass(frozen=True)
class Crossover:
    """The load at which a fixed k stops beating no speculation."""

    k: int
    pays: Literal["always", "never", "below"]
    """``below`` the crossover load; ``always`` and ``never`` are over all simulated loads."""
    load: float | None  # None unless `pays` is ``below``
    low: float | None  # ends of the 95 % interval; None if it is open on that side
    high: float | None
    highest_load: float  # the last load, which k or k = 0 still sustains
    model_low: float | None = None
    """Ends of the interval if step times are off as on four in five measured servers; None if it is
    open, or that error is not known."""
    model_high: float | None = None


def find_crossovers(series: LoadSeries, trials: Trials) -> tuple[list[Crossover], list[LoadCurve]]:
    """Return the crossover loads of every k from 1, and their load curves."""
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

    def point(k: int, load: float) -> LoadPoint:
        return LoadPoint(load, measured[0, load], measured[k, load])

    return [LoadCurve(k, [point(k, load) for load in sorted(some)]) for k, some in wanted.items()]


def _next_load(series: LoadSeries, curve: LoadCurve) -> float | None:
    """Return a load between the two where k stops paying; None if they are close enough."""
    first = curve.points[0]
    if first.speed_up.mean <= 1:  # if it ever pays, it stops at a lower load
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
    low, high, model_low, model_high = (
        _falls_through_one(points, [getattr(p.speed_up, end) for p in points])
        for end in ("low", "high", "model_low", "model_high")
    )
    return Crossover(curve.k, "below", load, low, high, last, model_low, model_high)


def _falls_through_one(points: list[LoadPoint], speed_ups: list[float | None]) -> float | None:
    """Return the lowest load at which the speed-up falls through 1; None if not known."""
    logs = [nan if each is None else log(each) for each in speed_ups]
    for (left, above), (right, below) in pairwise(zip(points, logs, strict=True)):
        if above > 0 >= below:
            return float(left.load + (right.load - left.load) * above / (above - below))
    return None


_CHECKED = {"low": 1 / 8, "medium": 1 / 2, "high": 7 / 8}
"""Loads at which to check the schedule, as shares of the highest throughput."""
_NEAR = 1.25  # loads with a smaller ratio are not both checked


_Measured = dict[tuple[str, int | str], list[Measurement]]
"""By (name of the load, k or name of the policy)."""


@dataclass(frozen=True)
class LoadCheck:
    """The schedule and every fixed k at one load."""

    name: str  # ``own``, or ``low``, ``medium`` or ``high``
    load: float
    is_saturated: bool  # whether no k sustains it, so that latencies grow with the run
    fixed: list[list[Measurement]]  # by k, 0 is no speculation, then by replication
    schedule: list[Measurement]
    synchronous: dict[str, list[Measurement]]
    """``fixed`` (the best k over all loads), ``schedule`` and ``oracle`` under synchronous
    scheduling, which the oracle needs. Empty for pipelines, which cannot have it."""

    @property
    def best_fixed(self) -> int:
        """The k with the smallest mean latency at this load."""
        return int(_logs(self.fixed).mean(axis=1).argmin())

    def speed_up(self, group: list[Measurement]) -> SpeedUp:
        return latency_ratio(self.fixed[0], group)

    @property
    def stabilities(self) -> list[Stability]:
        """For every k, whether the server kept up with the load."""
        return [_stability(group) for group in self.fixed]

    def that_are(self, stability: Stability) -> list[int]:
        return [k for k, found in enumerate(self.stabilities) if found == stability]

    @property
    def oracle_over_schedule(self) -> SpeedUp | None:
        """Speed-up of the oracle over the schedule, under synchronous scheduling."""
        found = self.synchronous
        return latency_ratio(found["schedule"], found["oracle"]) if found else None

    @property
    def over_best_fixed(self) -> SpeedUp:
        """Speed-up of the schedule over the k that is best at this load."""
        return latency_ratio(self.fixed[self.best_fixed], self.schedule)


@dataclass(frozen=True)
class Check:
    """The schedule compared with the best fixed k over all loads."""

    WORTH: ClassVar[float] = 1.005
    """Least speed-up over a fixed k for which a schedule is worth its trouble. Where drafts matter
    little, as behind a full prefill pool, runs show differences that nobody would notice."""

    loads: list[LoadCheck]
    best_fixed: int
    """The k of the smallest geometric mean latency over all loads; 0 is no speculation."""
    over_best_fixed: SpeedUp
    """Speed-up of the schedule over that k, geometric mean over the sustained loads."""
    synchronous_over_best_fixed: SpeedUp | None
    """The same under synchronous scheduling; None for a pipeline, which has none."""
    oracle_over_best_fixed: SpeedUp | None
    """Speed-up of the oracle over that k, under synchronous scheduling."""

    @property
    def share_of_oracle(self) -> float | None:
        """Gain of the schedule over the best fixed k as a share of the oracle's gain.

        Of logarithms, both under synchronous scheduling; None if the oracle gains nothing.
        """
        oracle, schedule = self.oracle_over_best_fixed, self.synchronous_over_best_fixed
        if oracle is None or schedule is None or oracle.low is None or oracle.low <= 1:
            return None
        return float(np.log(schedule.mean) / np.log(oracle.mean))

    @property
    def schedule_pays(self) -> bool:
        """Whether the schedule beats the best fixed k, beyond doubt and by `WORTH`."""
        return self.over_best_fixed.low is not None and self.over_best_fixed.low >= self.WORTH


def check_schedule(
    series: LoadSeries, batches: BatchTuning, trials: Trials, *, with_oracle: bool
) -> Check:
    """Simulate a schedule, every fixed k, and the oracle if `with_oracle`."""
    schedule, ks = Schedule(ranges=batches.ranges), range(series.loads.experiment.max_draft_len + 1)
    named = _named_loads(series)

    def measure(policies: dict[Any, Policy], *, synchronous: bool) -> _Measured:
        trials_of = partial(series.loads.trials, synchronous=synchronous)
        pairs = product(named.items(), policies.items())
        return trials.measure(
            {
                (n, p): trials_of(policy, load, series.count(load))
                for (n, load), (p, policy) in pairs
            }
        )

    own = measure({**{k: fixed_policy(k) for k in ks}, "schedule": schedule}, synchronous=False)
    # An unsustained load would outweigh all others; with pools the prompts may cause it.
    sustained = [
        name
        for name, load in named.items()
        if load <= series.capacity and any(_stability(own[name, k]) != "overloaded" for k in ks)
    ] or [min(named, key=lambda name: named[name])]
    overall = partial(_overall, sustained)
    best = int(np.argmin([np.log(overall(own, k)).mean() for k in ks]))
    policies = {"fixed": fixed_policy(best), "schedule": schedule, "oracle": OracleGoodput()}
    policies = policies if with_oracle else {}
    same = measure(policies, synchronous=True)

    def over_fixed(label: str) -> SpeedUp | None:
        return speed_up(overall(same, "fixed"), overall(same, label)) if policies else None

    return Check(
        loads=[
            LoadCheck(
                name,
                load,
                name not in sustained,
                [own[name, k] for k in ks],
                own[name, "schedule"],
                {label: same[name, label] for label in policies},
            )
            for name, load in sorted(named.items(), key=lambda item: item[1])
        ],
        best_fixed=best,
        over_best_fixed=speed_up(overall(own, best), overall(own, "schedule")),
        synchronous_over_best_fixed=over_fixed("schedule"),
        oracle_over_best_fixed=over_fixed("oracle"),
    )


def _overall(names: list[str], measured: _Measured, label: int | str) -> list[float]:
    """Return the geometric mean over loads of each replication's latency."""
    logs = _logs([measured[name, label] for name in names])
    means: list[float] = np.exp(logs.mean(axis=0)).tolist()
    return means


def _named_loads(series: LoadSeries) -> dict[str, float]:
    """Return the experiment's own load and the loads of `_CHECKED`, without near duplicates."""
    own = series.loads.own
    others = {
        name: series.loads.possible(share * series.capacity) for name, share in _CHECKED.items()
    }
    apart = {name: load for name, load in others.items() if not 1 / _NEAR < load / own < _NEAR}
    return {"own": own, **apart}


def _stability(group: list[Measurement]) -> Stability:
    return together(m.stability for m in group)


def _logs(groups: list[list[Measurement]]) -> NDArray[np.float64]:
    return np.log([[m.e2e_latency for m in group] for group in groups])
