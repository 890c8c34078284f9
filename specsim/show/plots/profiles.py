"""A profile's step times, by batch size or beside measured ones."""

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from specsim.reality.profile_fit import ProfileErrors
from specsim.show.plots.figures import make_log, panels, save
from specsim.show.profile_overview import Overview

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXT_LEN = 512  # tokens of each sequence
_DRAFT_LENS = (0, 3, 5)


def plot_comparison(comparison: ProfileErrors, path: Path, title: str) -> None:
    """Draw predicted over measured step times."""
    figure, axis = plt.subplots(figsize=(6, 6), constrained_layout=True)
    figure.suptitle(title)
    points = comparison.points
    measured, predicted = points.seconds * 1e3, comparison.predicted * 1e3
    for label, rows in (("with prefill", points.mixed), ("decode only", ~points.mixed)):
        if rows.any():
            axis.plot(measured[rows], predicted[rows], ".", ms=4, alpha=0.5, label=label)
    both = np.concatenate([measured, predicted])
    ends = [both.min() * 0.9, both.max() * 1.1]
    axis.plot(ends, ends, color="black", linewidth=0.8)
    make_log(axis.xaxis)
    make_log(axis.yaxis)
    axis.set(xlim=ends, ylim=ends, aspect="equal")
    axis.set_xlabel("measured, ms")
    axis.set_ylabel("predicted, ms")
    axis.grid(alpha=0.3)
    axis.legend()
    save(figure, path)


def plot_step_times(overview: Overview, path: Path, title: str) -> None:
    """Draw the time of a decode step over its batch size, one panel per drafter."""
    methods = overview.methods
    figure, axes = panels(len(methods), (max(5, 3 * len(methods)), 4))
    figure.suptitle(
        f"{title}, {_CONTEXT_LEN} tokens of context each (dotted: beyond the valid range)"
    )
    for axis, method in zip(axes, methods, strict=True):
        for draft_len in _DRAFT_LENS:
            _draw(axis, overview, draft_len, method)
        axis.set_title(method or "drafts that cost nothing", fontsize="medium")
        axis.set_xlabel("batch size, requests")
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("step time, ms")
    axes[0].set_ylim(bottom=0)  # of all, once all is drawn
    axes[0].legend()
    save(figure, path)


def _draw(axis: Axes, overview: Overview, draft_len: int, method: str | None) -> None:
    times = {
        size: overview.decode_time(size, _CONTEXT_LEN, draft_len, method) for size in _BATCH_SIZES
    }
    times = {size: time for size, time in times.items() if time.fits}
    label, last = f"k = {draft_len}", sum(time.in_range for time in times.values())
    sizes, values = list(times), [time.seconds * 1e3 for time in times.values()]
    (line,) = axis.plot(sizes[:last], values[:last], "o-", ms=3, label=label)
    # From the last point within on, so that the line does not break.
    start = max(last - 1, 0)
    axis.plot(sizes[start:], values[start:], ".:", ms=3, color=line.get_color(), zorder=1)
