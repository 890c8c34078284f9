"""A run over time, in bins of equal width; and how its time divides among kinds of work.

Quantities of a step (batch size, draft length asked for, estimate of alpha) are averaged over the
time that steps take; quantities of the system (running and waiting requests) over all time, idle
time included; tokens are counted where the step ends. Shares of `time_use` are of the wall clock of
all replicas and add up to 1, unlike those of `specsim.results.metrics.time_shares`, which count
overhead in full even where it is hidden behind the GPU. Liu et al. (2024), "TurboSpec", fig. 15 and
16.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.results.folder import RunTable, StepsTable, write_groups
from specsim.results.metrics import Requests, session_spans, short


class Timeline(RunTable):
    """Binned series of one run, each of shape (n_bins,).

    ``start`` and ``end`` of each bin and ``busy_time``, summed over replicas, are in seconds.
    ``num_steps`` and the tokens of `StepsTable` are sums. ``batch_size``, ``asked_draft_len`` and
    ``alpha_estimate`` are means over the busy time of all replicas, NaN without any.
    ``num_running`` and ``num_waiting`` are means over time, summed over replicas. ``acceptance`` is
    accepted over drafted tokens in the window that ends with the bin, ``tokens_per_step`` output
    tokens over deliveries, ``tokens_per_second`` output tokens over the width of the bin.
    """

    @property
    def knows_alpha(self) -> bool:
        return not bool(np.isnan(self["alpha_estimate"]).all())


def timeline(steps: StepsTable, *, num_bins: int, window: int) -> Timeline:
    """Return the timeline of a run; the acceptance is measured over `window` bins."""
    edges = np.linspace(*steps.span, num_bins + 1)
    width = np.diff(edges)
    levels = _levels(steps, edges)
    sums = {
        name: np.histogram(steps["ended_at"], edges, weights=steps[name])[0].astype(np.int64)
        for name in ("drafts", "draft_tokens", "accepted_tokens", "output_tokens", "deliveries")
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
    """Return the time integrals of quantities that hold for a step, summed over replicas."""
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

    `steps` are of a single replica, `edges` in seconds. Between steps the value is 0.
    """
    starts, ends = steps["scheduled_at"], steps.held_until
    areas = np.cumsum(values * (ends - starts))
    # The integral up to an instant is piecewise linear: level while idle, rising within steps.
    knots = np.stack([starts, ends], axis=1).ravel()
    heights = np.stack([np.concatenate([[0.0], areas[:-1]]), areas], axis=1).ravel()
    return np.diff(np.interp(edges, knots, heights))


def _moving_sum(values: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """Return for each bin the sum over the `window` bins that end with it."""
    sums = np.cumsum(values)
    sums[window:] -= sums[:-window].copy()
    return sums


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> NDArray[np.float64]:
    """Return the ratio, NaN where the divisor is 0."""
    ratio = np.full(len(above), np.nan)
    np.divide(above, below, out=ratio, where=below > 0)
    return ratio


def write_timelines(timelines: dict[str, Timeline], path: Path) -> None:
    """Write timelines, by label, as one Parquet table; column ``run`` has the label."""
    runs = list(timelines.values())
    num_bins = [len(run["start"]) for run in runs]
    names, origins = list(runs[0].columns), list(runs[0].provenance)
    columns = {
        "run": np.repeat(np.array(list(timelines)), num_bins),
        **{name: np.concatenate([run[name] for run in runs]) for name in names},
        **{o: np.repeat(np.array([run.provenance[o] for run in runs]), num_bins) for o in origins},
    }
    write_groups([columns], {}, path, "timeline.parquet")


PARTS = ("target", "draft", "overhead", "idle")
NO_PIPELINES: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True)
class TimeRow:
    """How the time of steps with some batch sizes divides."""

    sizes: tuple[int, int]  # first and last batch size, requests; (0, 0): no step runs
    num_steps: int
    share: float  # of the time of all replicas, in [0, 1]
    parts: dict[str, float]  # share of each of `PARTS` in the row's time; they add up to 1

    @property
    def label(self) -> str:
        first, last = self.sizes
        return str(first) if first == last else f"{first}-{last}"


@dataclass(frozen=True)
class TimeUse:
    """How the time of all replicas divides."""

    overall: TimeRow
    rows: list[TimeRow]  # by batch size, in powers of two; sizes without a step are absent
    hidden_overhead_share: float
    """Overhead hidden behind the GPU's work, as a share of the time of all replicas."""


