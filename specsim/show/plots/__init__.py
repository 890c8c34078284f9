"""What all plots have in common: panels, scales, and files that are the same for the same data."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError
from specsim.core.marks import PICTURE_MARK
from specsim.results.stability import Stability

matplotlib.use("Agg")  # no window

_METADATA: dict[str, dict[str, str | None]] = {  # no time stamp
    ".png": {"Software": PICTURE_MARK},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None, "Creator": PICTURE_MARK},
}


def check_suffix(path: Path) -> None:
    """Raise a ConfigError for a path that ends in none of ``.png``, ``.svg``, ``.pdf``."""
    if path.suffix not in _METADATA:
        raise ConfigError(
            f"{path}: a plot must end in {', '.join(_METADATA)}, not '{path.suffix}'; rename it"
        )


def save(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all, and close it; a ConfigError if the path is no good."""
    check_suffix(path)
    # The ids of an SVG would be random otherwise.
    with new_file(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "specsim"}):
        figure.savefig(temporary, format=path.suffix[1:], dpi=120, metadata=_METADATA[path.suffix])
    plt.close(figure)


_FACES: dict[Stability, dict[str, Any]] = {
    "overloaded": {"markerfacecolor": "white"},
    "undecided": {"fillstyle": "bottom", "markerfacecoloralt": "white"},
}


def mark_stability(
    axis: Axes, x: Iterable[float], y: Iterable[float], answers: Iterable[Stability], **look: Any
) -> None:
    """Draw markers anew: open where the queue kept growing, half open where that is undecided."""
    points = list(zip(x, y, answers, strict=True))
    for answer, face in _FACES.items():
        marked = [place for *place, found in points if found == answer]
        if marked:
            axis.plot(*zip(*marked, strict=True), **{"marker": "o", "ls": "", **look, **face})


def panels(count: int, size: tuple[float, float]) -> tuple[Figure, NDArray[np.object_]]:
    """Return a figure with a row of panels that share their vertical axis."""
    figure, axes = plt.subplots(
        *(1, count), figsize=size, sharey=True, squeeze=False, constrained_layout=True
    )
    return figure, axes[0]


def label_distribution(axis: Axes, title: str) -> None:
    """Label an axis that shows shares of requests."""
    axis.set(xlabel=title, ylabel="share of requests", ylim=(0, 1))


def make_log(scale: Axis) -> None:
    """Make an axis logarithmic, with whole numbers at its ticks."""
    is_x = scale is scale.axes.xaxis
    (scale.axes.set_xscale if is_x else scale.axes.set_yscale)("log")
    scale.set_major_locator(LogLocator(subs=(1, 2, 5)))
    scale.set_major_formatter("{x:g}")
    scale.set_minor_formatter(NullFormatter())
