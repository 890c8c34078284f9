"""The charts of a study as files, for papers: one file per chart, in the colours of the page."""

from collections.abc import Callable
from pathlib import Path

from specsim.show.cell_statistics import known_measures, told_cells
from specsim.show.charts import Rows, Spec, of_study, print_colour, save
from specsim.show.charts.of_study import DrawnMeasure, Sketch
from specsim.show.study import COST, Measure, Study, for_readers, titled
from specsim.study.capacity.findings import lower_front

_OWN_LOADS = "each was tried at loads of its own"


class _Plots:
    """What the charts of one study are drawn from, one method each: rows, and what they show."""

    def __init__(self, study: Study, measure: Measure) -> None:
        self.study, self.measure = study, measure
        self.measures = known_measures(study)
        self.cells = told_cells(study, self.measures)
        self.sketch = Sketch(study, lambda style: style.light, print_colour, has_legend=True)
        # The closer look is taken where there are runs: first hardware, load in the middle.
        hardware = min((cell["h"] for cell in self.cells), default=0)
        loads = sorted({cell["l"] for cell in self.cells if cell["h"] == hardware}) or [0]
        self.place = (hardware, loads[len(loads) // 2])
        self.closer = [cell for cell in self.cells if (cell["h"], cell["l"]) == self.place]

    @property
    def closer_title(self) -> str:
        hardware, load = self.study.axes[0], self.study.axes[2]
        here = f"{load.labels[self.place[1]]} {load.unit}".strip()
        return f"{hardware.labels[self.place[0]]}, {here}"

    def shown(self, measure: Measure) -> DrawnMeasure:
        return DrawnMeasure(
            self.measures.index(measure),
            titled(measure),
            measure.unit,
            measure.is_low_better,
            limit=self.study.slo.get(measure.name.partition("_")[2]),
            scale="log" if measure.unit == "ms" else "linear",
        )

    def draw(self, spec: Spec, cells: Rows, title: str = "", **datasets: Rows) -> Spec:
        """Return a chart with its rows, and a title above it."""
        data = {"data": {"name": "cells"}, "datasets": {"cells": cells, **datasets}}
        return {**spec, **data, **({"title": title} if title else {})}

    def over_load(self) -> Spec:
        return self.draw(of_study.over_load(self.sketch, self.shown(self.measure)), self.cells)

    def speed_up(self) -> Spec:
        spec = of_study.speed_up(self.sketch, self.shown(self.measure))
        return self.draw(spec, self.cells, f"Speed-up over no speculation, {self.measure.title}")

    def crossover(self) -> Spec:
        spec = of_study.crossover(self.sketch, self.shown(self.measure))
        return self.draw(spec, self.cells, f"Best policy by {self.measure.title}")

    @property
    def _latency(self) -> Measure:
        return self.measure if self.measure.unit == "ms" else self.measures[0]

    @property
    def places(self) -> tuple[int, int] | None:
        """Where a cell has its cost and its latency, if costs are known."""
        cost = next((n for n, each in enumerate(self.measures) if each.name == COST), None)
        return None if cost is None else (cost, self.measures.index(self._latency))

    def cost(self) -> Spec:
        assert self.places is not None  # by `why_not`
        cost, latency = self.places
        priced = [
            cell for cell in self.cells if None not in (cell["mean"][cost], cell["mean"][latency])
        ]
        fine = [cell for cell in priced if cell["offer"]]
        fine = [cell for cell in fine if not self.study.bounds[cell["p"]]] or fine
        best = lower_front(fine, lambda cell: (cell["mean"][cost], cell["mean"][latency]))
        front = [{**cell, "front": True} for cell in best]
        rows = [*(cell for cell in priced if cell not in best), *front]
        shown = self.shown(self._latency)
        return self.draw(of_study.cost(self.sketch, shown, cost), rows, front=front)

    def cdf(self) -> Spec:
        return self.draw(of_study.cdf(self.sketch), self.closer, self.closer_title)

    def timeline(self) -> Spec:
        return self.draw(of_study.timeline(self.sketch), self.closer, self.closer_title)

    def breakdown(self) -> Spec:
        kept = [cell for cell in self.closer if cell["parts"]]
        return self.draw(of_study.breakdown(self.sketch), kept, self.closer_title)


def _same_load(plots: _Plots) -> str | None:
    axis = plots.study.axes[2]
    return f"all runs have the same load; sweep {axis.field}" if len(axis.labels) < 2 else None


def _no_baseline(plots: _Plots) -> str | None:
    if plots.study.capacity is not None:
        return _OWN_LOADS
    if plots.study.baseline is None:
        return "there is no run without speculation (policy off) to compare with"
    is_alone = len(plots.study.axes[1].labels) < 2
    return "there is no run with speculation" if is_alone else None


def _no_choice(plots: _Plots) -> str | None:
    if plots.study.capacity is not None:
        return _OWN_LOADS
    hardware, policies, loads = (len(axis.labels) for axis in plots.study.axes[:3])
    if policies < 2:
        return "all runs have the same policy; sweep policy"
    return "there is one load and one hardware" if hardware * loads < 2 else None


def _without(field: str, part: str) -> Callable[[_Plots], str | None]:
    def why_not(plots: _Plots) -> str | None:
        if any(cell[field] for cell in plots.closer):
            return None
        return f"the runs at {plots.closer_title} kept no {part}"

    return why_not


_WHY_NOT: dict[str, Callable[[_Plots], str | None]] = {
    "over-load": _same_load,
    "speed-up": _no_baseline,
    "crossover": _no_choice,
    "cost": lambda plots: None if plots.places else "no price of this hardware is known",
    "cdf": _without("quantiles", "distributions"),
    "timeline": _without("timeline", "timeline"),
    "breakdown": _without("parts", "breakdown"),
}
CHARTS = tuple(_WHY_NOT)


def plot_study(
    study: Study, measure: Measure, folder: Path, suffix: str
) -> tuple[list[Path], list[str]]:
    """Draw every chart that the runs of a `restricted` study allow.

    Returns what was drawn, and why each of the others is missing.
    """
    plots = _Plots(for_readers(study), measure)
    drawn, left_out = [], []
    for name in CHARTS:
        reason = _WHY_NOT[name](plots)
        if reason is not None:
            left_out.append(f"{name}: not drawn: {reason}")
            continue
        path = folder / f"{name}{suffix}"
        save(getattr(plots, name.replace("-", "_"))(), path)
        drawn.append(path)
    return drawn, left_out
