"""Real engines: profiles, calibrations, runs beside their simulation, and predicted runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from specsim.reality.calibration import JUDGED, Calibration
from specsim.reality.profile_fit import ProfileErrors
from specsim.reality.validation import METRICS, Validation
from specsim.reality.validation.prediction_errors import HEADLINES, OF_TOKENS, value_of
from specsim.reality.validation.table_replay import Prediction
from specsim.results.metrics import Requests
from specsim.show.plots import label_distribution, make_log, panels, save
from specsim.show.render.profile_tables import Overview

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
    labels = {"xlabel": "measured, ms", "ylabel": "predicted, ms"}
    axis.set(xlim=ends, ylim=ends, aspect="equal", **labels)
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
    axes[0].set(ylabel="step time, ms", ylim=(0, None))  # of all, once all is drawn
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


_LABELS = {"ttft": "TTFT, s", "tpot": "TPOT, s", "latency": "Latency, s"}
_REAL: dict[str, Any] = {"color": "black", "lw": 2.5, "alpha": 0.5}
_OURS: dict[str, Any] = {"lw": 1}


def plot_calibration(found: Calibration, path: Path) -> None:
    """Draw the error of every case, with the spread of the real runs as bars."""
    height = 1.5 + 0.25 * len(found.results)
    figure, axes = plt.subplots(
        1, len(JUDGED), figsize=(11, height), sharey=True, constrained_layout=True
    )
    for axis, metric in zip(axes, JUDGED, strict=True):
        _draw_errors(axis, found, metric)
    axes[0].invert_yaxis()
    figure.supxlabel(
        "simulated against measured, %, told how fast the machine was (dots) and not (circles); "
        "gray: spread of the real runs",
        fontsize="medium",
    )
    save(figure, path)


def _draw_errors(axis: Axes, found: Calibration, metric: str) -> None:
    means = [each.statistic(metric, "mean") for each in found.results]
    places = range(len(means))
    spreads = [200 * (each.spread or 0.0) for each in means]
    axis.barh(places, spreads, left=[-s / 2 for s in spreads], color="lightgray", label="spread")
    axis.plot([100 * each.error for each in means], places, "o", mfc="none", ms=4, label="error")
    told = [100 * each.mean_at_speed(metric).error for each in found.results]
    axis.plot(told, places, "o", ms=4, label="at speed")
    for limit in (-100 * found.stated_error, 100 * found.stated_error):
        axis.axvline(limit, color="black", lw=0.8, ls=":")
    axis.axvline(0, color="black", lw=0.8)
    axis.set_yticks(list(places), [each.case.name for each in found.results])
    axis.set_title({"tpot": "mean TPOT", "latency": "mean latency"}[metric])
    axis.grid(axis="x", alpha=0.3)


def plot_validation(simulations: dict[str, Validation], path: Path, title: str) -> None:
    """Draw the latencies and throughput of a run, measured and simulated; simulations by label."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), constrained_layout=True)
    figure.suptitle(title)
    first = next(iter(simulations.values()))
    runs: dict[str, Requests] = {"measured": first.measured}
    runs |= {label: found.simulated for label, found in simulations.items()}
    for axis, (metric, of) in zip(axes.flat, METRICS.items(), strict=False):
        for label, run in runs.items():
            values = of(run)
            values = np.sort(values[np.isfinite(values)])
            shares = np.arange(1, len(values) + 1) / max(len(values), 1)
            axis.plot(values, shares, label=label, **(_REAL if label == "measured" else _OURS))
        label_distribution(axis, _LABELS[metric])
    last = axes[1, 1]
    rows = first.throughput()
    ends = [row["end"] for row in rows]
    last.plot(ends, [row["measured"] for row in rows], **_REAL)
    for found in simulations.values():
        rows = found.throughput()
        last.plot([row["end"] for row in rows], [row["simulated"] for row in rows], **_OURS)
    last.set(xlabel="time, s", ylabel="output tokens/s")
    axes[0, 0].legend()
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    save(figure, path)


_PREDICTED = {
    "output_tok_s": "output tokens/s",
    f"{OF_TOKENS}_mean_ms": "mean TPOT (ITL where missing), ms",
    "ttft_p50_ms": "median TTFT, ms",
    "e2e_mean_ms": "mean latency, ms",
}


def plot_predictions(predictions: Sequence[Prediction], path: Path, title: str) -> None:
    """Draw predicted against measured, a point per run, a colour per draft length."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 9), constrained_layout=True)
    figure.suptitle(title)
    for axis, metric in zip(axes.flat, HEADLINES, strict=True):
        _draw_predicted(axis, predictions, metric)
        axis.set(xlabel=f"measured {_PREDICTED[metric]}", ylabel="predicted")
        axis.grid(alpha=0.3)
    save(figure, path)


def _draw_predicted(axis: Axes, predictions: Sequence[Prediction], metric: str) -> None:
    points: dict[int, list[tuple[float, float]]] = {}
    for each in predictions:
        measured, predicted = value_of(each, metric)
        if measured and predicted:
            points.setdefault(each.run.num_speculative_tokens, []).append((measured, predicted))
    for k, pairs in sorted(points.items()):
        axis.plot(*zip(*pairs, strict=True), "o", ms=4, alpha=0.6, label=f"k = {k}")
    ends = [value for pairs in points.values() for pair in pairs for value in pair]
    if ends:
        axis.plot([min(ends), max(ends)], [min(ends), max(ends)], color="black", lw=0.8)
        make_log(axis.xaxis)
        make_log(axis.yaxis)
        axis.legend(fontsize="small")
