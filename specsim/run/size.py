"""Size: whether a run is so large that it should not begin unasked, and about what it takes."""

import os

import numpy as np

from specsim.core.errors import ConfigError
from specsim.run.experiment import Experiment
from specsim.workload import Trace
from specsim.workload.arrivals.synthetic import ClosedLoop

ALLOWS_LARGE = "SPECSIM_LARGE"
"""Environment variable that lets runs of any size begin, as ``specsim --large`` sets it."""

_MOST_REQUESTS = 10_000_000
_MOST_REPLICAS = 10_000
_MOST_TOKENS = 20_000_000_000
_MOST_LOOKS = 300_000

# One CPU core and benchmarks/W3 and W4, 2026-11-22: 4.7 s and 377 MiB for 300,000 requests.
_REQUEST_BYTES, _REQUEST_SECONDS = 900, 15e-6
_TOKEN_SECONDS = 2e-8
_REPLICA_BYTES, _REPLICA_SECONDS = 300_000, 0.5e-3
_LOOK_SECONDS = 3e-5  # with three replicas


def check_size(experiment: Experiment) -> None:
    """Raise a ConfigError, with an estimate of time and memory, for a run of unusual size.

    Traces are as long as their files, and are not counted.
    """
    if os.environ.get(ALLOWS_LARGE):
        return
    requests, tokens = experiment.workload.expected_requests, experiment.workload.expected_tokens
    replicas = experiment.num_engines
    if requests <= _MOST_REQUESTS and replicas <= _MOST_REPLICAS and tokens <= _MOST_TOKENS:
        return
    what = f"{requests:,.10g} requests of {tokens:,.3g} tokens in all on {replicas:,} replicas"
    raise ConfigError(
        f"{what} would take about {as_time(estimated_seconds(experiment))} and "
        f"{_estimated_gib(experiment):,.3g} GiB of memory; make them fewer, or go on with "
        "`specsim --large` before the command"
    )


def check_looks(experiment: Experiment, trace: Trace) -> None:
    """Raise a ConfigError if an autoscaler would look at the replicas without end, for requests."""
    if experiment.autoscaling is None or os.environ.get(ALLOWS_LARGE):
        return
    seconds, interval = _least_span(experiment, trace), experiment.autoscaling.interval_s
    if (looks := seconds / interval) > _MOST_LOOKS:
        raise ConfigError(
            f"autoscaling.interval_s = {interval:g}: in the {as_time(seconds)} of the run it would "
            f"look {looks:,.3g} times, which takes about {as_time(looks * _LOOK_SECONDS)}; raise "
            "it, shorten the pauses of the workload, or go on with `specsim --large` before the "
            "command"
        )


def _least_span(experiment: Experiment, trace: Trace) -> float:
    """Return about how long requests arrive at least, seconds of the run."""
    waits = np.zeros(len(trace)) if trace.think_times is None else trace.think_times
    arrivals = experiment.workload.arrivals
    if isinstance(arrivals, ClosedLoop):
        return (float(waits.sum()) + len(trace) * arrivals.think_time) / arrivals.concurrency
    of_sessions = np.zeros(1) if trace.sessions is None else np.bincount(trace.sessions, waits)
    last = 0.0 if trace.arrived_at is None else float(trace.arrived_at.max(initial=0.0))
    return max(last, float(of_sessions.max(initial=0.0)))


def estimated_seconds(experiment: Experiment) -> float:
    """Return about how long a run takes, seconds of one CPU core."""
    workload = experiment.workload
    seconds = workload.expected_requests * _REQUEST_SECONDS
    seconds += experiment.num_engines * _REPLICA_SECONDS
    return seconds + workload.expected_tokens * _TOKEN_SECONDS


def _estimated_gib(experiment: Experiment) -> float:
    requests = experiment.workload.expected_requests * _REQUEST_BYTES
    return (requests + experiment.num_engines * _REPLICA_BYTES) / 2**30


def as_time(seconds: float) -> str:
    """Return a time in a unit that suits it."""
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds:.0f} seconds"
