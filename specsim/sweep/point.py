"""Running one point of a sweep: from its configuration to the record that is kept of it."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.errors import SpecsimError
from specsim.request import Request
from specsim.results.export import structured_columns
from specsim.results.metrics import latencies
from specsim.results.steps import StepsTable
from specsim.results.time_use import time_use
from specsim.results.timeline import integrals, timeline
from specsim.simulate import Run, simulate
from specsim.summary import Summary
from specsim.sweep.plan import Point
from specsim.version import __version__
from specsim.workload import WorkloadConfig

__all__ = ["failed_point", "run_point"]

_QUANTILES = np.linspace(0.0, 1.0, 101)
_NUM_BINS = 200
_WINDOW = 10  # bins over which the timeline's acceptance is measured, as in `specsim timeline`
_DIGITS = 6  # of what is drawn; metrics keep all


def run_point(point: Point) -> dict[str, Any]:
    """Run a point and return its record.

    Parameters
    ----------
    point : Point

    Returns
    -------
    dict
        As it stands in ``points/<number>.json``. A point that cannot be run has a record as well,
        with its error.
    """
    try:
        experiment = point.experiment()
        requests = _requests(experiment.workload.model_dump_json(), experiment.seed)
        summary = Summary(simulate(experiment, requests=requests))
        found = {
            "metrics": flat_metrics(summary.data),
            "distributions": _distributions(summary),
            **_over_time(summary),
        }
    except SpecsimError as error:
        return failed_point(point, str(error))
    except Exception as error:  # a bug, or a class of the user's; the others are not to suffer
        return failed_point(point, f"{type(error).__name__}: {error}")
    return {**_header(point, None, experiment.hash), **found}


@lru_cache(maxsize=4)
def _requests(workload: str, seed: int) -> list[Request]:
    # Cached, for a process runs many policies on one workload, and that may be a long file.
    return list(WorkloadConfig.model_validate_json(workload).build(seed).requests())


def failed_point(point: Point, why: str) -> dict[str, Any]:
    """Return the record of a point that could not be run.

    Parameters
    ----------
    point : Point
    why : str
        The error; its first line is kept.

    Returns
    -------
    dict
    """
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


def _header(point: Point, error: str | None, config_hash: str | None) -> dict[str, Any]:
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
    """Return the numbers of a summary, without nesting.

    Parameters
    ----------
    summary : dict
        As in ``summary.json``.

    Returns
    -------
    dict
        The block ``specsim`` stands beside the others; what is nested in it has dotted names, such
        as ``time_shares.target``. Truth values are 0 or 1; text and lists are left out.
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


def _distributions(summary: Summary) -> dict[str, list[float]]:
    samples = latencies(summary.tables)
    return {
        f"{name}_ms": _drawn(np.quantile(samples[name], _QUANTILES) * 1e3)
        if len(samples[name])
        else []
        for name in ("ttft", "tpot", "e2el")
    }


def _over_time(summary: Summary) -> dict[str, Any]:
    """Return how the run went over time, and what it spent its time on."""
    run, tables = summary.run, summary.tables
    columns = structured_columns(tables.steps, tables.steps.dtype.names or ())
    steps = StepsTable({"replica": tables.step_replicas, **columns}, summary.provenance)
    start, end = steps.span
    if end <= start:  # a profile whose steps take no time
        return {"timeline": {}, "breakdown": {}}
    found = timeline(steps, num_bins=_NUM_BINS, window=_WINDOW)
    replicas = run.experiment.replicas
    use, total = time_use(steps, replicas).overall, replicas * (end - start)
    return {
        "timeline": {
            "time_s": _drawn((found["start"] + found["end"]) / 2),
            "running": _drawn(found["num_running"]),
            "waiting": _drawn(found["num_waiting"]),
            "kv_usage": _drawn(_kv_usage(steps, run)),
            "draft_len": _drawn(found["asked_draft_len"]),
        },
        "breakdown": {f"{part}_s": share * total for part, share in use.parts.items()},
    }


def _kv_usage(steps: StepsTable, run: Run) -> NDArray[np.float64]:
    """Return the share of all replicas' KV blocks that requests held, in each bin."""
    num_usable = run.deployment.make_scheduler().kv.num_free
    edges = np.linspace(*steps.span, _NUM_BINS + 1)
    held = np.zeros(_NUM_BINS)
    for number in steps.replicas:
        mine = steps.of_replica(number)
        held += integrals(mine, num_usable - mine["free_blocks"].astype(np.int64), edges)
    return np.asarray(held / (np.diff(edges) * num_usable * run.experiment.replicas))


def _drawn(values: NDArray[np.float64]) -> list[Any]:
    """Return numbers as they go into a drawing; null where there is none."""
    return [None if np.isnan(v) else float(f"{v:.{_DIGITS}g}") for v in values.tolist()]
