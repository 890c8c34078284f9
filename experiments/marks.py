"""Markers that say whether the server kept up, as the charts of `specsim plot` have them."""

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes

from specsim.results.stability import Stability


def mark_stability(
    axis: Axes, x: Iterable[float], y: Iterable[float], answers: Iterable[Stability], **look: Any
) -> None:
    """Draw markers anew: open where the queue kept growing, with a dot where that is undecided."""
    points = list(zip(x, y, answers, strict=True))
    look = {"marker": "o", "ls": "", **look}
    dot = {**look, "marker": ".", "markersize": 2}
    layers = ((("overloaded", "undecided"), look | {"mfc": "white"}), (("undecided",), dot))
    for states, style in layers:
        marked = [place for *place, found in points if found in states]
        if marked:
            axis.plot(*zip(*marked, strict=True), **style)
