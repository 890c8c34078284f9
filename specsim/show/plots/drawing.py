"""Drawing: what the charts of a study are drawn from, and the two that are maps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from specsim.show.plots import make_log, panels
from specsim.show.report.study import (
    Axis,
    Cell,
    Cells,
    Measure,
    Study,
    Style,
    best_policy,
    gain,
    group,
    styles,
    values_of,
)

_MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P",
    "triangle-down": "v", "pentagon": "p", "x": "X", "hexagon": "h", "star": "*",
    "triangle-left": "<", "triangle-right": ">",
}  # fmt: skip
"""Of matplotlib, by the words of plotly."""


@dataclass(frozen=True)
class Drawing:
    """What the charts are drawn from."""

    study: Study
    measure: Measure
    hardware: int  # index of the one that a closer look is taken at
    load: int  # likewise

    @cached_property
    def cells(self) -> Cells:
        return group(self.study)

    @cached_property
    def styles(self) -> list[Style]:
        return styles([k == 0 for k in self.study.draft_lens])

    def look(self, policy: int) -> dict[str, Any]:
        """Return how a policy's line looks, but for its marker."""
        return {"color": self.styles[policy].light, "label": self.names(1)[policy]}

    def marker(self, policy: int) -> str:
        return _MARKERS[self.styles[policy].symbol]

    def names(self, number: int) -> list[str]:
        return [_plain(label) for label in self.axis(number).labels]

    def axis(self, number: int) -> Axis:
        return self.study.axes[number]

    @property
    def load_numbers(self) -> list[float]:
        """Where each load stands on the horizontal axis."""
        axis = self.axis(2)
        return axis.numbers or [float(place) for place in range(len(axis.labels))]

    @property
    def closer(self) -> dict[int, Cell]:
        """The cells at one hardware and load, by policy."""
        return {
            p: self.cells[self.hardware, p, self.load]
            for p in range(len(self.axis(1).labels))
            if (self.hardware, p, self.load) in self.cells
        }

    @property
    def closer_title(self) -> str:
        load = f"{self.names(2)[self.load]} {self.axis(2).unit}".strip()
        return f"{self.names(0)[self.hardware]}, {load}"


@dataclass(frozen=True)
class Chart:
    """One chart."""

    name: str  # of its file, without suffix
    why_not: Callable[[Drawing], str | None]  # says why there is nothing to draw, or gives None
    draw: Callable[[Drawing], Figure]


_LINE = 26  # letters; longer names take several lines, so that room is left for the axes


def _plain(text: str) -> str:
    """Return a text that matplotlib takes literally, and not for a formula."""
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return "\n".join(lines).replace("$", r"\$")


def label_load(axes: Axes, drawing: Drawing) -> None:
    """Say on the horizontal axis which loads were run."""
    axis, numbers = drawing.axis(2), drawing.load_numbers
    axes.set_xlabel(f"{axis.title}, {axis.unit}" if axis.unit else axis.title)
    if axis.numbers and min(numbers) > 0 and max(numbers) / min(numbers) >= 8:
        if len(numbers) > 16:  # beyond that not every load has one
            make_log(axes.xaxis)
            return
        axes.set_xscale("log")
    axes.set_xticks(numbers, drawing.names(2), fontsize="small")
    axes.xaxis.set_minor_locator(NullLocator())


_SLOW_TO_FAST = LinearSegmentedColormap.from_list("speed-up", ["#d8853b", "#ffffff", "#5b9bd2"])


_OWN_LOADS = "each policy was tried at loads of its own"


def _no_baseline(drawing: Drawing) -> str | None:
    if drawing.study.capacity is not None:
        return _OWN_LOADS
    if drawing.study.baseline is None:
        return "there is no run without speculation (policy off) to compare with"
    return None if len(drawing.axis(1).labels) > 1 else "there is no run with speculation"


