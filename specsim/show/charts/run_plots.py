"""Charts of runs: latencies and load, timelines, breakdowns; and of a tuning."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from specsim.hardware import GIB
from specsim.results.folder import load_requests, load_steps
from specsim.results.metrics import latencies
from specsim.results.timeline import PARTS, Timeline, timeline
from specsim.show.breakdown import Breakdown, EngineMemory
from specsim.show.charts import (
    Rows,
    Spec,
    category,
    colour_of,
    distribution,
    line_panels,
    mark,
    quantity,
    save,
    table,
)
from specsim.study.paired import SpeedUp
from specsim.study.tune import Tuning

_LATENCIES = {"ttft": "TTFT, s", "tpot": "TPOT, s", "e2el": "End-to-end latency, s"}
_SHARES = "{}: share of requests"
_IN_SYSTEM = "requests in the system, over time in s"


def plot_runs(folders: dict[str, Path], path: Path, title: str) -> None:
    """Draw the latencies and the load over time of some runs; results folders by label."""
    rows: Rows = []
    for label, folder in folders.items():
        found = latencies(load_requests(folder))
        for name, named in _LATENCIES.items():
            rows += distribution(found[name], label=label, panel=_SHARES.format(named))
        series = timeline(load_steps(folder), num_bins=300, window=1)
        times = (series["start"] + series["end"]) / 2
        counts = series["num_running"] + series["num_waiting"]
        rows += _series(times, counts, label=label, panel=_IN_SYSTEM)
    chart = line_panels(
        rows, list(folders), title, lambda place: mark("line", place, strokeWidth=1.4)
    )
    save(chart, path)


def _series(x: Any, y: Any, **more: Any) -> Rows:
    pairs = enumerate(zip(np.asarray(x).tolist(), np.asarray(y).tolist(), strict=True))
    return [{"i": i, "x": a, "y": None if np.isnan(b) else b, **more} for i, (a, b) in pairs]


_PANELS = {
    "requests": {"batch_size": "batch size", "num_waiting": "waiting"},
    "draft length asked for": {"asked_draft_len": ""},
    "acceptance": {
        "acceptance": "measured, accepted / drafted",
        "alpha_estimate": "policy's estimate of alpha",
    },
    "output tokens per step": {"tokens_per_step": ""},
    "output tokens/s": {"tokens_per_second": ""},
}


def plot_timelines(timelines: dict[str, Timeline], path: Path) -> None:
    """Draw timelines by label: one row of panels per run, all on the same axes."""
    columns = [
        _column(timelines, panel, series, is_first=not place)
        for place, (panel, series) in enumerate(_PANELS.items())
    ]
    save({"hconcat": columns, "resolve": {"scale": {"color": "independent"}}}, path)


def _column(
    timelines: dict[str, Timeline], panel: str, series: Mapping[str, str], *, is_first: bool
) -> Spec:
    rows = [
        row
        for label, found in timelines.items()
        for name, title in series.items()
        if name != "alpha_estimate" or found.knows_alpha
        for row in _series((found["start"] + found["end"]) / 2, found[name], run=label, name=title)
    ]
    names = list(dict.fromkeys(row["name"] for row in rows))
    scale = {"domain": [0, 1.05]} if panel == "acceptance" else {"zero": True}
    place = {
        "x": quantity("x", "time, s"),
        "y": quantity("y", None, scale=scale),
        "color": colour_of("name", names, is_told=len(names) > 1),
    }
    header = {"title": None, "labelOrient": "left", **({} if is_first else {"labels": False})}
    return {
        "title": panel,
        **table(rows),
        "facet": {"row": {**category("run", header=header), "sort": list(timelines)}},
        "spec": {**mark("line", place, strokeWidth=1), "width": 220, "height": 150},
    }


def plot_breakdown(breakdown: Breakdown, path: Path, title: str) -> None:
    """Draw how time divides by batch size, and how memory divides in each pool."""
    times = [("all", breakdown.time.overall), *((row.label, row) for row in breakdown.time.rows)]
    spent = [
        {"x": label, "part": part, "order": n, "y": row.parts[part]}
        for label, row in times
        for n, part in enumerate(PARTS)
    ]
    bars = [
        _stack(spent, "batch size, requests", "share of the time", 60 + 40 * len(times)),
        *(
            _stack(_memory_stack(each), f"{name} pool" if name else None, "memory, GiB", 220)
            for name, each in breakdown.engines.items()
        ),
    ]
    save({"title": title, "hconcat": bars, "resolve": {"scale": {"color": "independent"}}}, path)


def _memory_stack(engine: EngineMemory) -> Rows:
    """Return GiB of one GPU, and of its KV cache, by purpose."""
    # More blocks than fit leave a negative rest, which a stack cannot show.
    gpu = {name: max(0.0, size) / GIB for name, size in engine.memory_parts.items()}
    kv, memory = engine.kv, engine.memory
    block_gib = (memory.block_bytes + memory.draft_block_bytes) / GIB
    use = {
        "used, mean": kv.mean_used * block_gib,
        "used at the peak": (kv.peak_used - kv.mean_used) * block_gib,
        "never used": (kv.num_usable - kv.peak_used) * block_gib,
    }
    bars = {"one GPU": gpu, "KV cache in use": use}
    return [
        {"x": bar, "part": name.replace("_", " "), "order": n, "y": size}
        for bar, parts in bars.items()
        for n, (name, size) in enumerate(parts.items())
    ]


def _stack(rows: Rows, x_title: str | None, y_title: str, width: int) -> Spec:
    parts = list(dict.fromkeys(row["part"] for row in rows))
    place = {
        "x": category("x", x_title, axis={"labelAngle": 0}),
        "y": quantity("y", y_title),
        "color": colour_of("part", parts, orient="right"),
        "order": {"field": "order", "type": "quantitative"},
    }
    return {**table(rows), **mark("bar", place), "width": width, "height": 240}


def plot_tuning(tuning: Tuning, path: Path, title: str) -> None:
    """Draw the gain of each k by batch size, and its speed-up by load."""
    batches = tuning.batches
    sizes = [float(point.batch_size) for point in batches.points]
    names = [f"k = {curve.k}" for curve in tuning.curves]
    left: Rows = []
    right: Rows = []
    for name, curve in zip(names, tuning.curves, strict=True):
        left += _speed_ups(sizes, [point.gains[curve.k] for point in batches.points], name)
        loads = [point.load for point in curve.points]
        right += _speed_ups(loads, [point.speed_up for point in curve.points], name)
    changes = [{"x": first - 0.5} for first, _, _ in batches.ranges[1:]]
    sizes_title = "batch size (dotted: where the best k changes)"
    dotted = mark("rule", {"x": quantity("x", sizes_title)}, strokeDash=[2, 3], color="gray")
    y_titles = "output throughput over k = 0", "speed-up of mean latency over no speculation"
    by_size = _curves(left, names, sizes_title, y_titles[0], {**table(changes), **dotted})
    by_load = _curves(right, names, f"load, {tuning.load_unit}", y_titles[1])
    save({"title": title, "hconcat": [by_size, by_load]}, path)


def _speed_ups(places: list[float], values: list[SpeedUp], name: str) -> Rows:
    return [
        {
            "x": place,
            "y": value.mean,
            "low": value.mean if value.low is None else value.low,
            "high": value.mean if value.high is None else value.high,
            "name": name,
        }
        for place, value in zip(places, values, strict=True)
    ]


def _curves(rows: Rows, names: list[str], x_title: str, y_title: str, *more: Spec) -> Spec:
    scale = {"type": "log", "base": 2, "nice": False}
    x = quantity("x", x_title, scale=scale, axis={"format": ",~g"})
    y = quantity("y", y_title, scale={"zero": False})
    place = {"x": x, "y": y, "color": colour_of("name", names)}
    one = {"data": {"values": [{"y": 1}]}, **mark("rule", {"y": y})}
    band = {**place, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    layers = [mark("area", band, opacity=0.2), mark("line", place, point={"size": 18}), one, *more]
    return {**table(rows), "layer": layers, "width": 400, "height": 300}
