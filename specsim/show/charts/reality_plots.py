"""Charts of real engines: profiles, calibrations, validations, and predictions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specsim.reality.calibration import JUDGED, Calibration
from specsim.reality.profile_fit import ProfileErrors
from specsim.reality.validation import METRICS, Validation
from specsim.reality.validation.prediction_errors import HEADLINES, OF_TOKENS, value_of
from specsim.reality.validation.table_replay import Prediction
from specsim.results.metrics import Requests
from specsim.show.charts import (
    Rows,
    Spec,
    category,
    colour_of,
    distribution,
    keep,
    line_panels,
    mark,
    panels,
    quantity,
    save,
    table,
)
from specsim.show.render.profile_tables import Overview

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXT_LEN = 512  # tokens of each sequence
_DRAFT_LENS = (0, 3, 5)


def _against(kinds: list[str]) -> Spec:
    """Return points of ``y`` over ``x``, both logarithmic, and the line where they are equal."""
    x, y = quantity("x", "measured", log=True), quantity("y", "predicted", log=True)
    dots = mark("point", {"x": x, "y": y, "color": colour_of("kind", kinds)}, filled=True, size=16)
    ends: Spec = {"fold": ["x", "y"], "as": ["of", "x"]}
    span = [{"op": "min", "field": "x", "as": "low"}, {"op": "max", "field": "x", "as": "high"}]
    both = [ends, {"aggregate": span}, {"calculate": "[datum.low, datum.high]", "as": "x"}]
    line = mark(
        "line", {"x": x, "y": {**y, "field": "x"}}, *both, {"flatten": ["x"]}, strokeWidth=0.8
    )
    return {"layer": [dots, {**line, "mark": {**line["mark"], "color": "black"}}]}


def plot_comparison(comparison: ProfileErrors, path: Path, title: str) -> None:
    """Draw predicted over measured step times."""
    points = comparison.points
    measured, predicted = points.seconds * 1e3, comparison.predicted * 1e3
    columns = zip(measured.tolist(), predicted.tolist(), points.mixed.tolist(), strict=True)
    kinds = {True: "with prefill", False: "decode only"}
    rows = [{"x": x, "y": y, "kind": kinds[is_mixed]} for x, y, is_mixed in columns]
    names = [name for name in kinds.values() if any(row["kind"] == name for row in rows)]
    size = {"width": 420, "height": 420}
    save({"title": f"{title}, ms", **table(rows), **_against(names), **size}, path)


def plot_step_times(overview: Overview, path: Path, title: str) -> None:
    """Draw the time of a decode step over its batch size, one panel per drafter."""
    names = {method: method or "drafts that cost nothing" for method in overview.methods}
    rows = [
        row
        for method, panel in names.items()
        for draft_len in _DRAFT_LENS
        for row in _step_times(overview, draft_len, method, panel)
    ]
    x = quantity("x", "batch size, requests", scale={"type": "log", "base": 2, "nice": False})
    y = quantity("y", "step time, ms", scale={"zero": True})
    place = {"x": x, "y": y, "color": colour_of("k", [f"k = {k}" for k in _DRAFT_LENS])}
    look: dict[str, Any] = {"point": {"size": 18}, "strokeWidth": 1.4}
    layers = [
        mark("line", place, keep("datum.inside"), **look),
        mark("line", place, keep("datum.beyond"), strokeDash=[2, 3], **look),
    ]
    spec = panels("panel", list(names.values()), 4, {"layer": layers, "width": 240, "height": 260})
    note = f"{_CONTEXT_LEN} tokens of context each (dotted: beyond the valid range)"
    save({"title": f"{title}, {note}", **table(rows), **spec}, path)


def _step_times(overview: Overview, draft_len: int, method: str | None, panel: str) -> Rows:
    found = {
        size: overview.decode_time(size, _CONTEXT_LEN, draft_len, method) for size in _BATCH_SIZES
    }
    times = {size: time for size, time in found.items() if time.fits}
    last = sum(time.in_range for time in times.values())
    # The range beyond begins at the last point within, so that the line is connected.
    return [
        {
            "x": size, "y": time.seconds * 1e3, "k": f"k = {draft_len}", "panel": panel,
            "inside": place < last, "beyond": place >= max(last - 1, 0) and last < len(times),
        }
        for place, (size, time) in enumerate(times.items())
    ]  # fmt: skip


_TITLES = {"tpot": "mean TPOT", "latency": "mean latency"}


def plot_calibration(found: Calibration, path: Path) -> None:
    """Draw the error of every case, with the spread of the real runs as bars."""
    rows = [row for metric in JUDGED for row in _errors(found, metric)]
    cases = [each.case.name for each in found.results]
    y = category("case", None, sort=cases)
    x = quantity("error", "simulated against measured, %")
    limits = [{"limit": sign * 100 * found.stated_error} for sign in (-1, 1)]
    at = {"y": y, "x": x}
    spread = {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}}
    dotted = mark("rule", {"x": {**x, "field": "limit"}}, strokeDash=[2, 3])
    layers = [
        mark("bar", spread, color="lightgray", height=8),
        mark("point", at, filled=False, size=28),
        mark("point", {"y": y, "x": {**x, "field": "told"}}, filled=True, size=28),
        {**table(limits), **dotted},
        {**table([{"limit": 0}]), **mark("rule", {"x": {**x, "field": "limit"}})},
    ]
    spec = {"layer": layers, "width": 330, "height": {"step": 18}}
    note = "told how fast the machine was (dots) and not (circles); gray: spread of the real runs"
    chart = panels("metric", [_TITLES[metric] for metric in JUDGED], 2, spec)
    save({"title": note, **table(rows), **chart}, path)


def _errors(found: Calibration, metric: str) -> Rows:
    rows = []
    for each in found.results:
        mean = each.statistic(metric, "mean")
        spread = 100 * (mean.spread or 0.0)
        rows.append(
            {
                "metric": _TITLES[metric],
                "case": each.case.name,
                "error": 100 * mean.error,
                "told": 100 * each.mean_at_speed(metric).error,
                "low": -spread,
                "high": spread,
            }
        )
    return rows


_LABELS = {"ttft": "TTFT, s", "tpot": "TPOT, s", "latency": "Latency, s"}


def plot_validation(simulations: dict[str, Validation], path: Path, title: str) -> None:
    """Draw latencies and throughput of a run, measured and simulated; simulations by label."""
    first = next(iter(simulations.values()))
    runs: dict[str, Requests] = {"measured": first.measured}
    runs |= {label: found.simulated for label, found in simulations.items()}
    rows = [
        row
        for metric, of in METRICS.items()
        for label, run in runs.items()
        for row in distribution(of(run), label=label, panel=f"{_LABELS[metric]}: share of requests")
    ]
    last = "output tokens/s, over time in s"
    measured = first.throughput()
    rates = {"measured": [row["measured"] for row in measured]}
    for label, found in simulations.items():
        rates[label] = [row["simulated"] for row in found.throughput()]
    rows += [
        {"x": row["end"], "y": rate, "i": i, "label": label, "panel": last}
        for label, values in rates.items()
        for i, (row, rate) in enumerate(zip(measured, values, strict=True))
    ]

    def draw(place: Spec) -> Spec:
        real = mark("line", place, keep("datum.label == 'measured'"), strokeWidth=3, opacity=0.5)
        ours = mark("line", place, keep("datum.label != 'measured'"), strokeWidth=1.2)
        return {"layer": [real, ours]}

    save(line_panels(rows, list(runs), title, draw), path)


_PREDICTED = {
    "output_tok_s": "output tokens/s",
    f"{OF_TOKENS}_mean_ms": "mean TPOT (ITL where missing), ms",
    "ttft_p50_ms": "median TTFT, ms",
    "e2e_mean_ms": "mean latency, ms",
}


def plot_predictions(predictions: Sequence[Prediction], path: Path, title: str) -> None:
    """Draw predicted against measured, a point per run, a colour per draft length."""
    rows: Rows = []
    for metric in HEADLINES:
        for each in predictions:
            measured, predicted = value_of(each, metric)
            if measured and predicted:
                k = each.run.num_speculative_tokens
                row = {"x": measured, "y": predicted, "k": k, "kind": f"k = {k}"}
                rows.append({**row, "panel": _PREDICTED[metric]})
    kinds = [f"k = {k}" for k in sorted({row["k"] for row in rows})]
    spec = {**_against(kinds), "width": 330, "height": 330}
    chart = panels("panel", list(_PREDICTED.values()), 2, spec, x="independent", y="independent")
    save({"title": title, **table(rows), **chart}, path)
