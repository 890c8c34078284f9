"""Latency against cost, and the front that no run beats in both."""

from dataclasses import dataclass
from statistics import fmean

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from specsim.show.plots.study.drawing import MARKERS, Chart, Drawing, make_log
from specsim.show.report.cells import Cell, is_unstable, values_of
from specsim.show.report.study import COST, MEASURES, Measure

__all__ = ["COST_CHART"]


@dataclass(frozen=True)
class _Offer:
    hardware: int
    policy: int
    cost: float
    latency: float
    is_fine: bool
    """Whether enough requests keep their limits, where that was asked for, and it keeps up."""


def _latency(drawing: Drawing) -> Measure:
    return drawing.measure if drawing.measure.unit == "ms" else MEASURES[0]


def _offers(drawing: Drawing) -> list[_Offer]:
    cost = next(measure for measure in MEASURES if measure.name == COST)
    found = []
    for (hardware, policy, _), cell in sorted(drawing.cells.items()):
        prices = values_of(drawing.study, cell, cost).values()
        latencies = values_of(drawing.study, cell, _latency(drawing)).values()
        if prices and latencies:
            mean = (fmean(prices), fmean(latencies))
            found.append(_Offer(hardware, policy, *mean, _is_fine(drawing, cell)))
    return found


def _is_fine(drawing: Drawing, cell: Cell) -> bool:
    if is_unstable(cell):
        return False
    wanted = drawing.study.capacity["attainment"] if drawing.study.capacity else 0.0
    attainment = next(measure for measure in MEASURES if measure.name == "slo_attainment")
    shares = values_of(drawing.study, cell, attainment).values()
    return not wanted or fmean(shares) >= wanted


def _why_not(drawing: Drawing) -> str | None:
    return None if _offers(drawing) else "no price of this hardware is known"


def _draw(drawing: Drawing) -> Figure:
    figure, axis = plt.subplots(figsize=(7, 4.5), constrained_layout=True)
    offers = _offers(drawing)
    many = len(drawing.axis(0).labels) > 1
    seen = sorted({(offer.hardware, offer.policy) for offer in offers})
    for hardware, policy in seen:
        mine = [o for o in offers if (o.hardware, o.policy) == (hardware, policy)]
        style = drawing.styles[policy]
        label = drawing.names(1)[policy] if hardware == seen[0][0] else None
        axis.plot(
            [o.cost for o in mine],
            [o.latency for o in mine],
            color=style.light,
            marker=MARKERS[style.symbol],
            ms=4,
            lw=0.6,
            alpha=0.6,
            label=label,
        )
        if many:
            last = mine[-1]
            axis.annotate(drawing.names(0)[hardware], (last.cost, last.latency), fontsize=6)
    best = _front(offers)
    axis.step([o.cost for o in best], [o.latency for o in best], where="post", color="black", lw=1)
    measure = _latency(drawing)
    make_log(axis.xaxis)
    make_log(axis.yaxis)
    axis.set_xlabel(
        f"cost, {drawing.study.currency} per million output tokens (black: Pareto front)"
    )
    axis.set_ylabel(f"{measure.title}, {measure.unit}")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    return figure


def _front(offers: list[_Offer]) -> list[_Offer]:
    """Return what no other offer beats in both, by rising cost. Overload is no offer."""
    best: list[_Offer] = []
    for offer in sorted(offers, key=lambda o: (o.cost, o.latency)):
        if offer.is_fine and (not best or offer.latency < best[-1].latency):
            best.append(offer)
    return best


COST_CHART = Chart("cost", _why_not, _draw)
