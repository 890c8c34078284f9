"""Size: whether a run is so large that it should not begin unasked, and about what it takes."""

import os
from math import inf

from specsim.core.errors import ConfigError
from specsim.run.experiment import Experiment

ALLOWS_LARGE = "SPECSIM_LARGE"
"""Environment variable that lets runs of any size begin, as ``specsim --large`` sets it."""

_MOST_REQUESTS = 10_000_000
_MOST_REPLICAS = 10_000
_MOST_TOKENS = 20_000_000_000
_MOST_LOOKS = 100_000  # some 3 s

# One CPU core and benchmarks/W3 and W4, 2026-11-22: 4.7 s and 377 MiB for 300,000 requests.
_REQUEST_BYTES, _REQUEST_SECONDS = 900, 15e-6
_TOKEN_SECONDS = 2e-8
_REPLICA_BYTES, _REPLICA_SECONDS = 300_000, 0.5e-3


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


def most_looks() -> float:
    """Return how often an autoscaler may look at the replicas of a run."""
    return inf if os.environ.get(ALLOWS_LARGE) else _MOST_LOOKS


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
