"""Plots of runs, for terminals that are papers."""

from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import matplotlib
import numpy as np
import pyarrow.parquet as pq
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specsim.atomic import new_file
from specsim.breakdown import Breakdown
from specsim.errors import ConfigError
from specsim.hardware import GIB
from specsim.results.time_use import PARTS
from specsim.results.timeline import Timeline

__all__ = ["plot_breakdown", "plot_format", "plot_runs", "plot_timelines"]

matplotlib.use("Agg")

_PANELS = (("ttft", "TTFT, s"), ("tpot", "TPOT, s"), ("e2el", "End-to-end latency, s"))
_MAX_POINTS = 2000

# No time stamp inside: the same runs give the same bytes.
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


class _Series(NamedTuple):
    name: str
    label: str
    axis: int


_TIMELINE_PANELS = (
    "requests",
    "draft length asked for",
    "acceptance",
    "output tokens per step",
    "output tokens/s",
)
_LABEL_WIDTH = 28
_SERIES = (
    _Series("batch_size", "batch size", 0),
    _Series("num_waiting", "waiting", 0),
    _Series("asked_draft_len", "", 1),
    _Series("acceptance", "measured, accepted / drafted", 2),
    _Series("alpha_estimate", "policy's estimate of alpha", 2),
    _Series("tokens_per_step", "", 3),
    _Series("tokens_per_second", "", 4),
)


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
        _save(figure, temporary, path.suffix)


def plot_format(path: Path) -> str:
    """Return the format of a plot by the suffix of its path, checked.

    Parameters
    ----------
    path : Path

    Returns
    -------
    str
        ``.png``, ``.svg`` or ``.pdf``.

    Raises
    ------
    ConfigError
        Another suffix.
    """
    if path.suffix not in _METADATA:
        raise ConfigError(
            f"{path}: a plot must end in {', '.join(_METADATA)}, not '{path.suffix}'; rename it"
        )
    return path.suffix


def _save(figure: Figure, path: Path, suffix: str) -> None:
    """Write a figure and close it."""
    # The ids of an SVG would be random otherwise.
    with matplotlib.rc_context({"svg.hashsalt": "specsim"}):
        figure.savefig(path, format=suffix[1:], dpi=120, metadata=_METADATA[suffix])
    plt.close(figure)


def plot_timelines(timelines: dict[str, Timeline], path: Path, suffix: str) -> None:
    """Draw timelines: one row of panels per run, all on the same axes.

    Parameters
    ----------
    timelines : dict of str to Timeline
        By label.
    path : Path
        Written as it is; `new_file` makes it appear whole or not at all.
    suffix : str
        From `plot_format`.
    """
    size = (3.4 * len(_TIMELINE_PANELS), 2.6 * len(timelines) + 0.4)
    figure, axes = plt.subplots(
        len(timelines), len(_TIMELINE_PANELS), figsize=size, squeeze=False,
        sharex=True, sharey="col", constrained_layout=True,
    )  # fmt: skip
    for row, (label, timeline) in zip(axes, timelines.items(), strict=True):
        times = (timeline["start"] + timeline["end"]) / 2
        for series in _SERIES:
            if series.name != "alpha_estimate" or timeline.knows_alpha:
                row[series.axis].plot(times, timeline[series.name], label=series.label, lw=1)
        row[0].set_ylabel(fill(label, _LABEL_WIDTH))
        for axis in row:
            axis.update_datalim([(times[0], 0.0)])  # so that a level line has room above it too
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        if len(axis.lines) > 1:
            axis.legend(fontsize="small")
    for axis in axes[0]:  # the axes below share its limits
        axis.set_ylim(bottom=0)
    axes[0, 2].set_ylim(0, 1.05)
    for axis, title in zip(axes[0], _TIMELINE_PANELS, strict=True):
        axis.set_title(title)
    for axis in axes[-1]:
        axis.set_xlabel("time, s")
    _save(figure, path, suffix)


def plot_breakdown(breakdown: Breakdown, path: Path, suffix: str, title: str) -> None:
    """Draw where time went, by batch size, and where memory went.

    Parameters
    ----------
    breakdown : Breakdown
    path : Path
        Written as it is, like that of `plot_timelines`.
    suffix : str
        From `plot_format`.
    title : str
    """
    figure, axes = plt.subplots(1, 2, figsize=(13, 4), constrained_layout=True)
    figure.suptitle(title)
    rows = [breakdown.time.overall, *breakdown.time.rows]
    names = ["all", *(row.label for row in breakdown.time.rows)]
    _stack(axes[0], names, {part: [row.parts[part] for row in rows] for part in PARTS})
    axes[0].set_xlabel("batch size, requests")
    axes[0].set_ylabel("share of the time")
    _stack(axes[1], ["one GPU", "KV cache in use"], _memory_stack(breakdown))
    axes[1].set_ylabel("memory, GiB")
    _save(figure, path, suffix)


def _memory_stack(breakdown: Breakdown) -> dict[str, list[float]]:
    """Return GiB of one GPU, and of its KV cache, by what they are for."""
    # More blocks than fit leave a negative rest, which a stack cannot show.
    parts = {name: max(0.0, size) / GIB for name, size in breakdown.memory_parts.items()}
    kv, memory = breakdown.kv, breakdown.memory
    block_gib = (memory.block_bytes + memory.draft_block_bytes) / GIB
    use = {
        "used, mean": kv.mean_used,
        "used at the peak": kv.peak_used - kv.mean_used,
        "never used": kv.num_usable - kv.peak_used,
    }
    return {
        **{name.replace("_", " "): [size, 0.0] for name, size in parts.items()},
        **{name: [0.0, blocks * block_gib] for name, blocks in use.items()},
    }


def _stack(axis: Axes, names: list[str], parts: dict[str, list[float]]) -> None:
    bottom = np.zeros(len(names))
    for label, heights in parts.items():
        axis.bar(names, heights, bottom=bottom, label=label)
        bottom += heights
    axis.legend(fontsize="small", bbox_to_anchor=(1, 1), loc="upper left", reverse=True)


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
