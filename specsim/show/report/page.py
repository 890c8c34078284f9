"""The page: one HTML file that holds all it needs and may load nothing."""

import json
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from specsim.core.atomic import new_file
from specsim.core.version import __version__
from specsim.show import filled, read_web
from specsim.show.report.study import COST, MEASURES, Axis, Measure, Point, Study, measured, styles
from specsim.study.paired import student_t

_SCRIPTS = (
    "dom", "study", "filters", "chart", "by_load", "cost", "focus", "runs", "answer", "main",
)  # fmt: skip
"""In the order in which they stand on the page."""


def write_page(study: Study, path: Path) -> None:
    """Write the page of a study, the same bytes each time; a ConfigError if the path is no good."""
    plotly, script = get_plotlyjs(), "\n".join(read_web(f"{name}.js") for name in _SCRIPTS)
    parts = {
        "policy": escape(_security_policy(plotly, script)),
        "version": escape(__version__),
        "title": escape(f"{study.title} - specsim"),
        "name": escape(study.title),
        "style": read_web("base.css") + read_web("page.css"),
        "data": _embedded(page_data(study)),
        "plotly": plotly,
        "script": script,
    }
    text = filled(read_web("page.html"), parts)
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _embedded(data: dict[str, Any]) -> str:
    """Return JSON that cannot end the script element it stands in, nor open another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _security_policy(*scripts: str) -> str:
    """Return a policy under which a browser runs these scripts and nothing else, and loads nothing.

    Source: W3C, "Content Security Policy Level 3", section 6.7.2.3.
    """
    digests = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


_SERIES = (
    "time_s", "running", "waiting", "kv_usage", "draft_len", "replicas",
    "prefill_replicas", "decode_replicas", "sessions",
)  # fmt: skip
_PARTS = ("target_s", "draft_s", "overhead_s", "idle_s")


def page_data(study: Study) -> dict[str, Any]:
    """Return the data of a page as plain values, as ``web/study.js`` reads them."""
    finished = study.finished
    values = [measured(study, point) for point in finished]
    shown = [each for each in MEASURES if any(each.name in found for found in values)]
    shown = shown or [MEASURES[0]]  # a page where nothing has ended still says what failed
    replications = sorted({point.replication for point in study.points})
    # Of all timelines together; more are thinned, so that a large sweep stays readable.
    stride = -(-sum(len(p.timeline.get("time_s", ())) for p in finished) // 80_000) or 1
    return {
        "kind": study.kind,
        "axes": [
            _told(axis, "role", "title", "unit", "field", "labels", "numbers")
            for axis in study.axes
        ],
        "policies": _policies(study),
        "baseline": study.baseline,
        "metrics": [
            {
                "name": each.name,
                "title": each.title,
                "unit": _unit(study, each),
                "better": "low" if each.is_low_better else "high",
            }
            for each in shown
        ],
        "replications": replications,
        "points": [
            {
                **_identity(point),
                "replicas": int(point.metrics.get("replicas", 1)),
                **({"gpus": point.pool_gpus, "hour": point.pool_cost} if point.pools else {}),
                "metrics": [_short(found.get(each.name), 6) for each in shown],
                "quantiles": {k: _shorts(v, 4) for k, v in point.distributions.items()},
                "timeline": _timeline(point, stride),
                "breakdown": _breakdown(point),
            }
            for point, found in zip(finished, values, strict=True)
        ],
        "failed": [{**_identity(point), "error": point.error} for point in study.failed],
        "num_expected": study.num_expected,
        "student_t": [round(student_t(n), 5) for n in range(1, 61)],
        **_told(study, "version", "config", "warnings", "slo", "gpus", "step_times"),
        "prices": list(study.prices.items()),
        **_told(study, "currency", "price_date", "capacity"),
    }


def _told(thing: Axis | Study, *names: str) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


def _unit(study: Study, measure: Measure) -> str:
    if measure.name != COST:
        return measure.unit
    target = study.capacity and study.capacity["target_rate"]
    return f"{study.currency} {measure.unit}{f' at {target:g} requests/s' if target else ''}"


def _identity(point: Point) -> dict[str, Any]:
    return {
        "number": point.number,
        "places": list(point.places),
        "replication": point.replication,
        "seed": point.seed,
        "hash": point.config_hash,
    }


def _policies(study: Study) -> list[dict[str, Any]]:
    return [
        {**style._asdict(), "k": k}
        for style, k in zip(
            styles([k == 0 for k in study.draft_lens]), study.draft_lens, strict=True
        )
    ]


def _timeline(point: Point, stride: int) -> dict[str, list[float | None]]:
    """Return the series, each run of `stride` samples averaged into one."""
    series = {name: point.timeline[name] for name in _SERIES if name in point.timeline}
    return {name: _shorts(_thinned(values, stride), 4) for name, values in series.items()}


def _thinned(values: list[float | None], stride: int) -> list[float | None]:
    if stride == 1:
        return values
    groups = (values[start : start + stride] for start in range(0, len(values), stride))
    known = ([v for v in group if v is not None] for group in groups)
    return [sum(group) / len(group) if group else None for group in known]


def _breakdown(point: Point) -> list[float] | None:
    seconds = [point.breakdown.get(name, 0.0) for name in _PARTS]
    return _shorts(seconds, 5) if sum(seconds) > 0 else None


def _shorts(values: Any, digits: int) -> list[Any]:
    return [_short(value, digits) for value in values]


def _short(value: float | None, digits: int) -> float | int | None:
    """Return a number with few digits, and as a whole one if it is."""
    if value is None:
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short
