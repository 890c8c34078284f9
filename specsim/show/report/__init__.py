"""Report: one self-contained page from the results folder of a sweep, a comparison or a run.

`load_study` reads any results folder into a `Study`; `write_page` makes the page, one HTML file
that loads nothing else. Its sources (HTML, CSS, JavaScript) are in ``web/``.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from specsim.core.atomic import new_file
from specsim.core.figures import figures
from specsim.core.version import __version__
from specsim.show import filled, read_web
from specsim.show.cell_statistics import LATENCIES, PARTS, SERIES, TAILS, all_cells, known_measures
from specsim.show.charts import SCHEMA, Spec, of_study, theme, vega
from specsim.show.charts.of_study import STATES, DrawnMeasure, Sketch
from specsim.show.report.folders import load_study
from specsim.show.study import COST, SYMBOLS, Axis, Measure, Point, Study, Style, for_readers

__all__ = ["load_study", "page_data", "write_page", "write_web_page"]

_SCRIPTS = (
    "dom", "study", "filters", "chart", "by_load", "cost", "focus", "runs", "answer", "main",
)  # fmt: skip
"""Scripts of the page, in order."""


def write_page(study: Study, path: Path) -> None:
    """Write the page of a study, always the same bytes; a ConfigError if it cannot be written."""
    script = "\n".join(read_web(f"{name}.js") for name in _SCRIPTS)
    write_web_page(study.title, page_data(study), script, path, vega())


def write_web_page(
    title: str, data: dict[str, Any], script: str, path: Path, library: str = ""
) -> None:
    """Write a page in the style of reports, drawn by a script from the data in ``#data``."""
    parts = {
        "policy": escape(_security_policy(library, script)),
        "version": escape(__version__),
        "title": escape(f"{title} - specsim"),
        "name": escape(title),
        "style": read_web("base.css") + read_web("page.css"),
        "data": _embedded(data),
        "vega": library,
        "script": script,
    }
    text = filled(read_web("page.html"), parts)
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _embedded(data: dict[str, Any]) -> str:
    """Return JSON that can neither end its script element nor open another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _security_policy(*scripts: str) -> str:
    """Return a policy that lets a browser run only these scripts, and load nothing.

    Source: W3C, "Content Security Policy Level 3", section 6.7.2.3.
    """
    digests = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def page_data(study: Study) -> dict[str, Any]:
    """Return the data of a page as plain values, in the form that ``web/study.js`` reads."""
    study = for_readers(study)
    measures = known_measures(study)
    sketch = Sketch(study, _colour, lambda name: f"var(--{name})", has_legend=False)
    points = [*study.finished, *study.failed]
    return {
        "axes": [
            _told(axis, "role", "title", "unit", "field", "labels", "numbers")
            for axis in study.axes
        ],
        "policies": [
            {"colour": _colour(style), "path": SYMBOLS[style.symbol], "k": k, "bound": bound}
            for style, k, bound in zip(sketch.styles, study.draft_lens, study.bounds, strict=True)
        ],
        "metrics": [
            {
                "name": each.name,
                "title": each.title,
                "unit": _unit(study, each),
                "better": "low" if each.is_low_better else "high",
            }
            for each in measures
        ],
        "replications": sorted({point.replication for point in study.points}),
        "cells": all_cells(study, measures),
        "num_ended": len(study.finished),
        "seeds": sorted({point.seed for point in points}),
        "hashes": [*map(list, {each.config_hash: [*each.places] for each in points}.items())],
        "failed": [
            _told(point, "number", "places", "replication", "error") for point in study.failed
        ],
        **_told(study, "baseline", "num_expected", "version", "config", "warnings", "slo", "gpus"),
        "prices": list(study.prices.items()),
        **_told(study, "currency", "price_date", "capacity", "plan", "step_times"),
        **{"series": SERIES, "parts": PARTS, "latencies": LATENCIES, "tails": TAILS},
        "states": STATES,
        "charts": _charts(sketch, measures),
        "theme": theme(lambda name: f"var(--{name})"),
    }


def _charts(sketch: Sketch, measures: Sequence[Measure]) -> dict[str, Spec]:
    """Return the charts of a page; what a reader chooses there is ``{"$": name}``."""
    shown = DrawnMeasure(*({"$": name} for name in DrawnMeasure._fields))
    study = sketch.study
    cost = next((n for n, measure in enumerate(measures) if measure.name == COST), None)
    charts = {
        "over-load": of_study.over_load(sketch, shown),
        "speed-up": of_study.speed_up(sketch, shown),
        "crossover": of_study.crossover(sketch, shown),
        "cdf": of_study.cdf(sketch),
        "timeline": of_study.timeline(sketch),
        "breakdown": of_study.breakdown(sketch),
        **({} if cost is None else {"cost": of_study.cost(sketch, shown, cost)}),
        **({} if study.capacity is None else {"capacity": of_study.capacity(sketch)}),
        **({} if study.plan is None else {"what-ifs": of_study.what_ifs(sketch)}),
    }
    return {name: {"$schema": SCHEMA, **chart} for name, chart in charts.items()}


def _colour(style: Style) -> str:
    return f"light-dark({style.light}, {style.dark})"


def _told(thing: Axis | Point | Study, *names: str) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


def _unit(study: Study, measure: Measure) -> str:
    if measure.name != COST:
        return measure.unit
    target = study.capacity and study.capacity["target_rate"]
    at = f" at {figures(target, 6)} requests/s" if target else ""
    return f"{study.currency} {measure.unit}{at}"