def _draw_speed_up(drawing: Drawing) -> Figure:
    lens, baseline = drawing.study.draft_lens, drawing.study.baseline
    assert baseline is not None  # by _no_baseline
    policies = [p for p in range(len(lens)) if p != baseline]
    policies.sort(key=lambda p: (lens[p] is None, lens[p] or 0, p))
    rows = [f"k = {lens[p]}" if lens[p] is not None else drawing.names(1)[p] for p in policies]
    hardware = drawing.names(0)
    width = max(4.0, (1.2 + 0.5 * len(drawing.names(2))) * len(hardware))
    figure, axes = panels(len(hardware), (width, 1.4 + 0.34 * len(rows)))
    grids = [_gains(drawing, number, policies, baseline) for number in range(len(hardware))]
    largest = max((abs(v) for grid in grids for v in grid.flat if np.isfinite(v)), default=1.0)
    norm = Normalize(-max(largest, 0.1), max(largest, 0.1))
    for axis, grid, name in zip(axes, grids, hardware, strict=True):
        axis.imshow(grid, cmap=_SLOW_TO_FAST, norm=norm, aspect="auto")
        for (row, column), value in np.ndenumerate(grid):
            if np.isfinite(value):
                axis.text(column, row, f"{np.exp(value):.2f}", ha="center", va="center", size=7)
        axis.set_title(name, fontsize="medium", loc="left")
        axis.set_yticks(range(len(rows)), rows)
        _label_columns(axis, drawing)
    figure.suptitle(f"Speed-up over no speculation, {drawing.measure.title}", fontsize="medium")
    return figure


def _gains(
    drawing: Drawing, hardware: int, policies: list[int], baseline: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return logarithms of speed-ups, nan where there are no runs."""
    grid = np.full((len(policies), len(drawing.names(2))), np.nan)
    for row, policy in enumerate(policies):
        for load in range(grid.shape[1]):
            found = gain(
                drawing.study,
                drawing.cells.get((hardware, policy, load), []),
                drawing.cells.get((hardware, baseline, load), []),
                drawing.measure,
            )
            if found is not None:
                grid[row, load] = log(found.mean)
    return grid


def _label_columns(axis: Axes, drawing: Drawing) -> None:
    load = drawing.axis(2)
    axis.set_xticks(range(len(load.labels)), drawing.names(2))
    axis.set_xlabel(f"{load.title}, {load.unit}" if load.unit else load.title)
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)


def _no_choice(drawing: Drawing) -> str | None:
    if drawing.study.capacity is not None:
        return _OWN_LOADS
    if len(drawing.axis(1).labels) < 2:
        return "all runs have the same policy; sweep policy"
    if len(drawing.axis(0).labels) * len(drawing.axis(2).labels) < 2:
        return "there is one load and one hardware"
    return None


def _draw_crossover(drawing: Drawing) -> Figure:
    hardware, loads = drawing.names(0), drawing.names(2)
    figure, axis = plt.subplots(
        figsize=(1.4 + 1.15 * len(loads), 1.2 + 0.5 * len(hardware)), constrained_layout=True
    )
    for row in range(len(hardware)):
        for column in range(len(loads)):
            _draw_winner(axis, drawing, row, column)
    axis.set(xlim=(-0.5, len(loads) - 0.5), ylim=(len(hardware) - 0.5, -0.5))
    axis.set_yticks(range(len(hardware)), hardware)
    _label_columns(axis, drawing)
    axis.set_title(f"Best policy by {drawing.measure.title}", fontsize="medium", loc="left")
    return figure


def _draw_winner(axis: Axes, drawing: Drawing, hardware: int, load: int) -> None:
    policy = best_policy(drawing.study, drawing.cells, hardware, load, drawing.measure)
    if policy is None:
        return
    colour = drawing.styles[policy].light
    corner = (load - 0.48, hardware - 0.46)
    axis.add_patch(Rectangle(corner, 0.96, 0.92, facecolor=colour, alpha=0.25, lw=0))
    values = values_of(drawing.study, drawing.cells[hardware, policy, load], drawing.measure)
    mean = sum(values.values()) / len(values)
    text = f"{drawing.names(1)[policy]}\n{mean:,.3g} {drawing.measure.unit}"
    if mean >= 100:
        text = f"{drawing.names(1)[policy]}\n{mean:,.0f} {drawing.measure.unit}"
    axis.text(load, hardware, text, ha="center", va="center", size=7)


SPEED_UP = Chart("speed-up", _no_baseline, _draw_speed_up)
CROSSOVER = Chart("crossover", _no_choice, _draw_crossover)
