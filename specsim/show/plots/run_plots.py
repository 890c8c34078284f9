"""Runs: latencies and load on the same axes, what happened over time, where it went; a tuning."""

from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from specsim.hardware import GIB
from specsim.results.folder import load_requests, load_steps
from specsim.results.metrics import latencies
from specsim.results.timeline import PARTS, Timeline, timeline
from specsim.show.breakdown import Breakdown
from specsim.show.plots import label_distribution, save
from specsim.study.paired import SpeedUp
from specsim.study.tune import Tuning

_LATENCIES = (("ttft", "TTFT, s"), ("tpot", "TPOT, s"), ("e2el", "End-to-end latency, s"))


def plot_runs(folders: dict[str, Path], path: Path, title: str) -> None:
    """Draw the latencies and the load over time of some runs; results folders by label."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), constrained_layout=True)
    figure.suptitle(title)
    for label, folder in folders.items():
        found = latencies(load_requests(folder))
        for axis, (name, _) in zip(axes.flat, _LATENCIES, strict=False):
            values = np.sort(found[name][~np.isnan(found[name])])
            shares = np.linspace(0, 1, min(len(values), 2000))
            axis.plot(np.quantile(values, shares), shares, label=label)
        series = timeline(load_steps(folder), num_bins=300, window=1)
        times = (series["start"] + series["end"]) / 2
        axes[1, 1].plot(times, series["num_running"] + series["num_waiting"], label=label)
    for axis, (_, description) in zip(axes.flat, _LATENCIES, strict=False):
        label_distribution(axis, description)
    axes[1, 1].set(xlabel="time, s", ylabel="requests in the system")
    axes[0, 0].legend()
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    save(figure, path)


_PANELS = (
    *("requests", "draft length asked for", "acceptance", "output tokens per step"),
    "output tokens/s",
)
_SERIES = (
    ("batch_size", "batch size", 0),
    ("num_waiting", "waiting", 0),
    ("asked_draft_len", "", 1),
    ("acceptance", "measured, accepted / drafted", 2),
    ("alpha_estimate", "policy's estimate of alpha", 2),
    ("tokens_per_step", "", 3),
    ("tokens_per_second", "", 4),
)


def plot_timelines(timelines: dict[str, Timeline], path: Path) -> None:
    """Draw timelines by label: one row of panels per run, all on the same axes."""
    size = (3.4 * len(_PANELS), 2.6 * len(timelines) + 0.4)
    figure, axes = plt.subplots(
        len(timelines), len(_PANELS), figsize=size, squeeze=False,
        sharex=True, sharey="col", constrained_layout=True,
    )  # fmt: skip
    for row, (label, found) in zip(axes, timelines.items(), strict=True):
        times = (found["start"] + found["end"]) / 2
        for name, title, place in _SERIES:
            if name != "alpha_estimate" or found.knows_alpha:
                row[place].plot(times, found[name], label=title, lw=1)
        row[0].set_ylabel(fill(label, 28))
        for axis in row:
            axis.update_datalim([(times[0], 0.0)])  # so that a level line has room above it too
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        if len(axis.lines) > 1:
            axis.legend(fontsize="small")
    for axis in axes[0]:  # the axes below share its limits
        axis.set_ylim(bottom=0)
    axes[0, 2].set_ylim(0, 1.05)
    for axis, title in zip(axes[0], _PANELS, strict=True):
        axis.set_title(title)
    for axis in axes[-1]:
        axis.set_xlabel("time, s")
    save(figure, path)


def plot_breakdown(breakdown: Breakdown, path: Path, title: str) -> None:
    """Draw where time went, by batch size, and where memory went."""
    figure, axes = plt.subplots(1, 2, figsize=(13, 4), constrained_layout=True)
    figure.suptitle(title)
    rows = [breakdown.time.overall, *breakdown.time.rows]
    names = ["all", *(row.label for row in breakdown.time.rows)]
    _stack(axes[0], names, {part: [row.parts[part] for row in rows] for part in PARTS})
    axes[0].set(xlabel="batch size, requests", ylabel="share of the time")
    _stack(axes[1], ["one GPU", "KV cache in use"], _memory_stack(breakdown))
    axes[1].set_ylabel("memory, GiB")
    save(figure, path)


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


def plot_tuning(tuning: Tuning, path: Path, title: str) -> None:
    """Draw the gain of each k by batch size, and its speed-up by load."""
    batches = tuning.batches
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), constrained_layout=True)
    figure.suptitle(title)
    sizes = [float(point.batch_size) for point in batches.points]
    for curve in tuning.curves:
        gains = [point.gains[curve.k] for point in batches.points]
        _draw(left, sizes, gains, curve.k)
        loads = [point.load for point in curve.points]
        _draw(right, loads, [point.speed_up for point in curve.points], curve.k)
    for first, _, _ in batches.ranges[1:]:
        left.axvline(first - 0.5, color="gray", linewidth=0.8, linestyle=":")
    sizes_title = "batch size (dotted: where the best k changes)"
    left.set(xlabel=sizes_title, ylabel="output throughput over k = 0")
    gain_title = "speed-up of mean latency over no speculation"
    right.set(xlabel=f"load, {tuning.load_unit}", ylabel=gain_title)
    for axis in (left, right):
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    left.legend()
    save(figure, path)


def _draw(axis: Axes, places: list[float], values: list[SpeedUp], k: int) -> None:
    (line,) = axis.plot(places, [value.mean for value in values], "o-", ms=3, label=f"k = {k}")
    lows = [value.low if value.low is not None else value.mean for value in values]
    highs = [value.high if value.high is not None else value.mean for value in values]
    axis.fill_between(places, lows, highs, alpha=0.2, color=line.get_color())
