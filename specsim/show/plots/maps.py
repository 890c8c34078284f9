"""Two maps: which policy is best, and what speculation gains."""

from math import log

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specsim.show.plots import panels
from specsim.show.plots.drawing import Chart, Drawing
from specsim.show.report.study import best_policy, gain, values_of

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
