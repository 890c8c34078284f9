"""Plots of runs, for terminals that are papers."""

from pathlib import Path

import matplotlib
import numpy as np
import pyarrow.parquet as pq
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from specsim.atomic import new_file

__all__ = ["plot_runs"]

matplotlib.use("Agg")

_PANELS = (("ttft", "TTFT, s"), ("tpot", "TPOT, s"), ("e2el", "End-to-end latency, s"))
_MAX_POINTS = 2000


def plot_runs(folders: dict[str, Path], path: Path, title: str) -> None:
    """Draw the latency distributions of some runs, and their load over time.

    Parameters
    ----------
    folders : dict of str to Path
        Results folder of each run, by label.
    path : Path
        ``.png``, ``.svg`` or ``.pdf``.
    title : str
    """
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), constrained_layout=True)
    figure.suptitle(title)
    for label, folder in folders.items():
        requests = pq.read_table(folder / "requests.parquet", columns=[n for n, _ in _PANELS])
        for axis, (name, _) in zip(axes.flat, _PANELS, strict=False):
            _draw_distribution(axis, requests[name].to_numpy(), label)
        _draw_load(axes[1, 1], folder, label)
    for axis, (_, description) in zip(axes.flat, _PANELS, strict=False):
        axis.set_xlabel(description)
        axis.set_ylabel("share of requests")
        axis.set_ylim(0, 1)
    axes[1, 1].set_xlabel("time, s")
    axes[1, 1].set_ylabel("requests in the system")
    axes[0, 0].legend()
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    with new_file(path) as temporary:
        # No time stamp inside: the same runs give the same bytes.
        metadata = {"Software": None} if path.suffix == ".png" else None
        figure.savefig(temporary, format=path.suffix[1:], dpi=120, metadata=metadata)
    plt.close(figure)


def _draw_distribution(axis: Axes, samples: np.ndarray, label: str) -> None:
    values = np.sort(samples[~np.isnan(samples)])
    shares = np.linspace(0, 1, min(len(values), _MAX_POINTS))
    axis.plot(np.quantile(values, shares), shares, label=label)


def _draw_load(axis: Axes, folder: Path, label: str) -> None:
    columns = ["scheduled_at", "num_running", "num_waiting"]
    steps = pq.read_table(folder / "steps.parquet", columns=columns)
    times = steps["scheduled_at"].to_numpy()
    load = steps["num_running"].to_numpy() + steps["num_waiting"].to_numpy()
    edges = np.linspace(times.min(), times.max(), min(len(times), 300) + 1)
    bins = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(bins, minlength=len(edges) - 1)
    sums = np.bincount(bins, weights=load, minlength=len(edges) - 1)
    filled = counts > 0
    axis.plot(edges[:-1][filled], sums[filled] / counts[filled], label=label)
