"""The charts of a study, for papers: one file per chart, in the colours of the page.

Over load, cost, and the closer look at one load on one kind of hardware; the maps are in `maps`.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specsim.show.plots import make_log, mark_stability, panels, save
from specsim.show.plots.drawing import CROSSOVER, SPEED_UP, Chart, Drawing, label_load
from specsim.show.report.study import (
    COST,
    MEASURES,
    Cell,
    Measure,
    Point,
    Study,
    stability,
    values_of,
)
from specsim.study.capacity.findings import lower_front
from specsim.study.paired import mean_and_half_width

_LATENCIES = (("ttft_ms", "TTFT, ms"), ("tpot_ms", "TPOT, ms"), ("e2el_ms", "E2E latency, ms"))
_SERIES = (
    ("running", "running, requests"),
    ("waiting", "waiting, requests"),
    ("kv_usage", "KV cache in use, %"),
    ("draft_len", "k asked for, tokens"),
)
_PARTS = {"target": "#3d6a8a", "draft": "#86b3c9", "overhead": "#d9b26a", "idle": "#e3e6ea"}

_LETTER, _HANDLE = 0.095, 0.6
"""Width of a letter of a legend, and of what stands beside its text, inches."""


def _same_load(drawing: Drawing) -> str | None:
    axis = drawing.axis(2)
    return f"all runs have the same load; sweep {axis.field}" if len(axis.labels) < 2 else None


def _draw_over_load(drawing: Drawing) -> Figure:
    names = drawing.names(0)
    figure, axes = panels(len(names), (max(5.0, 3.6 * len(names)), 3.8))
    measure = drawing.measure
    for hardware, (axis, name) in enumerate(zip(axes, names, strict=True)):
        for policy in range(len(drawing.axis(1).labels)):
            _draw_policy(axis, drawing, hardware, policy)
        axis.set_title(name, fontsize="medium", loc="left")
        label_load(axis, drawing)
        axis.grid(alpha=0.3)
    first = axes[0]
    first.set_ylabel(f"{measure.title}, {measure.unit}" if measure.unit else measure.title)
    if measure.unit == "ms":
        make_log(first.yaxis)
    handles, labels = first.get_legend_handles_labels()
    longest = max((len(line) for label in labels for line in label.split("\n")), default=1)
    fitting = int(figure.get_figwidth() / (_LETTER * longest + _HANDLE))
    columns = max(1, min(6, len(labels), fitting))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns)
    return figure


def _draw_policy(axis: Axes, drawing: Drawing, hardware: int, policy: int) -> None:
    numbers, look = drawing.load_numbers, drawing.look(policy)
    places, means, lows, highs, stabilities = [], [], [], [], []
    for load, number in enumerate(numbers):
        cell = drawing.cells.get((hardware, policy, load), [])
        values = list(values_of(drawing.study, cell, drawing.measure).values())
        if not values:
            continue
        mean, half = mean_and_half_width(values)
        places.append(number)
        means.append(mean)
        lows.append(max(mean - (half or 0.0), 0.01 * mean))  # a latency has no value below 0
        highs.append(mean + (half or 0.0))
        stabilities.append(stability(cell))
    mark: dict[str, Any] = {"marker": drawing.marker(policy), "markersize": 4.5}
    axis.plot(places, means, lw=1.4, **mark, **look)
    axis.fill_between(places, lows, highs, color=look["color"], alpha=0.12, lw=0)
    mark_stability(axis, places, means, stabilities, color=look["color"], **mark)


OVER_LOAD = Chart("over-load", _same_load, _draw_over_load)


@dataclass(frozen=True)
class _Offer:
    hardware: int
    policy: int
    cost: float
    latency: float
    is_fine: bool
    """Whether enough requests keep their limits, where that was asked for, and it keeps up."""


def _latency(drawing: Drawing) -> Measure:
    return drawing.measure if drawing.measure.unit == "ms" else MEASURES[0]


def _offers(drawing: Drawing) -> list[_Offer]:
    cost = next(measure for measure in MEASURES if measure.name == COST)
    found = []
    for (hardware, policy, _), cell in sorted(drawing.cells.items()):
        prices = values_of(drawing.study, cell, cost).values()
        latencies = values_of(drawing.study, cell, _latency(drawing)).values()
        if prices and latencies:
            mean = (fmean(prices), fmean(latencies))
            found.append(_Offer(hardware, policy, *mean, _is_fine(drawing, cell)))
    return found


def _is_fine(drawing: Drawing, cell: Cell) -> bool:
    if stability(cell) == "overloaded":
        return False
    wanted = drawing.study.capacity["attainment"] if drawing.study.capacity else 0.0
    attainment = next(measure for measure in MEASURES if measure.name == "slo_attainment")
    shares = values_of(drawing.study, cell, attainment).values()
    return not wanted or fmean(shares) >= wanted


def _draw_cost(drawing: Drawing) -> Figure:
    figure, axis = plt.subplots(figsize=(7, 4.5), constrained_layout=True)
    offers = _offers(drawing)
    many = len(drawing.axis(0).labels) > 1
    seen = sorted({(offer.hardware, offer.policy) for offer in offers})
    for hardware, policy in seen:
        mine = [o for o in offers if (o.hardware, o.policy) == (hardware, policy)]
        look = {**drawing.look(policy), "marker": drawing.marker(policy)}
        if hardware != seen[0][0]:
            del look["label"]
        pairs = zip(*((o.cost, o.latency) for o in mine), strict=True)
        axis.plot(*pairs, ms=4, lw=0.6, alpha=0.6, **look)
        if many:
            last = mine[-1]
            axis.annotate(drawing.names(0)[hardware], (last.cost, last.latency), fontsize=6)
    fine = [offer for offer in offers if offer.is_fine]  # overload is no offer
    best = lower_front(fine, lambda offer: (offer.cost, offer.latency))
    axis.step([o.cost for o in best], [o.latency for o in best], where="post", color="black", lw=1)
    measure = _latency(drawing)
    make_log(axis.xaxis)
    make_log(axis.yaxis)
    cost = f"cost, {drawing.study.currency} per million output tokens (black: Pareto front)"
    axis.set(xlabel=cost, ylabel=f"{measure.title}, {measure.unit}")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    return figure


_NO_PRICE = "no price of this hardware is known"
COST_CHART = Chart("cost", lambda drawing: None if _offers(drawing) else _NO_PRICE, _draw_cost)


def _without(part: str, drawing: Drawing) -> str | None:
    cells = drawing.closer.values()
    if any(getattr(point, part) for cell in cells for point in cell):
        return None
    return f"the runs at {drawing.closer_title} kept no {part}"


def _draw_cdf(drawing: Drawing) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, constrained_layout=True)
    for axis, (name, title) in zip(axes, _LATENCIES, strict=True):
        for policy, cell in drawing.closer.items():
            kept = [found for point in cell if (found := point.distributions.get(name))]
            if kept:
                values = np.mean(kept, axis=0)
                shares = np.linspace(0, 1, len(values))
                axis.plot(values, shares, lw=1.4, **drawing.look(policy))
        axis.set(xlabel=title, ylim=(0, 1.02))
        make_log(axis.xaxis)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of requests")
    axes[-1].legend(fontsize="small")
    figure.suptitle(drawing.closer_title, fontsize="medium")
    return figure


def _draw_timeline(drawing: Drawing) -> Figure:
    figure, axes = plt.subplots(2, 2, figsize=(10, 5), sharex=True, constrained_layout=True)
    for policy, cell in drawing.closer.items():
        point = next((point for point in cell if point.timeline), None)
        if point is None:
            continue
        times = point.timeline["time_s"]
        for axis, (name, _) in zip(axes.flat, _SERIES, strict=True):
            values = np.array(point.timeline.get(name, [None] * len(times)), dtype=float)
            axis.plot(
                times, values * (100 if name == "kv_usage" else 1), lw=1, **drawing.look(policy)
            )
    for axis, (_, title) in zip(axes.flat, _SERIES, strict=True):
        axis.set_title(title, fontsize="medium", loc="left")
        axis.set_ylim(0, max(1.0, axis.get_ylim()[1]))
        axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("time, s")
    axes[0, 0].legend(fontsize="small")
    figure.suptitle(drawing.closer_title, fontsize="medium")
    return figure


def _draw_breakdown(drawing: Drawing) -> Figure:
    policies = {p: cell for p, cell in drawing.closer.items() if any(x.breakdown for x in cell)}
    names = [drawing.names(1)[policy] for policy in policies]
    figure, axis = plt.subplots(figsize=(7, 1.3 + 0.4 * len(names)), constrained_layout=True)
    left = np.zeros(len(names))
    for part, colour in _PARTS.items():
        shares = np.array([_share(cell, part) for cell in policies.values()])
        axis.barh(names, shares, left=left, color=colour, label=part, edgecolor="white", lw=0.5)
        left += shares
    axis.invert_yaxis()
    axis.set(xlim=(0, 1), xlabel="share of the time of all replicas")
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    axis.set_title(drawing.closer_title, fontsize="medium", loc="left")
    return figure


def _share(cell: list[Point], part: str) -> float:
    kept = [point.breakdown for point in cell if point.breakdown]
    return float(np.mean([each[f"{part}_s"] / sum(each.values()) for each in kept]))


CDF = Chart("cdf", lambda drawing: _without("distributions", drawing), _draw_cdf)
TIMELINE = Chart("timeline", lambda drawing: _without("timeline", drawing), _draw_timeline)
BREAKDOWN = Chart("breakdown", lambda drawing: _without("breakdown", drawing), _draw_breakdown)


_CHARTS = (OVER_LOAD, SPEED_UP, CROSSOVER, COST_CHART, CDF, TIMELINE, BREAKDOWN)


def plot_study(
    study: Study, measure: Measure, folder: Path, suffix: str
) -> tuple[list[Path], list[str]]:
    """Draw every chart that the runs of a `restricted` study allow.

    Returns what was drawn, and why each of the others is missing.
    """
    # The closer look is taken where there are runs: first hardware, load in the middle.
    hardware = min((point.places[0] for point in study.finished), default=0)
    loads = sorted({p.places[2] for p in study.finished if p.places[0] == hardware}) or [0]
    drawing = Drawing(study, measure, hardware, loads[len(loads) // 2])
    drawn, left_out = [], []
    for chart in _CHARTS:
        reason = chart.why_not(drawing)
        if reason is not None:
            left_out.append(f"{chart.name}: not drawn: {reason}")
            continue
        path = folder / f"{chart.name}{suffix}"
        save(chart.draw(drawing), path)
        drawn.append(path)
    return drawn, left_out
