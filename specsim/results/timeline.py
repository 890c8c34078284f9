"""Timelines: what a run did over time, in bins of equal width.

What a step has (batch size, draft length asked for, estimate of alpha) is averaged over the time
that steps take; what the system has (running and waiting requests) over all time, idle time
included; and what a step yields (tokens) is counted where the step ends. Liu et al. (2024),
"TurboSpec", fig. 15.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.results.export import write_parquet
from specsim.results.folder import StepsTable

__all__ = ["Timeline", "integrals", "timeline", "write_timelines"]

_YIELDS = ("drafts", "draft_tokens", "accepted_tokens", "output_tokens", "deliveries")


@dataclass(frozen=True)
class Timeline:
    """Binned series of one run."""

    columns: dict[str, NDArray[Any]]
    """Each of shape (n_bins,). ``start``, ``end``: s; ``busy_time``: s, summed over replicas.

    ``num_steps`` and the tokens of `StepsTable` are sums. ``batch_size``, ``asked_draft_len`` and
    ``alpha_estimate`` are means over the busy time of all replicas, nan where there is none.
    ``num_running`` and ``num_waiting`` are means over time, summed over replicas. ``acceptance`` is
    accepted over drafted tokens in the window that ends with the bin, ``tokens_per_step`` output
    tokens over deliveries, ``tokens_per_second`` output tokens over the width of the bin.
    """
    provenance: dict[str, object]

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a series."""
        return self.columns[name]

    @property
    def knows_alpha(self) -> bool:
        """Whether the policy estimated alpha at all."""
        return not bool(np.isnan(self["alpha_estimate"]).all())


def timeline(steps: StepsTable, *, num_bins: int, window: int) -> Timeline:
    """Return the timeline of a run.

    Args:
        steps: Of all replicas, or of one.
        num_bins: At least 1.
        window: Over which the acceptance is measured, at least 1, in bins.
    """
    edges = np.linspace(*steps.span, num_bins + 1)
    width = np.diff(edges)
    levels = _levels(steps, edges)
    sums = {
        name: np.histogram(steps["ended_at"], edges, weights=steps[name])[0].astype(np.int64)
        for name in _YIELDS
    }
    drafted, accepted = (
        _moving_sum(sums[name], window) for name in ("draft_tokens", "accepted_tokens")
    )
    columns = {
        "start": edges[:-1],
        "end": edges[1:],
        "busy_time": levels["busy"],
        "num_steps": np.histogram(steps["ended_at"], edges)[0],
        **sums,
        "batch_size": _ratio(levels["num_requests"], levels["busy"]),
        "num_running": levels["num_running"] / width,
        "num_waiting": levels["num_waiting"] / width,
        "asked_draft_len": _ratio(levels["asked_draft_len"], levels["busy"]),
        "alpha_estimate": _ratio(levels["alpha_estimate"], levels["estimated"]),
        "acceptance": _ratio(accepted, drafted),
        "tokens_per_step": _ratio(sums["output_tokens"], sums["deliveries"]),
        "tokens_per_second": sums["output_tokens"] / width,
    }
    return Timeline(columns, steps.provenance)


def _levels(steps: StepsTable, edges: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return the time integrals of what lasts as long as a step, summed over replicas."""
    total: dict[str, NDArray[np.float64]] = {}
    for number in steps.replicas:
        mine = steps.of_replica(number)
        is_known = ~np.isnan(mine["alpha_estimate"])
        values = {
            "busy": np.ones(len(mine)),
            "estimated": is_known,
            "alpha_estimate": np.where(is_known, mine["alpha_estimate"], 0.0),
            **{name: mine[name] for name in ("num_requests", "num_running", "num_waiting")},
            "asked_draft_len": mine["asked_draft_len"],
        }
        for name, value in values.items():
            total[name] = total.get(name, 0.0) + integrals(mine, value, edges)
    return total


def integrals(
    steps: StepsTable, values: NDArray[Any], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the time integral, per bin, of a value that each step holds until the next.

    Args:
        steps: Of a single replica.
        values: Of shape (n_steps,).
        edges: Of shape (n_bins + 1,), in seconds.

    Returns:
        In the unit of the values times seconds; 0 while the engine is idle. Of shape (n_bins,).
    """
    starts, ends = steps["scheduled_at"], steps.held_until
    areas = np.cumsum(values * (ends - starts))
    # The integral up to a time is piecewise linear: level while idle, rising within steps.
    knots = np.stack([starts, ends], axis=1).ravel()
    heights = np.stack([np.concatenate([[0.0], areas[:-1]]), areas], axis=1).ravel()
    return np.diff(np.interp(edges, knots, heights))


def _moving_sum(values: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """Return the sum over each bin and the ones before it, `window` of them in all."""
    sums = np.cumsum(values)
    sums[window:] -= sums[:-window].copy()
    return sums


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> NDArray[np.float64]:
    """Return a ratio, nan where there is nothing to divide by."""
    ratio = np.full(len(above), np.nan)
    np.divide(above, below, out=ratio, where=below > 0)
    return ratio


def write_timelines(timelines: dict[str, Timeline], path: Path) -> None:
    """Write timelines as one Parquet table; every row says of which run it is.

    Args:
        timelines: By label, which column ``run`` holds.
    """
    runs = list(timelines.values())
    num_bins = [len(run["start"]) for run in runs]
    names, origins = list(runs[0].columns), list(runs[0].provenance)
    columns = {
        "run": np.repeat(np.array(list(timelines)), num_bins),
        **{name: np.concatenate([run[name] for run in runs]) for name in names},
        **{o: np.repeat(np.array([run.provenance[o] for run in runs]), num_bins) for o in origins},
    }
    write_parquet(columns, {}, path)
