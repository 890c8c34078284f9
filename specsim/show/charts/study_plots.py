"""The charts of a study as files for papers, one per chart, in the colours of the page."""

from collections.abc import Callable
from pathlib import Path

from specsim.show.cell_statistics import known_measures, told_cells
from specsim.show.charts import Rows, Spec, of_study, print_colour, save
from specsim.show.charts.of_study import DrawnMeasure, Sketch
from specsim.show.study import COST, Measure, Study, for_readers, titled
from specsim.study.capacity.findings import lower_front

_OWN_LOADS = "each was tried at loads of its own"


class _Plots:
    """The charts of one study, one method each; a method returns a text if it cannot draw."""

    def __init__(self, study: Study, measure: Measure) -> None:
        self.study, self.measure = study, measure
        self.measures = known_measures(study)
        self.cells = told_cells(study, self.measures)
        self.sketch = Sketch(study, lambda style: style.light, print_colour, has_legend=True)
        # The closer look is at the first hardware with runs, and a load in the middle.
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
        """Return a chart with its data and a title."""
        data = {"data": {"name": "cells"}, "datasets": {"cells": cells, **datasets}}
        return {**spec, **data, **({"title": title} if title else {})}

    def over_load(self) -> Spec | str:
        axis = self.study.axes[2]
        if len(axis.labels) < 2:
            return f"all runs have the same load; sweep {axis.field}"
        return self.draw(of_study.over_load(self.sketch, self.shown(self.measure)), self.cells)

    def speed_up(self) -> Spec | str:
        if self.study.capacity is not None:
            return _OWN_LOADS
        if self.study.baseline is None:
            return "there is no run without speculation (policy off) to compare with"
        if len(self.study.axes[1].labels) < 2:
            return "there is no run with speculation"
        spec = of_study.speed_up(self.sketch, self.shown(self.measure))
        return self.draw(spec, self.cells, f"Speed-up over no speculation, {self.measure.title}")

    def crossover(self) -> Spec | str:
        if self.study.capacity is not None:
            return _OWN_LOADS
        hardware, policies, loads = (len(axis.labels) for axis in self.study.axes[:3])
        if policies < 2:
            return "all runs have the same policy; sweep policy"
        if hardware * loads < 2:
            return "there is one load and one hardware"
        spec = of_study.crossover(self.sketch, self.shown(self.measure))
        return self.draw(spec, self.cells, f"Best policy by {self.measure.title}")

    def cost(self) -> Spec | str:
        cost = next((n for n, each in enumerate(self.measures) if each.name == COST), None)
        if cost is None:
            return "no price of this hardware is known"
        shown = self.measure if self.measure.unit == "ms" else self.measures[0]
        latency = self.measures.index(shown)
        priced = [
            cell for cell in self.cells if None not in (cell["mean"][cost], cell["mean"][latency])
        ]
        fine = [cell for cell in priced if cell["offer"]]
        fine = [cell for cell in fine if not self.study.bounds[cell["p"]]] or fine
        best = lower_front(fine, lambda cell: (cell["mean"][cost], cell["mean"][latency]))
        front = [{**cell, "front": True} for cell in best]
        rows = [*(cell for cell in priced if cell not in best), *front]
        return self.draw(of_study.cost(self.sketch, self.shown(shown), cost), rows, front=front)

    def cdf(self) -> Spec | str:
        return self._closer(of_study.cdf, "quantiles", "distributions")

    def timeline(self) -> Spec | str:
        return self._closer(of_study.timeline, "timeline", "timeline")

    def breakdown(self) -> Spec | str:
        return self._closer(of_study.breakdown, "parts", "breakdown")

    def _closer(self, chart: Callable[[Sketch], Spec], field: str, what: str) -> Spec | str:
        """Return a chart of those cells of the closer look that have a field."""
        kept = [cell for cell in self.closer if cell[field]]
        if not kept:
            return f"the runs at {self.closer_title} kept no {what}"
        return self.draw(chart(self.sketch), kept, self.closer_title)


CHARTS = ("over-load", "speed-up", "crossover", "cost", "cdf", "timeline", "breakdown")


def plot_study(
    study: Study, measure: Measure, folder: Path, suffix: str
) -> tuple[list[Path], list[str]]:
    """Draw every chart that a `restricted` study has the data for.

    Returns the files, and the reason for each missing chart.
    """
    plots = _Plots(for_readers(study), measure)
    drawn, left_out = [], []
    for name in CHARTS:
        spec = getattr(plots, name.replace("-", "_"))()
        if isinstance(spec, str):
            left_out.append(f"{name}: not drawn: {spec}")
            continue
        drawn.append(folder / f"{name}{suffix}")
        save(spec, drawn[-1])
    return drawn, left_out
