"""What a report can show of a run: names, titles, units, and which way is better."""

from typing import NamedTuple

from specsim.show.report.study import Point, Study

__all__ = ["COST", "MEASURES", "Measure", "measured"]


class Measure(NamedTuple):
    """One number of a run."""

    name: str
    """As in ``summary.json``, or as `measured` adds it."""
    title: str
    unit: str
    is_low_better: bool = True


COST = "cost_per_mtok"
_LATENCIES = {"e2el": "E2E latency", "ttft": "TTFT", "tpot": "TPOT", "itl": "ITL"}
_STATISTICS = ("mean", "p50", "p90", "p99")

MEASURES = (
    *(
        Measure(f"{statistic}_{kind}_ms", f"{statistic} {title}", "ms")
        for kind, title in _LATENCIES.items()
        for statistic in _STATISTICS
    ),
    Measure("output_throughput", "Output throughput", "tokens/s", False),
    Measure("request_goodput", "Goodput", "requests/s", False),
    Measure("slo_attainment", "Requests within the SLO", "share", False),
    Measure(COST, "Cost", "per million output tokens"),
    Measure("tokens_per_step", "Tokens per step", "", False),
    Measure("spec_decode_acceptance_rate", "Draft acceptance", "%", False),
    Measure("num_preemptions", "Preemptions", ""),
    Measure("unstable", "Queue kept growing", ""),
)
"""The first is shown unless the reader asks for another."""


def measured(study: Study, point: Point) -> dict[str, float]:
    """Return what can be shown of a point.

    Returns:
        By the names of `MEASURES`; what is not known is left out.
    """
    found = dict(point.metrics)
    throughput, goodput = found.get("request_throughput"), found.get("request_goodput")
    if throughput and goodput is not None:
        found["slo_attainment"] = goodput / throughput
    price = study.prices.get(study.axes[0].labels[point.places[0]])
    tokens_per_s = found.get("output_throughput")
    if price is not None and tokens_per_s:
        found[COST] = price * found.get("replicas", 1.0) / 3600 / tokens_per_s * 1e6
    known = {measure.name for measure in MEASURES}
    return {name: value for name, value in found.items() if name in known}
