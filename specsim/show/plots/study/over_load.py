"""A measure over load: a line per policy, a panel per hardware, a band of 95 %."""

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specsim.show.plots.study.drawing import MARKERS, Chart, Drawing, label_load, make_log
from specsim.show.report.cells import is_unstable, values_of
from specsim.study.paired import mean_and_half_width

__all__ = ["OVER_LOAD"]


def _why_not(drawing: Drawing) -> str | None:
    axis = drawing.axis(2)
    return f"all runs have the same load; sweep {axis.field}" if len(axis.labels) < 2 else None


def _draw(drawing: Drawing) -> Figure:
    names = drawing.names(0)
    figure, axes = plt.subplots(
        *(1, len(names)),
        figsize=(max(5.0, 3.6 * len(names)), 3.8),
        sharey=True,
        squeeze=False,
        constrained_layout=True,
    )
    measure = drawing.measure
    for hardware, (axis, name) in enumerate(zip(axes.flat, names, strict=True)):
        for policy in range(len(drawing.axis(1).labels)):
            _draw_policy(axis, drawing, hardware, policy)
        axis.set_title(name, fontsize="medium", loc="left")
        label_load(axis, drawing)
        axis.grid(alpha=0.3)
    first = axes[0, 0]
    first.set_ylabel(f"{measure.title}, {measure.unit}" if measure.unit else measure.title)
    if measure.unit == "ms":
        make_log(first.yaxis)
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(6, len(labels)))
    return figure


def _draw_policy(axis: Axes, drawing: Drawing, hardware: int, policy: int) -> None:
    numbers, style = drawing.load_numbers, drawing.styles[policy]
    places, means, lows, highs, unstable = [], [], [], [], []
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
        unstable.append(is_unstable(cell))
    axis.plot(
        places,
        means,
        color=style.light,
        marker=MARKERS[style.symbol],
        ms=4.5,
        lw=1.4,
        label=drawing.names(1)[policy],
    )
    axis.fill_between(places, lows, highs, color=style.light, alpha=0.12, lw=0)
    broken = [(x, y) for x, y, is_broken in zip(places, means, unstable, strict=True) if is_broken]
    if broken:  # open markers: the queue kept growing
        axis.plot(
            *zip(*broken, strict=True),
            ls="",
            marker=MARKERS[style.symbol],
            ms=4.5,
            mec=style.light,
            mfc="white",
        )


OVER_LOAD = Chart("over-load", _why_not, _draw)
