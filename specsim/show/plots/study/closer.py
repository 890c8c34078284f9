"""What happens at one load on one kind of hardware: distributions, time, and where it went."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

from specsim.show.plots.study.drawing import Chart, Drawing, make_log
from specsim.show.report.study import Point

__all__ = ["BREAKDOWN", "CDF", "TIMELINE"]

_LATENCIES = (("ttft_ms", "TTFT, ms"), ("tpot_ms", "TPOT, ms"), ("e2el_ms", "E2E latency, ms"))
_SERIES = (
    ("running", "running, requests"),
    ("waiting", "waiting, requests"),
    ("kv_usage", "KV cache in use, %"),
    ("draft_len", "k asked for, tokens"),
)
_PARTS = {
    "target": "#3d6a8a",
    "draft": "#86b3c9",
    "overhead": "#d9b26a",
    "idle": "#e3e6ea",
}


def _without(part: str, drawing: Drawing) -> str | None:
    cells = drawing.closer.values()
    if any(getattr(point, part) for cell in cells for point in cell):
        return None
    return f"the runs at {drawing.closer_title} kept no {part}"


def _quantiles(cell: list[Point], name: str) -> NDArray[np.float64] | None:
    """Return the quantiles of a cell, averaged over its replications."""
    kept = [point.distributions[name] for point in cell if point.distributions.get(name)]
    return np.mean(kept, axis=0) if kept else None


def _draw_cdf(drawing: Drawing) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, constrained_layout=True)
    for axis, (name, title) in zip(axes, _LATENCIES, strict=True):
        for policy, cell in drawing.closer.items():
            values = _quantiles(cell, name)
            if values is not None:
                shares = np.linspace(0, 1, len(values))
                style, label = drawing.styles[policy], drawing.names(1)[policy]
                axis.plot(values, shares, color=style.light, lw=1.4, label=label)
        axis.set_xlabel(title)
        make_log(axis.xaxis)
        axis.set_ylim(0, 1.02)
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
                times,
                100 * values if name == "kv_usage" else values,
                color=drawing.styles[policy].light,
                lw=1,
                label=drawing.names(1)[policy],
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
    axis.set_xlim(0, 1)
    axis.set_xlabel("share of the time of all replicas")
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    axis.set_title(drawing.closer_title, fontsize="medium", loc="left")
    return figure


def _share(cell: list[Point], part: str) -> float:
    """Return the share of a part of the time, averaged over the replications."""
    kept = [point.breakdown for point in cell if point.breakdown]
    return float(np.mean([each[f"{part}_s"] / sum(each.values()) for each in kept]))


CDF = Chart("cdf", lambda drawing: _without("distributions", drawing), _draw_cdf)
TIMELINE = Chart("timeline", lambda drawing: _without("timeline", drawing), _draw_timeline)
BREAKDOWN = Chart("breakdown", lambda drawing: _without("breakdown", drawing), _draw_breakdown)
