"""Cells: the statistics of a study for charts, pages and plots.

A cell is the runs that differ in replication only, as plain values for JSON: ``h``, ``p``, ``l``
(indices of hardware, policy and load), ``state`` (the stability) and per measure ``mean``, ``half``
(of the 95 % interval), ``gain`` over no speculation (with its interval) and ``rank`` among the
policies there. ``ties`` has, per measure, the lower ranked policies that the paired interval does
not tell from it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

from specsim.show.study import (
    MEASURES,
    Cell,
    Cells,
    Measure,
    Study,
    gain,
    group,
    measured,
    ranked,
    stability,
    values_of,
)
from specsim.study.paired import SpeedUp, mean_and_half_width

SERIES = {
    "running": "running, requests",
    "waiting": "waiting, requests",
    "kv_usage": "KV cache in use, %",
    "draft_len": "k asked for, tokens",
    "replicas": "servers that take requests",
    "prefill_replicas": "prefill servers",
    "decode_replicas": "decode servers",
    "sessions": "sessions open",
}
PARTS = {"target": "target", "draft": "drafting", "overhead": "overhead", "idle": "idle"}
LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2el_ms": "E2E latency"}
TAILS = (10, 50, 90, 99)
_MOST_SAMPLES = 10_000  # of all timelines together
_Told = dict[str, Any]


def known_measures(study: Study) -> list[Measure]:
    """Return the measures that some run has; the first of all if no run has ended."""
    known = {name for point in study.finished for name in measured(study, point)}
    return [each for each in MEASURES if each.name in known] or [MEASURES[0]]


def all_cells(study: Study, measures: Sequence[Measure]) -> list[_Told]:
    """Return the cells of every `slice` (values of the other axes), over all replications.

    With several replications also the cells of each; ``luck`` is its number, or None for all.
    Details (quantiles, timeline, breakdown) are in the cells of all only.
    """
    others = [range(len(axis.labels)) for axis in study.axes[3:]]
    replications = sorted({point.replication for point in study.finished})
    lucks: list[int | None] = [None, *replications] if len(replications) > 1 else [None]
    stride = _stride(study)
    return [
        {**told, "slice": number, "luck": luck}
        for number, places in enumerate(product(*others))
        for luck in lucks
        for told in told_cells(
            _part(study, places, luck), measures, stride if luck is None else None
        )
    ]


def _part(study: Study, places: tuple[int, ...], luck: int | None) -> Study:
    points = (point for point in study.points if point.places[3:] == places)
    return replace(study, points=[p for p in points if luck is None or p.replication == luck])


def told_cells(study: Study, measures: Sequence[Measure], stride: int | None = 1) -> list[_Told]:
    """Return the cells of a `restricted` study, with details thinned by `stride` unless None."""
    cells = group(study)
    ranks = {
        # Bounds come last, because the first one is called best.
        (hardware, load, measure.name): sorted(
            ranked(cells, hardware, load, measure), key=study.bounds.__getitem__
        )
        for hardware, load in {(place[0], place[2]) for place in cells}
        for measure in measures
    }
    return [
        {
            **dict(zip("hpl", place, strict=True)),
            "state": (state := stability(cell)),
            "offer": state != "overloaded" and all(point.keeps_limits for point in cell),
            **_statistics(cells, place, measures, study.baseline),
            **_ranking(cells, place, measures, ranks),
            **({} if stride is None else _details(cell, stride)),
            "gpus": _short(_mean([point.gpus for point in cell]), 4),
            "hour": _mean([point.cost for point in cell]),
            "fleet": cell[0].fleet_kind,
        }
        for place, cell in sorted(cells.items())
    ]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _statistics(
    cells: Cells, place: tuple[int, int, int], measures: Sequence[Measure], baseline: int | None
) -> _Told:
    cell, reference = (
        cells[place],
        cells.get((place[0], -1 if baseline is None else baseline, place[2]), []),
    )
    found = [[*values_of(cell, measure).values()] for measure in measures]
    sums = [mean_and_half_width(values) if values else (None, None) for values in found]
    halves = [_short(half, 3) for _, half in sums]
    return {
        "mean": [_short(mean, 6) for mean, _ in sums],
        "half": halves if any(half is not None for half in halves) else [],
        "gain": [_told_gain(gain(cell, reference, measure)) for measure in measures],
    }


def _told_gain(found: SpeedUp | None) -> list[Any] | None:
    if found is None:
        return None
    ends = [found.low, found.high] if found.low is not None else []
    return _shorts([found.mean, *ends], 4)


def _ranking(
    cells: Cells,
    place: tuple[int, int, int],
    measures: Sequence[Measure],
    ranks: dict[tuple[int, int, str], list[int]],
) -> _Told:
    hardware, policy, load = place
    orders = [ranks[hardware, load, measure.name] for measure in measures]
    ties = {}
    for number, (measure, order) in enumerate(zip(measures, orders, strict=True)):
        behind = order[order.index(policy) + 1 :] if policy in order else []
        tied = [p for p in behind if _is_tied(cells[place], cells[hardware, p, load], measure)]
        if tied:
            ties[str(number)] = tied
    return {"rank": [o.index(policy) if policy in o else None for o in orders], "ties": ties}


def _is_tied(mine: Cell, other: Cell, measure: Measure) -> bool:
    lead = gain(mine, other, measure) if len(mine) > 1 else None
    return lead is not None and lead.low is not None and lead.low <= 1 <= (lead.high or 0)


def _details(cell: Cell, stride: int) -> _Told:
    kept = [point for point in cell if point.distributions]
    timed = next((point for point in cell if point.timeline.get("time_s")), None)
    parts = [_shares(point.breakdown) for point in cell if sum(point.breakdown.values()) > 0]
    quantiles = {
        name: _averaged([found for point in kept if (found := point.distributions.get(name))])
        for name in LATENCIES
    }
    return {
        "kept": sorted({point.replication for point in kept}),
        "quantiles": {name: _shorts(v[::2], 3) for name, v in quantiles.items() if v},
        "tails": {name: _shorts([v[n] for n in TAILS], 4) for name, v in quantiles.items() if v},
        "timed": timed and timed.replication,
        "timeline": _timeline(timed.timeline, stride) if timed else None,
        "parts": _shorts(_averaged(parts), 4),
    }


def _averaged(rows: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(values) for values in zip(*rows, strict=True)]


def _shares(seconds: dict[str, float]) -> list[float]:
    total = sum(seconds.values())
    return [seconds.get(f"{name}_s", 0.0) / total for name in PARTS]


def _stride(study: Study) -> int:
    """Return how many samples of a timeline to average into one for a large study."""
    firsts: dict[tuple[int, ...], int] = {}
    for point in study.finished:
        if times := point.timeline.get("time_s"):
            firsts.setdefault(point.places, len(times))
    return -(-sum(firsts.values()) // _MOST_SAMPLES) or 1


def _timeline(series: dict[str, list[float | None]], stride: int) -> dict[str, list[Any]]:
    """Return a timeline with every `stride` samples averaged into one."""
    thin = {name: _thinned(series[name], stride) for name in ("time_s", *SERIES) if name in series}
    if "kv_usage" in thin:
        thin["kv_usage"] = [v and 100 * v for v in thin["kv_usage"]]
    return {name: _shorts(values, 4) for name, values in thin.items()}


def _thinned(values: list[float | None], stride: int) -> list[float | None]:
    if stride == 1:
        return values
    groups = (values[start : start + stride] for start in range(0, len(values), stride))
    known = ([v for v in group if v is not None] for group in groups)
    return [fmean(group) if group else None for group in known]


def _shorts(values: Iterable[float | None], digits: int) -> list[Any]:
    return [_short(value, digits) for value in values]


def _short(value: float | None, digits: int) -> float | int | None:
    """Return a number with few digits, as an int if it is whole."""
    if value is None:
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short
