"""Check: what is wrong with any point of a sweep, before the first of them is run."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel

from specsim.core.errors import SpecsimError
from specsim.profile import Profile, load_profile
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment
from specsim.run.size import check_size, estimated_seconds
from specsim.study.sweep.plan import Sweep, SweepPoint
from specsim.workload.arrivals.trace import TraceReplay
from specsim.workload.lengths.trace import Empirical, TraceRows
from specsim.workload.readers import read_trace

_MOST_CHECKED = 20_000  # points; of larger sweeps every value of every axis is, by `Sweep.check`
_START_SECONDS = 0.2  # that a point takes however small it is


def point_name(point: SweepPoint) -> str:
    """Return what a point is called in messages: the label of each of its axes."""
    return ", ".join(f"{field} {label}" for field, label in point.labels.items())


def problems_of(sweep: Sweep) -> list[str]:
    """Return what is wrong with the points of a sweep, a line for each different problem."""
    found: dict[str, list[str]] = {}
    for point in _first_replications(sweep):
        for problem in _problems(point):
            found.setdefault(problem, []).append(point_name(point))
    return [
        f"{names[0]}{f' and {len(names) - 1} more points' if len(names) > 1 else ''}: {problem}"
        for problem, names in found.items()
    ]


def seconds_of(sweep: Sweep) -> float:
    """Return about how long the points that can be run take, one after the other, seconds."""
    total = 0.0
    for point in _first_replications(sweep):
        try:
            total += _START_SECONDS + estimated_seconds(point.experiment())
        except SpecsimError:
            continue
    num_checked = min(sweep.num_points // sweep.replications, _MOST_CHECKED)
    return total * sweep.num_points / max(1, num_checked)


def _first_replications(sweep: Sweep) -> Iterator[SweepPoint]:
    points = (point for point in sweep.points() if not point.replication)
    for _, point in zip(range(_MOST_CHECKED), points, strict=False):
        yield point


def _problems(point: SweepPoint) -> Iterator[str]:
    try:
        experiment = point.experiment()
    except SpecsimError as error:
        yield from (line.removeprefix(f"point {point.number}: ") for line in str(error).split("\n"))
        return
    try:
        check_size(experiment)
        Deployment.of(experiment, _profile(experiment.profile))
    except SpecsimError as error:
        yield str(error)
    for path in _traces(experiment):
        if problem := _trace_problem(path):
            yield problem


def _traces(experiment: Experiment) -> Iterator[Path]:
    """Yield the traces that the workload of an experiment reads."""
    left: list[object] = [experiment.workload]
    while left:
        part = left.pop()
        if isinstance(part, TraceReplay | TraceRows | Empirical):
            yield part.path
        if isinstance(part, BaseModel):
            left.extend(getattr(part, name) for name in type(part).model_fields)


@lru_cache(maxsize=1000)
def _profile(name: str) -> Profile:
    return load_profile(name)


@lru_cache(maxsize=1000)
def _trace_problem(path: Path) -> str | None:
    try:
        read_trace(path)
    except SpecsimError as error:
        return str(error)
    return None
