"""Sweeps: one experiment along several axes, point by point, resumable."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from specsim.core.errors import SpecsimError
from specsim.core.request import Request
from specsim.core.version import __version__
from specsim.results.export import structured_columns
from specsim.results.folder import StepsTable
from specsim.results.metrics import distributions
from specsim.results.timeline import over_time
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study.runner import Backend, Job, LocalProcesses, Runner
from specsim.study.sweep.folder import SweepFolder
from specsim.study.sweep.plan import Sweep, SweepPoint, labels
from specsim.workload import WorkloadConfig

__all__ = [
    "Backend", "LocalProcesses", "Sweep", "SweepFolder", "SweepPoint", "flat_metrics", "labels",
    "run_point", "run_sweep",
]  # fmt: skip


def run_sweep(
    folder: SweepFolder, backend: Backend, on_progress: Callable[[int], None] | None = None
) -> list[dict[str, Any]]:
    """Run every point of a sweep that has not ended yet.

    Args:
        folder: Gets each record as its point ends, and ``points.parquet`` at last.
        backend: Ended with the sweep.
        on_progress: Told the number of points that have ended.

    Returns:
        The records of all points, in their order, without what is only drawn.
    """
    # What failed is tried again: its cause may have been removed.
    ended = {record["point"] for record in folder.numbers() if record["error"] is None}
    left = (point for point in folder.sweep.points() if point.number not in ended)
    with Runner(backend, on_progress, len(ended)) as runner:
        for _, record in runner.stream(Job(run_point, _failed), left):
            folder.write(record)
    return folder.finish()


def run_point(point: SweepPoint) -> dict[str, Any]:
    """Run a point and return its record, as it stands in ``points/<number>.json``.

    A point that cannot be run has a record as well, with its error.
    """
    try:
        experiment = point.experiment()
        requests = _requests(experiment.workload.model_dump_json(), experiment.seed)
        summary = Summary(simulate(experiment, requests=requests))
        found = {
            "metrics": flat_metrics(summary.data),
            "distributions": distributions(summary.tables.requests),
            **_over_time(summary),
        }
    except SpecsimError as error:
        return _failed(point, str(error))
    except Exception as error:  # a bug, or a class of the user's; the others are not to suffer
        return _failed(point, f"{type(error).__name__}: {error}")
    return {**_header(point, None, experiment.hash), **found}


@lru_cache(maxsize=4)
def _requests(workload: str, seed: int) -> list[Request]:
    # Cached, for a process runs many policies on one workload, and that may be a long file.
    return list(WorkloadConfig.model_validate_json(workload).build(seed).requests())


def _failed(point: SweepPoint, why: str) -> dict[str, Any]:
    """Return the record of a point that could not be run, with the first line of the reason."""
    try:
        config_hash = point.experiment().hash
    except SpecsimError:
        config_hash = None
    nothing: dict[str, Any] = {}
    return {
        **_header(point, (why.splitlines() or ["no reason given"])[0], config_hash),
        "metrics": nothing,
        "distributions": nothing,
        "timeline": nothing,
        "breakdown": nothing,
    }


def _header(point: SweepPoint, error: str | None, config_hash: str | None) -> dict[str, Any]:
    return {
        "point": point.number,
        "axes": point.axes,
        "labels": point.labels,
        "replication": point.replication,
        "seed": point.seed,
        "config_hash": config_hash,
        "specsim_version": __version__,
        "error": error,
    }


def flat_metrics(summary: dict[str, Any]) -> dict[str, float | int]:
    """Return the numbers of a summary, as in ``summary.json``, without nesting.

    The block ``specsim`` stands beside the others; what is nested in it has dotted names, such as
    ``time_shares.target``. Truth values are 0 or 1; text and lists are left out.
    """
    outer = {name: value for name, value in summary.items() if name != "specsim"}
    return dict(_numbers("", {**outer, **summary["specsim"]}))


def _numbers(prefix: str, values: dict[str, Any]) -> Iterable[tuple[str, float | int]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(f"{prefix}{name}.", value)
        elif isinstance(value, bool):
            yield prefix + name, int(value)
        elif isinstance(value, int | float) and name != "seed":
            yield prefix + name, value


def _over_time(summary: Summary) -> dict[str, Any]:
    """Return how the run went over time, and what it spent its time on."""
    run, tables = summary.run, summary.tables
    columns = structured_columns(tables.steps, tables.steps.dtype.names or ())
    steps = StepsTable({"replica": tables.step_replicas, **columns}, summary.provenance)
    num_usable = run.deployment.setup.num_usable_blocks
    return over_time(steps, num_usable, run.experiment.replicas)
