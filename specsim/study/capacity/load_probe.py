"""LoadProbe: what a server does at one load, in one run or over all replications."""

from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from specsim.profile import Profile
from specsim.results.metrics import is_unstable, keeps_limits, latency, ttft
from specsim.results.slo import Slo
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study.loads import Trial, steady_window
from specsim.workload.arrivals.synthetic import ClosedLoop

_LONGEST = 0.25  # mean latency, as a share of the time in which requests arrive


@dataclass(frozen=True)
class Task:
    """One simulation, and the limits that its requests are held against."""

    load: float
    trial: Trial
    profile: Profile
    slo: Slo
    tolerance: float
    """Smallest share by which answers must fall behind arrivals to be found too few."""


@dataclass(frozen=True)
class LoadProbe:
    """A load that was tried, and what is kept of its simulations."""

    load: float
    """Requests/s or clients."""
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

    @classmethod
    def over(cls, runs: "list[LoadProbe]") -> "LoadProbe":
        """Return the mean of several runs at one load, none of which may be at fault."""
        return cls(
            load=runs[0].load,
            attainment=fmean(run.attainment for run in runs),
            is_unstable=any(run.is_unstable for run in runs),
            is_too_short=any(run.is_too_short for run in runs),
            requests_per_second=fmean(run.requests_per_second for run in runs),
            mean_output_len=fmean(run.mean_output_len for run in runs),
            latencies_ms={
                name: fmean(run.latencies_ms[name] for run in runs) for name in runs[0].latencies_ms
            },
        )

    def is_sustained(self, attainment: float) -> bool:
        """Return whether enough requests kept their limits and the backlog was seen not to grow."""
        return self.attainment >= attainment and not (self.is_unstable or self.is_too_short)


def measure(task: Task) -> LoadProbe:
    """Run a simulation and return what is kept of it."""
    trial = task.trial
    run = simulate(
        trial.experiment, requests=trial.requests(), profile=task.profile, keeps_steps=False
    )
    tables = Summary(run).tables
    requests, arrivals = tables.requests, trial.experiment.workload.arrivals
    arrived_at, ended_at = requests["arrived_at"], requests["ended_at"]
    order = np.argsort(arrived_at, kind="stable")
    steady = order[len(order) // 5 : len(order) - len(order) // 10]
    start, end = steady_window(requests, arrivals)
    lasts_long = float(latency(requests).mean()) > _LONGEST * float(np.ptp(arrived_at))
    return LoadProbe(
        load=task.load,
        attainment=float(keeps_limits(tables, task.slo)[steady].mean()),
        is_unstable=is_unstable(arrived_at, ended_at, task.tolerance),
        is_too_short=lasts_long and not isinstance(arrivals, ClosedLoop),  # never overloaded
        requests_per_second=float(((ended_at > start) & (ended_at <= end)).sum() / (end - start)),
        mean_output_len=float(requests["output_len"].mean()),
        latencies_ms=_statistics(requests[steady]),
    )


def _statistics(requests: NDArray[np.void]) -> dict[str, float]:
    """Return statistics of latencies, milliseconds; the TPOT of a single token is 0."""
    first, whole = ttft(requests), latency(requests)
    per_token = (whole - first) / np.maximum(requests["output_len"] - 1, 1)
    samples = {"ttft": first * 1e3, "tpot": per_token * 1e3, "e2el": whole * 1e3}
    means = {f"mean_{name}_ms": float(values.mean()) for name, values in samples.items()}
    return means | {
        f"p{percentile}_{name}_ms": float(np.percentile(values, percentile))
        for name, values in samples.items()
        for percentile in (50, 99)
    }