def time_use(
    steps: StepsTable, num_stages: float, first_shares: Mapping[int, float] = NO_PIPELINES
) -> TimeUse:
    """Return how the time from first to last step divides; a replica without steps is idle.

    For a pipeline this is the time of all stages, each of which has its share of every pass.

    Args:
        num_stages: Stages of all replicas together; a replica without a pipeline counts as 1.
        first_shares: The first stage's share of a pass, by number of a replica that is a pipeline.
    """
    overhead = np.concatenate(
        [_waited_for(steps.of_replica(r), first_shares.get(r, 1.0)) for r in steps.replicas]
    )
    seconds = {"target": steps["target_time"], "draft": steps["draft_time"], "overhead": overhead}
    start, end = steps.span
    total = num_stages * (end - start)
    idle = _unless_rounding(total - sum(float(v.sum()) for v in seconds.values()), total)
    powers = np.frexp(steps["num_requests"])[1] - 1
    largest = int(steps["num_requests"].max())
    rows = [_row((0, 0), {}, idle, total)] if idle > 0 else []
    for power in np.unique(powers):
        mine = {name: values[powers == power] for name, values in seconds.items()}
        first = 1 << int(power)
        rows.append(_row((first, min(2 * first - 1, largest)), mine, 0.0, total))
    hidden = _unless_rounding(float((steps["overhead_time"] - overhead).sum()), total)
    return TimeUse(
        overall=_row((0, largest), seconds, idle, total),
        rows=rows,
        hidden_overhead_share=hidden / total,
    )


def _unless_rounding(value: float, whole: float) -> float:
    """Return `value`, or 0 if it is within the rounding error of a sum like `whole`."""
    return value if value > 1e-9 * whole else 0.0


def _row(
    sizes: tuple[int, int], seconds: dict[str, NDArray[Any]], idle: float, total: float
) -> TimeRow:
    parts = {name: float(values.sum()) for name, values in seconds.items()}
    parts = {**dict.fromkeys(PARTS, 0.0), **parts, "idle": idle}
    own = sum(parts.values())
    return TimeRow(
        sizes=sizes,
        num_steps=len(next(iter(seconds.values()), ())),
        share=own / total,
        parts={name: value / own for name, value in parts.items()},
    )


def _waited_for(steps: StepsTable, first_stage: float) -> NDArray[np.float64]:
    """Return for each step of one replica the overhead during which the GPU was idle, seconds.

    Synchronous scheduling has its overhead after the GPU's work, before the next step is scheduled.
    Asynchronous scheduling has it before the GPU's work, as far as the previous step has left the
    (first stage's) GPU.
    """
    gpu_done = steps["started_at"] + first_stage * steps["target_time"]
    if first_stage == 1:  # otherwise the last stage drafts
        gpu_done += steps["draft_time"]
    ready = steps["scheduled_at"].copy()
    np.maximum(ready[1:], gpu_done[:-1], out=ready[1:])
    if first_stage < 1:  # waits for tokens of the last stage, behind other stages
        begins = np.minimum(steps["started_at"], steps["scheduled_at"] + steps["overhead_time"])
        return np.asarray(np.maximum(begins - ready, 0.0), dtype=np.float64)
    before = np.maximum(steps["started_at"] - ready, 0.0)
    after = np.maximum(steps.held_until - gpu_done, 0.0)
    return np.asarray(before + after, dtype=np.float64)


_DRAWN_BINS = 200
_DRAWN_WINDOW = 10  # bins over which the acceptance is measured, as in `specsim timeline`


def over_time(steps: StepsTable, own: dict[str, Any], requests: Requests) -> dict[str, Any]:
    """Return the series that reports draw of a run, small enough for thousands of runs.

    ``timeline`` has lists of equal length, None where there is no value: ``time_s``, ``running``
    and ``waiting`` requests, ``kv_usage`` in [0, 1], the ``draft_len`` asked for, and, if their
    number changes, ``replicas`` that take requests (``prefill_replicas`` and ``decode_replicas``)
    and ``sessions`` between first arrival and last token. ``breakdown`` has the seconds of all
    replicas: ``target_s``, ``draft_s``, ``overhead_s`` and ``idle_s``. Both are empty if the steps
    took no time.
    """
    start, end = steps.span
    if end <= start:  # a profile whose steps cost nothing
        return {"timeline": {}, "breakdown": {}}
    found = timeline(steps, num_bins=_DRAWN_BINS, window=_DRAWN_WINDOW)
    engines = engines_of(own, start)
    num_stages, first_shares = stages_of(engines)
    use = time_use(steps, num_stages, first_shares).overall
    total = num_stages * (end - start)
    times = (found["start"] + found["end"]) / 2
    return {
        "timeline": {
            "time_s": short(times),
            "running": short(found["num_running"]),
            "waiting": short(found["num_waiting"]),
            "kv_usage": short(_kv_usage(steps, engines)),
            "draft_len": short(found["asked_draft_len"]),
            **_population(times, own, requests),
        },
        "breakdown": {f"{part}_s": share * total for part, share in use.parts.items()},
    }


