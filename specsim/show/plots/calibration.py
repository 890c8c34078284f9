"""A calibration: errors beside the noise floor, and how well the grid is fitted."""

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from specsim.reality.calibration.results import JUDGED, Judgement
from specsim.show.plots.save import save

__all__ = ["plot_calibration"]

_TITLES = {"tpot": "mean TPOT", "latency": "mean latency"}


def plot_calibration(found: Judgement, path: Path) -> None:
    """Draw the error of every case, with the spread of the real runs as bars.

    Args:
        path: ``.png``, ``.svg`` or ``.pdf``.
    """
    height = 1.5 + 0.25 * len(found.results)
    figure, axes = plt.subplots(
        1, len(JUDGED), figsize=(11, height), sharey=True, constrained_layout=True
    )
    for axis, metric in zip(axes, JUDGED, strict=True):
        _draw(axis, found, metric)
    axes[0].invert_yaxis()
    figure.supxlabel(
        "simulated against measured, %, told how fast the machine was (dots) and not (circles); "
        "gray: spread of the real runs",
        fontsize="medium",
    )
    save(figure, path)


def _draw(axis: Axes, found: Judgement, metric: str) -> None:
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
    axis.set_title(_TITLES[metric])
    axis.grid(axis="x", alpha=0.3)
