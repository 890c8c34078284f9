"""Digest: what is kept of a run to draw it, small enough for thousands of runs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.results.folder import StepsTable
from specsim.results.metrics import Requests, latencies
from specsim.results.time_use import time_use
from specsim.results.timeline import integrals, timeline

__all__ = ["distributions", "over_time"]

_QUANTILES = np.linspace(0.0, 1.0, 101)
_NUM_BINS = 200
_WINDOW = 10  # bins over which the timeline's acceptance is measured, as in `specsim timeline`
_DIGITS = 6


def distributions(requests: Requests) -> dict[str, list[float]]:
    """Return the quantiles of ``ttft_ms``, ``tpot_ms`` and ``e2el_ms`` at 0, 1, ..., 100 %.

    Returns:
        101 of each, in milliseconds; none where no request has that latency.
    """
    found = latencies(requests)
    return {f"{name}_ms": _quantiles_ms(found[name]) for name in ("ttft", "tpot", "e2el")}


def _quantiles_ms(samples: NDArray[np.float64]) -> list[float]:
    known = samples[~np.isnan(samples)]
    if not len(known):
        return []
    return _drawn(np.quantile(known, _QUANTILES) * 1e3)


def over_time(steps: StepsTable, num_usable: int, num_replicas: int) -> dict[str, Any]:
    """Return how a run went over time, and what it spent its time on.

    Args:
        steps: Of all replicas.
        num_usable: KV blocks of one replica that requests can hold.

    Returns:
        ``timeline``: ``time_s``, ``running`` and ``waiting`` requests, ``kv_usage`` in [0, 1] and
        the ``draft_len`` asked for, each a list of equally many numbers, None where there is none.
        ``breakdown``: seconds of all replicas, ``target_s``, ``draft_s``, ``overhead_s`` and
        ``idle_s``. Both are empty if the steps took no time.
    """
    start, end = steps.span
    if end <= start:  # a profile whose steps cost nothing
        return {"timeline": {}, "breakdown": {}}
    found = timeline(steps, num_bins=_NUM_BINS, window=_WINDOW)
    use, total = time_use(steps, num_replicas).overall, num_replicas * (end - start)
    return {
        "timeline": {
            "time_s": _drawn((found["start"] + found["end"]) / 2),
            "running": _drawn(found["num_running"]),
            "waiting": _drawn(found["num_waiting"]),
            "kv_usage": _drawn(_kv_usage(steps, num_usable, num_replicas)),
            "draft_len": _drawn(found["asked_draft_len"]),
        },
        "breakdown": {f"{part}_s": share * total for part, share in use.parts.items()},
    }


def _kv_usage(steps: StepsTable, num_usable: int, num_replicas: int) -> NDArray[np.float64]:
    """Return the share of all replicas' KV blocks that requests held, in each bin."""
    edges = np.linspace(*steps.span, _NUM_BINS + 1)
    held = np.zeros(_NUM_BINS)
    for number in steps.replicas:
        mine = steps.of_replica(number)
        held += integrals(mine, num_usable - mine["free_blocks"].astype(np.int64), edges)
    return np.asarray(held / (np.diff(edges) * num_usable * num_replicas))


def _drawn(values: NDArray[np.float64]) -> list[Any]:
    return [None if np.isnan(v) else float(f"{v:.{_DIGITS}g}") for v in values.tolist()]
