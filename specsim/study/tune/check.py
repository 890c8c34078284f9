"""What the schedule gains over the best fixed k, and how much of the oracle's gain that is."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.policies import Policy
from specsim.policies.oracle import OracleGoodput
from specsim.policies.schedule import Schedule
from specsim.study.loads import fixed_policy
from specsim.study.paired import SpeedUp, speed_up
from specsim.study.tune.batch import BatchTuning
from specsim.study.tune.crossover import LoadSeries
from specsim.study.tune.trials import Measurement, Trials, latency_ratio

_SHARES = {"low": 1 / 8, "medium": 1 / 2, "high": 7 / 8}
"""Loads to check at beside the experiment's own, as shares of the highest throughput."""
_NEAR = 1.25  # ratio of two loads that need not both be checked


_Measured = dict[tuple[str, int | str], list[Measurement]]
"""By the name of a load and a k, or what else a policy is called."""


@dataclass(frozen=True)
class LoadCheck:
    """The schedule and every fixed k at one load."""

    name: str
    """``own``, or ``low``, ``medium`` or ``high``."""
    load: float
    is_saturated: bool
    """Whether no k sustains it; then latencies grow with the length of the run."""
    fixed: list[list[Measurement]]
    """By k, 0 without speculation, then by replication."""
    schedule: list[Measurement]
    synchronous: dict[str, list[Measurement]]
    """``fixed`` (the best k over all loads), ``schedule`` and ``oracle``, none of which schedules
    asynchronously, because the oracle cannot."""

    @property
    def best_fixed(self) -> int:
        """The k of the smallest mean latency at this load."""
        return int(_logs(self.fixed).mean(axis=1).argmin())

    def speed_up(self, group: list[Measurement]) -> SpeedUp:
        """Return a policy's speed-up over no speculation."""
        return latency_ratio(self.fixed[0], group)

    @property
    def oracle_over_schedule(self) -> SpeedUp:
        """Speed-up of the oracle over the schedule, under synchronous scheduling."""
        return latency_ratio(self.synchronous["schedule"], self.synchronous["oracle"])

    @property
    def over_best_fixed(self) -> SpeedUp:
        """Speed-up of the schedule over the k that is best at this load."""
        return latency_ratio(self.fixed[self.best_fixed], self.schedule)


@dataclass(frozen=True)
class Check:
    """The schedule against one fixed k for all loads."""

    loads: list[LoadCheck]
    best_fixed: int
    """The k of the smallest latency over all loads, by geometric mean; 0 without speculation."""
    over_best_fixed: SpeedUp
    """Speed-up of the schedule over that k, by geometric mean over the sustained loads."""
    synchronous_over_best_fixed: SpeedUp
    """The same under synchronous scheduling."""
    oracle_over_best_fixed: SpeedUp
    """Speed-up of the oracle over that k, under synchronous scheduling."""

    @property
    def share_of_oracle(self) -> float | None:
        """What the schedule gains over the best fixed k as a share of what the oracle gains.

        Of the logarithms, both under synchronous scheduling; None if the oracle gains nothing.
        """
        oracle = self.oracle_over_best_fixed
        if oracle.low is None or oracle.low <= 1:
            return None
        return float(np.log(self.synchronous_over_best_fixed.mean) / np.log(oracle.mean))

    @property
    def schedule_pays(self) -> bool:
        """Whether the schedule is better than the best fixed k beyond doubt."""
        return self.over_best_fixed.low is not None and self.over_best_fixed.low > 1


def check_schedule(series: LoadSeries, batches: BatchTuning, trials: Trials) -> Check:
    """Simulate a schedule against every fixed k and the oracle."""
    schedule, ks = Schedule(ranges=batches.ranges), range(series.loads.experiment.max_draft_len + 1)
    named = _named_loads(series)
    # A load that nothing sustains would outweigh all others.
    sustained = [name for name, load in named.items() if load <= series.capacity]

    def measure(policies: dict[Any, Policy], *, synchronous: bool) -> _Measured:
        return trials.measure(
            {
                (name, label): series.loads.trials(
                    policy, load, series.count(load), synchronous=synchronous
                )
                for name, load in named.items()
                for label, policy in policies.items()
            }
        )

    def overall(measured: _Measured, label: int | str) -> list[float]:
        """Return the geometric mean over loads of each replication's latency."""
        logs = _logs([measured[name, label] for name in sustained])
        means: list[float] = np.exp(logs.mean(axis=0)).tolist()
        return means

    own = measure({**{k: fixed_policy(k) for k in ks}, "schedule": schedule}, synchronous=False)
    best = int(np.argmin([np.log(overall(own, k)).mean() for k in ks]))
    policies = {"fixed": fixed_policy(best), "schedule": schedule, "oracle": OracleGoodput()}
    same = measure(policies, synchronous=True)
    return Check(
        loads=[
            LoadCheck(
                name,
                load,
                load > series.capacity,
                [own[name, k] for k in ks],
                own[name, "schedule"],
                {label: same[name, label] for label in policies},
            )
            for name, load in sorted(named.items(), key=lambda item: item[1])
        ],
        best_fixed=best,
        over_best_fixed=speed_up(overall(own, best), overall(own, "schedule")),
        synchronous_over_best_fixed=speed_up(overall(same, "fixed"), overall(same, "schedule")),
        oracle_over_best_fixed=speed_up(overall(same, "fixed"), overall(same, "oracle")),
    )


def _named_loads(series: LoadSeries) -> dict[str, float]:
    """Return the experiment's own load, and others that are not almost the same."""
    own = series.loads.own
    others = {
        name: series.loads.possible(share * series.capacity) for name, share in _SHARES.items()
    }
    apart = {name: load for name, load in others.items() if not 1 / _NEAR < load / own < _NEAR}
    return {"own": own, **apart}


def _logs(groups: list[list[Measurement]]) -> NDArray[np.float64]:
    return np.log([[m.e2e_latency for m in group] for group in groups])
