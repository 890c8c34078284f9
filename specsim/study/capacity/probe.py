"""Probe: what a server does at one load, over all replications."""

from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from specsim.profile import Profile
from specsim.results.metrics import is_unstable, keeps_limits
from specsim.results.slo import Slo
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study.loads import Trial, steady_window
from specsim.workload.arrivals.closed_loop import ClosedLoop

__all__ = ["Measured", "Probe", "Task", "measure"]

_PERCENTILES = (50, 99)
_LONGEST = 0.25  # mean latency, as a share of the time in which requests arrive


@dataclass(frozen=True)
class Task:
    """One simulation, and the limits that its requests are held against."""

    trial: Trial
    profile: Profile
    slo: Slo
    tolerance: float
    """Smallest share by which answers must fall behind arrivals to be found too few."""


@dataclass(frozen=True)
class Measured:
    """What is kept of a simulation."""

    attainment: float
    """Share of the requests that kept all limits. Of those that arrived after the first fifth, for
    the server fills up during that, and before the last tenth."""
    is_unstable: bool
    """Whether the backlog grew as long as requests arrived."""
    is_too_short: bool
    """Whether requests took more than a quarter of the time in which they arrived: then the server
    may hold a backlog that has had no time to show."""
    requests_per_second: float
    """Answered, while requests arrived and the server was full."""
    mean_output_len: float
    """Tokens per request."""
    latencies_ms: dict[str, float]
    """Of the same requests as `attainment`: ``mean_e2el_ms``, ``p99_ttft_ms`` and so on."""


@dataclass(frozen=True)
class Probe:
    """A load, and what all replications measured at it."""

    load: float
    """Requests/s or clients."""
    measured: list[Measured]

    @property
    def attainment(self) -> float:
        """Share of the requests that kept all limits, over all replications."""
        return fmean(each.attainment for each in self.measured)

    @property
    def is_unstable(self) -> bool:
        """Whether the backlog grew in any replication."""
        return any(each.is_unstable for each in self.measured)

    @property
    def is_too_short(self) -> bool:
        """Whether any replication was too short to tell."""
        return any(each.is_too_short for each in self.measured)

    def is_sustained(self, attainment: float) -> bool:
        """Return whether enough requests kept their limits and the backlog was seen not to grow."""
        return self.attainment >= attainment and not (self.is_unstable or self.is_too_short)

    @property
    def requests_per_second(self) -> float:
        """Answered requests, mean of the replications."""
        return fmean(each.requests_per_second for each in self.measured)

    @property
    def mean_output_len(self) -> float:
        """Tokens per request, mean of the replications."""
        return fmean(each.mean_output_len for each in self.measured)

    @property
    def latencies_ms(self) -> dict[str, float]:
        """Means over the replications."""
        return {
            name: fmean(each.latencies_ms[name] for each in self.measured)
            for name in self.measured[0].latencies_ms
        }


def measure(task: Task) -> Measured:
    """Run a simulation and return what is kept of it.

    Raises:
        SpecsimError: It cannot be run.
    """
    run = simulate(
        task.trial.experiment,
        requests=task.trial.requests(),
        profile=task.profile,
        keeps_steps=False,
    )
    summary = Summary(run)
    requests = summary.tables.requests
    steady = _steady(requests)
    samples = _latencies(requests[steady])
    return Measured(
        attainment=float(keeps_limits(summary.tables, task.slo)[steady].mean()),
        is_unstable=is_unstable(requests["arrived_at"], requests["ended_at"], task.tolerance),
        is_too_short=_is_too_short(requests, task),
        requests_per_second=_answered_per_second(requests, task),
        mean_output_len=float(requests["output_len"].mean()),
        latencies_ms={
            **{f"mean_{name}_ms": float(values.mean()) for name, values in samples.items()},
            **{
                f"p{percentile}_{name}_ms": float(np.percentile(values, percentile))
                for name, values in samples.items()
                for percentile in _PERCENTILES
            },
        },
    )


def _steady(requests: NDArray[np.void]) -> NDArray[np.int64]:
    order = np.argsort(requests["arrived_at"], kind="stable")
    return order[len(order) // 5 : len(order) - len(order) // 10]


def _latencies(requests: NDArray[np.void]) -> dict[str, NDArray[np.float64]]:
    """Return latencies of some requests, milliseconds; the TPOT of a single token is 0."""
    ttft = requests["first_token_at"] - requests["arrived_at"]
    e2el = requests["ended_at"] - requests["arrived_at"]
    tpot = (e2el - ttft) / np.maximum(requests["output_len"] - 1, 1)
    return {"ttft": ttft * 1e3, "tpot": tpot * 1e3, "e2el": e2el * 1e3}


def _is_too_short(requests: NDArray[np.void], task: Task) -> bool:
    if isinstance(task.trial.experiment.workload.arrivals, ClosedLoop):
        return False  # cannot be overloaded
    latency = float((requests["ended_at"] - requests["arrived_at"]).mean())
    return latency > _LONGEST * float(np.ptp(requests["arrived_at"]))


def _answered_per_second(requests: NDArray[np.void], task: Task) -> float:
    ends = requests["ended_at"]
    start, end = steady_window(requests, task.trial.experiment.workload.arrivals)
    return float(((ends > start) & (ends <= end)).sum() / (end - start))