def scalings(own: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return scaled replicas over time by pool ("" without pools); empty if none scales."""
    if "autoscaling" in own:
        return {"": own["autoscaling"]}
    found: dict[str, dict[str, Any]] = own.get("pools", {}).get("autoscaling", {})
    return found


def _population(
    times: NDArray[np.float64], own: dict[str, Any], requests: Requests
) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for pool, scaling in scalings(own).items():
        counts = scaling["timeline"]
        places = np.searchsorted(counts["at"], times, side="right") - 1
        name = f"{pool}_replicas" if pool else "replicas"
        found[name] = short(np.array(counts["up"], dtype=np.float64)[places])
    if "sessions" in own:
        starts, ends = map(np.sort, session_spans(requests))
        is_open = np.searchsorted(starts, times, side="right") - np.searchsorted(ends, times)
        found["sessions"] = short(is_open.astype(np.float64))
    return found


class EnginesOfKind(NamedTuple):
    """Replicas of a run with the same engine."""

    numbers: range  # in steps.parquet; slots, where replicas are scaled
    num_usable: int  # KV blocks of each that requests can hold
    mean: float  # mean number of them, from the first step on
    stage_shares: Sequence[float]


def stages_of(engines: Sequence[EnginesOfKind]) -> tuple[float, dict[int, float]]:
    """Return the arguments `num_stages` and `first_shares` of `time_use`."""
    first_shares = {number: each.stage_shares[0] for each in engines for number in each.numbers}
    return sum(each.mean * len(each.stage_shares) for each in engines), first_shares


def engines_of(own: dict[str, Any], start: float) -> list[EnginesOfKind]:
    """Return the replicas of a run, or those of the decode pool and then of the prefill pool.

    Args:
        own: The block ``specsim`` of its summary.
        start: When its first step was scheduled, seconds.
    """
    count, scaled = int(own["replicas"]), scalings(own)
    usable = int(own["num_gpu_blocks"]) - 1  # vLLM's null block holds no tokens
    pools = own.get("pools", {})
    if "decode_replicas" not in pools:
        mean = sum(_mean_since(start, each) for each in scaled.values()) if scaled else count
        return [EnginesOfKind(range(count), usable, mean, own.get("stage_shares", [1.0]))]
    first = int(pools["decode_replicas"])
    found = []
    for name, numbers, blocks, told in (
        ("decode", range(first), usable, own),
        ("prefill", range(first, count), int(pools["prefill_num_gpu_blocks"]) - 1, pools),
    ):
        mean = _mean_since(start, scaled[name]) if scaled else len(numbers)
        found.append(EnginesOfKind(numbers, blocks, mean, told.get("stage_shares", [1.0])))
    return found


def _mean_since(start: float, scaling: dict[str, Any]) -> float:
    """Return the mean number of replicas paid for, from an instant to the end of the run."""
    counts, seconds = scaling["timeline"], float(scaling["replica_seconds"])
    paid_for = np.sum([counts[state] for state in ("up", "starting", "draining")], axis=0)
    before = float(np.diff(np.minimum([*counts["at"], start], start)) @ paid_for)
    return (seconds - before) / (seconds / float(scaling["mean_replicas"]) - start)


def _kv_usage(steps: StepsTable, engines: list[EnginesOfKind]) -> NDArray[np.float64]:
    edges = np.linspace(*steps.span, _DRAWN_BINS + 1)
    held, present = np.zeros(_DRAWN_BINS), steps.replicas
    for number, usable in ((n, each.num_usable) for each in engines for n in each.numbers):
        if number in present:
            mine = steps.of_replica(number)
            held += integrals(mine, usable - mine["free_blocks"].astype(np.int64), edges)
    return np.asarray(
        held / (np.diff(edges) * sum(each.num_usable * each.mean for each in engines))
    )
