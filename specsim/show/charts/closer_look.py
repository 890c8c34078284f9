"""The charts of one load on one kind of hardware: latencies, what happens over time, where it goes.

They read the dataset ``cells``, as those of `specsim.show.charts.of_study` do.
"""

from specsim.show.cell_statistics import LATENCIES, PARTS, SERIES
from specsim.show.charts import (
    Spec,
    calculate,
    category,
    keep,
    literal,
    mark,
    number,
    panels,
    quantity,
)
from specsim.show.charts.sketch import TOLD, Sketch

_ENDS = {"min": "least", "max": "most"}
_STEPPED = ("draft_len", "replicas", "prefill_replicas", "decode_replicas")


def cdf(sketch: Sketch) -> Spec:
    """Return the distributions of the latencies, a panel for each."""
    names = literal(list(LATENCIES))
    titles = [f"{title}, ms" for title in LATENCIES.values()]
    limits = literal([sketch.study.slo.get(name) for name in LATENCIES])
    spread: list[Spec] = [
        *calculate(kind="[0, 1, 2]"),
        {"flatten": ["kind"]},
        *calculate(value=f"datum.quantiles[{names}[datum.kind]]"),
        keep("isValid(datum.value)"),
        *calculate(count="length(datum.value)", share="sequence(datum.count)"),
        {"flatten": ["value", "share"]},
        *calculate(
            share="datum.share / (datum.count - 1)",
            latency=f"{literal(titles)}[datum.kind]",
            limit=f"{limits}[datum.kind]",
            text=(
                "datum.policy + ': ' + format(datum.share, '.0%') + ' within ' + "
                f"{number('datum.value')} + ' ms'"
            ),
        ),
        keep("datum.value > 0"),
    ]
    x = quantity("value", None, log=True)
    y = quantity(
        "share",
        "share of requests",
        scale={"domain": [0, 1]},
        axis={"format": ".0%", "tickCount": 5},
    )
    place = {"x": x, "y": y, "color": sketch.by_line_colour}
    first: list[Spec] = [
        {"aggregate": [{"op": "max", "field": "limit", "as": "limit"}], "groupby": ["latency"]},
        keep("isValid(datum.limit)"),
    ]
    layers = [
        mark("line", place, strokeWidth=1.8),
        mark("point", {**place, **TOLD}, opacity=0, size=60),
        *sketch.limit_lines("x", first),
    ]
    spec = {"layer": layers, "width": 240, "height": 200}
    return {
        "transform": [*sketch.names, *spread],
        **panels("latency", titles, 3, spec, x="independent"),
    }


def timeline(sketch: Sketch) -> Spec:
    """Return what happened over time; what never changes is left out."""
    names, titles = literal(list(SERIES)), literal(SERIES)
    text = f"datum.policy + ': ' + {number('datum.value')} + ' at ' + {number('datum.time')} + ' s'"
    ends = [{"op": op, "field": "value", "as": name} for op, name in _ENDS.items()]
    spread: list[Spec] = [
        *calculate(name=names),
        {"flatten": ["name"]},
        *calculate(value="datum.timeline[datum.name]", time="datum.timeline.time_s"),
        keep("isValid(datum.value)"),
        {"flatten": ["value", "time"]},
        *calculate(series=f"{titles}[datum.name]", text=text),
        {"joinaggregate": ends, "groupby": ["name"]},
        keep("datum.least < datum.most"),
    ]
    x, y = quantity("time", "time, s"), quantity("value", None, axis={"tickCount": 4})
    place = {"x": x, "y": y, "color": sketch.by_line_colour}
    stepped = f"indexof({literal(_STEPPED)}, datum.name) >= 0"
    layers = [
        mark("line", place, keep(f"!({stepped})"), strokeWidth=1.3),
        mark("line", place, keep(stepped), strokeWidth=1.3, interpolate="step-after"),
        mark("point", {**place, **TOLD}, keep("isValid(datum.value)"), opacity=0, size=40),
    ]
    spec = {"layer": layers, "width": 330, "height": 120}
    return {
        "transform": [*sketch.names, *spread],
        **panels("series", list(SERIES.values()), 2, spec, y="independent"),
    }


def breakdown(sketch: Sketch) -> Spec:
    """Return where the time went, by policy."""
    parts = list(PARTS.values())
    share = "format(datum.share, '.0%')"
    stacked = {"stack": "share", "groupby": ["policy"], "sort": [{"field": "part"}]}
    spread: list[Spec] = [
        *calculate(part="[0, 1, 2, 3]"),
        {"flatten": ["part"]},
        *calculate(
            share="datum.parts[datum.part]",
            name=f"{literal(parts)}[datum.part]",
        ),
        stacked | {"as": ["from", "to"]},
        *calculate(
            middle="(datum.from + datum.to) / 2",
            short=f"datum.share >= 0.04 ? {share} : ''",
            text=f"datum.policy + ': ' + datum.name + ' ' + {share}",
        ),
    ]

    def colours(ground: str) -> list[str]:
        return [sketch.named(f"{ground}-{name}") for name in PARTS]

    by_part = category(
        "name",
        legend={"title": None, "columns": 4, "symbolType": "square"},
        scale={"domain": parts, "range": colours("part")},
    )
    on_part = category("name", legend=None, scale={"domain": parts, "range": colours("on")})
    x = quantity(
        "from",
        "share of the time of all replicas",
        axis={"format": ".0%"},
        scale={"domain": [0, 1], "nice": False},
    )
    bar = {"x": x, "x2": {"field": "to"}, "fill": by_part, **TOLD}
    share_text = {"x": {**x, "field": "middle"}, "text": {"field": "short"}, "fill": on_part}
    layers = [mark("bar", bar, height={"band": 0.8}), mark("text", share_text)]
    return {
        "transform": [*sketch.names, *spread],
        "layer": layers,
        "encoding": {"y": category("policy", None, sort=sketch.axis(1).labels)},
        "resolve": {"scale": {"fill": "independent"}},
        "width": 520,
        "height": {"step": 34},
    }
