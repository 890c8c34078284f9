"""The plot of a tuning."""

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from specsim.show.plots.figures import save
from specsim.study.paired import SpeedUp
from specsim.study.tune import Tuning


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
    left.set_xlabel("batch size (dotted: where the best k changes)")
    left.set_ylabel("output throughput over k = 0")
    right.set_xlabel(f"load, {tuning.load_unit}")
    right.set_ylabel("speed-up of mean latency over no speculation")
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
