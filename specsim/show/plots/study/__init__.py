"""The charts of a study, for papers: one file per chart, in the colours of the page."""

from pathlib import Path

from specsim.show.plots.save import save
from specsim.show.plots.study.closer import BREAKDOWN, CDF, TIMELINE
from specsim.show.plots.study.cost import COST_CHART
from specsim.show.plots.study.drawing import Drawing
from specsim.show.plots.study.maps import CROSSOVER, SPEED_UP
from specsim.show.plots.study.over_load import OVER_LOAD
from specsim.show.report.study import Measure, Study

__all__ = ["plot_study"]

_CHARTS = (OVER_LOAD, SPEED_UP, CROSSOVER, COST_CHART, CDF, TIMELINE, BREAKDOWN)


def plot_study(
    study: Study, measure: Measure, folder: Path, suffix: str
) -> tuple[list[Path], list[str]]:
    """Draw every chart that the runs of a study allow.

    Args:
        study: Of hardware, policy and load alone; see `specsim.show.report.cells.restricted`.
        measure: What is drawn over load and compared.
        folder: Made if missing.
        suffix: ``.svg``, ``.png`` or ``.pdf``.

    Returns:
        drawn
        left_out: Why each of the others is missing.
    """
    # The closer look is taken where there are runs: first hardware, load in the middle.
    hardware = min((point.places[0] for point in study.finished), default=0)
    loads = sorted({p.places[2] for p in study.finished if p.places[0] == hardware}) or [0]
    drawing = Drawing(study, measure, hardware, loads[len(loads) // 2])
    drawn, left_out = [], []
    for chart in _CHARTS:
        reason = chart.why_not(drawing)
        if reason is not None:
            left_out.append(f"{chart.name}: not drawn: {reason}")
            continue
        path = folder / f"{chart.name}{suffix}"
        save(chart.draw(drawing), path)
        drawn.append(path)
    return drawn, left_out
