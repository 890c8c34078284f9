"""Search: the largest load that is sustained, by bracketing and bisection, and loads below it.

A generator, which asks for a load and is sent whether that is sustained: so many searches can go on
side by side, and a closed form can stand for the simulations of a `LoadProbe`.
"""

from collections.abc import Generator
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from specsim.profile import Profile
from specsim.results.metrics import Slo, is_unstable, keeps_limits, latency, ttft
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study.capacity.choices import Goal
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


SHARES = (0.25, 0.5, 0.75)
"""Of the capacity: where else latency and cost are looked at."""

_DOWN = 2.0
_UP = 1.25  # the start is near saturation, so that one step up is mostly enough
_LOWEST = 1 / 64
_HIGHEST = 64.0


@dataclass(frozen=True)
class Bracket:
    """Between which loads a server ceases to keep its limits."""

    sustained: float | None
    """The largest load that was seen to be sustained; None if even the lowest was not."""
    exceeded: float | None
    """The smallest that was seen not to be; None if even the highest was sustained."""


def largest_sustained(
    start: float, tolerance: float, *, is_whole: bool = False
) -> Generator[float, bool, Bracket]:
    """Search for the largest sustained load.

    Args:
        start: Where to begin, best near saturation; a 64th to 64 times of it are covered.
        tolerance: Ratio, less 1, of the two ends of the bracket at which to stop.
        is_whole: Whether loads are whole numbers of at least 1.

    Yields:
        A load to try; to be answered by whether it is sustained.
    """
    step = 1.0 if is_whole else 0.0
    load = start = _possible(start, is_whole)
    low: float | None = None
    high: float | None = None
    while low is None or high is None:
        if (yield load):
            low = load
        else:
            high = load
        if high is None:
            load = max(load + step, _possible(load * _UP, is_whole))
            if load > start * _HIGHEST:
                return Bracket(low, None)
        elif low is None:
            load = _possible(load / _DOWN, is_whole)
            if load == high or load < start * _LOWEST:
                return Bracket(None, high)
    while high / low > 1 + tolerance:
        middle = _possible(sqrt(low * high), is_whole)
        if not low < middle < high:
            break
        if (yield middle):
            low = middle
        else:
            high = middle
    return Bracket(low, high)


def _possible(load: float, is_whole: bool) -> float:
    return float(max(1, round(load))) if is_whole else load


def explore(
    start: float, goal: Goal
) -> Generator[float, LoadProbe, tuple[Bracket, list[LoadProbe]]]:
    """Look for the capacity of one replica, and at some loads below it.

    Args:
        start: A load near saturation.

    Yields:
        A load to try; to be answered by its probe.

    Returns:
        The bracket, and all loads that were tried, rising.
    """
    probes: dict[float, LoadProbe] = {}
    search = largest_sustained(start, goal.tolerance, is_whole=goal.is_closed)
    load = next(search)
    while True:
        probes[load] = yield load
        try:
            load = search.send(probes[load].is_sustained(goal.attainment))
        except StopIteration as stop:
            bracket: Bracket = stop.value
            break
    for share in SHARES if bracket.sustained else ():
        load = _possible(share * (bracket.sustained or 0.0), goal.is_closed)
        if load not in probes:
            probes[load] = yield load
    return bracket, [probes[load] for load in sorted(probes)]
