"""What runs did over time, one row of panels per run."""

from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from matplotlib import pyplot as plt

from specsim.results.timeline import Timeline
from specsim.show.plots.save import save

__all__ = ["plot_timelines"]


class _Series(NamedTuple):
    name: str
    label: str
    axis: int


_PANELS = (
    "requests",
    "draft length asked for",
    "acceptance",
    "output tokens per step",
    "output tokens/s",
)
_LABEL_WIDTH = 28
_SERIES = (
    _Series("batch_size", "batch size", 0),
    _Series("num_waiting", "waiting", 0),
    _Series("asked_draft_len", "", 1),
    _Series("acceptance", "measured, accepted / drafted", 2),
    _Series("alpha_estimate", "policy's estimate of alpha", 2),
    _Series("tokens_per_step", "", 3),
    _Series("tokens_per_second", "", 4),
)


def plot_timelines(timelines: dict[str, Timeline], path: Path) -> None:
    """Draw timelines: one row of panels per run, all on the same axes.

    Args:
        timelines: By label.
        path: ``.png``, ``.svg`` or ``.pdf``.
    """
    size = (3.4 * len(_PANELS), 2.6 * len(timelines) + 0.4)
    figure, axes = plt.subplots(
        len(timelines), len(_PANELS), figsize=size, squeeze=False,
        sharex=True, sharey="col", constrained_layout=True,
    )  # fmt: skip
    for row, (label, timeline) in zip(axes, timelines.items(), strict=True):
        times = (timeline["start"] + timeline["end"]) / 2
        for series in _SERIES:
            if series.name != "alpha_estimate" or timeline.knows_alpha:
                row[series.axis].plot(times, timeline[series.name], label=series.label, lw=1)
        row[0].set_ylabel(fill(label, _LABEL_WIDTH))
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
