"""Latencies and load of some runs, on the same axes."""

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from specsim.results.folder import StepsTable, load_requests, load_steps
from specsim.results.metrics import latencies
from specsim.results.timeline import timeline
from specsim.show.plots.save import save

__all__ = ["plot_runs"]

_PANELS = (("ttft", "TTFT, s"), ("tpot", "TPOT, s"), ("e2el", "End-to-end latency, s"))
_MAX_POINTS = 2000
_NUM_BINS = 300


def plot_runs(folders: dict[str, Path], path: Path, title: str) -> None:
    """Draw the latency distributions of some runs, and their load over time.

    Args:
        folders: Results folder of each run, by label.
        path: ``.png``, ``.svg`` or ``.pdf``.
    """
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), constrained_layout=True)
    figure.suptitle(title)
    for label, folder in folders.items():
        found = latencies(load_requests(folder))
        for axis, (name, _) in zip(axes.flat, _PANELS, strict=False):
            _draw_distribution(axis, found[name], label)
        _draw_load(axes[1, 1], load_steps(folder), label)
    for axis, (_, description) in zip(axes.flat, _PANELS, strict=False):
        axis.set_xlabel(description)
        axis.set_ylabel("share of requests")
        axis.set_ylim(0, 1)
    axes[1, 1].set_xlabel("time, s")
    axes[1, 1].set_ylabel("requests in the system")
    axes[0, 0].legend()
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    save(figure, path)


def _draw_distribution(axis: Axes, samples: np.ndarray, label: str) -> None:
    values = np.sort(samples[~np.isnan(samples)])
    shares = np.linspace(0, 1, min(len(values), _MAX_POINTS))
    axis.plot(np.quantile(values, shares), shares, label=label)


def _draw_load(axis: Axes, steps: StepsTable, label: str) -> None:
    series = timeline(steps, num_bins=_NUM_BINS, window=1)
    times = (series["start"] + series["end"]) / 2
    axis.plot(times, series["num_running"] + series["num_waiting"], label=label)
