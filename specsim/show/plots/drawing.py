"""Drawing: what the charts of a study are drawn from, and what they have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from specsim.show.plots import make_log
from specsim.show.report.study import Axis, Cell, Cells, Measure, Study, Style, group, styles

MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P",
    "triangle-down": "v", "pentagon": "p", "x": "X", "hexagon": "h", "star": "*",
    "triangle-left": "<", "triangle-right": ">",
}  # fmt: skip
"""Of matplotlib, by the words of plotly."""


_MAX_TICKS = 16
"""Beyond that not every load has one."""


@dataclass(frozen=True)
class Drawing:
    """What the charts are drawn from."""

    study: Study
    measure: Measure
    hardware: int
    """Index of the one that a closer look is taken at."""
    load: int
    """Likewise."""

    @cached_property
    def cells(self) -> Cells:
        """The runs by hardware, policy and load."""
        return group(self.study)

    @cached_property
    def styles(self) -> list[Style]:
        """Colour and marker of each policy."""
        return styles([k == 0 for k in self.study.draft_lens])

    def names(self, number: int) -> list[str]:
        """Return the labels of hardware (0), policy (1) or load (2)."""
        return [_plain(label) for label in self.axis(number).labels]

    def axis(self, number: int) -> Axis:
        """Return the axis of hardware (0), policy (1) or load (2)."""
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
        """Where the closer look is taken."""
        load = f"{self.names(2)[self.load]} {self.axis(2).unit}".strip()
        return f"{self.names(0)[self.hardware]}, {load}"


@dataclass(frozen=True)
class Chart:
    """One chart."""

    name: str
    """Of its file, without suffix."""
    why_not: Callable[[Drawing], str | None]
    """Says why there is nothing to draw, or gives None."""
    draw: Callable[[Drawing], Figure]


_LINE = 26
"""Letters; longer names take several lines, so that room is left for the axes."""


def _plain(text: str) -> str:
    """Return a text that matplotlib takes literally, and not for a formula."""
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return "\n".join(lines).replace("$", r"\$")


def label_load(axes: Axes, drawing: Drawing) -> None:
    """Say on the horizontal axis which loads were run."""
    axis, numbers = drawing.axis(2), drawing.load_numbers
    axes.set_xlabel(f"{axis.title}, {axis.unit}" if axis.unit else axis.title)
    if axis.numbers and min(numbers) > 0 and max(numbers) / min(numbers) >= 8:
        if len(numbers) > _MAX_TICKS:
            make_log(axes.xaxis)
            return
        axes.set_xscale("log")
    axes.set_xticks(numbers, drawing.names(2), fontsize="small")
    axes.xaxis.set_minor_locator(NullLocator())
