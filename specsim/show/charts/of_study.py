"""The charts of a study, for pages and papers.

Each reads the dataset ``cells`` (see `specsim.show.cell_statistics`) and assumes nothing about
single cells: the caller chooses the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from specsim.show.cell_statistics import LATENCIES, PARTS, SERIES
from specsim.show.charts import (
    Spec,
    calculate,
    category,
    keep,
    literal,
    log_axis,
    mark,
    number,
    panels,
    quantity,
)
from specsim.show.study import SYMBOLS, Axis, Study, Style, styles, titled

TOLD: Spec = {"tooltip": {"field": "text"}}
"""Contents of the tooltip of a mark."""
STATES = {"overloaded": "the queue kept growing", "undecided": "undecided whether it keeps up"}


class DrawnMeasure(NamedTuple):
    """The measure to draw; on a page it is chosen by the reader."""

    index: Any  # among the measures of a cell
    title: Any  # with its unit
    unit: Any
    is_low_better: Any
    limit: Any  # of the SLO; None without one
    scale: Any  # of the axis: ``log`` or ``linear``


@dataclass(frozen=True)
class Sketch:
    """Settings shared by the charts of one study."""

    study: Study
    colour: Callable[[Style], str]  # of a policy
    named: Callable[[str], str]  # colours of the style sheet
    has_legend: bool

    def axis(self, place: int) -> Axis:
        return self.study.axes[place]

    @cached_property
    def styles(self) -> list[Style]:
        return styles([k == 0 for k in self.study.draft_lens])

    @cached_property
    def names(self) -> list[Spec]:
        """Transforms that add the names for a cell's indices, and its load as a number."""
        fields = {"hardware": ("h", 0), "policy": ("p", 1), "load_name": ("l", 2)}
        labels = {
            name: f"{literal(self.axis(axis).labels)}[datum.{key}]"
            for name, (key, axis) in fields.items()
        }
        where = "datum.policy + ' on ' + datum.hardware + ' at ' + datum.load_name"
        unit = self.axis(2).unit
        load = f"{literal(self.axis(2).numbers)}[datum.l]" if self.axis(2).numbers else "datum.l"
        texts = literal({"stable": "", **{state: f"; {text}" for state, text in STATES.items()}})
        return calculate(
            **labels,
            load=load,
            where=where + (f" + {literal(f' {unit}')}" if unit else ""),
            state_text=f"{texts}[datum.state]",
        )

    def _by_policy(self, values: list[str]) -> Spec:
        legend = {"title": None, "columns": 4} if self.has_legend else None
        domain = self.axis(1).labels
        return category("policy", legend=legend, scale={"domain": domain, "range": values})

    @property
    def by_colour(self) -> Spec:
        return self._by_policy([self.colour(style) for style in self.styles])

    @property
    def by_line_colour(self) -> Spec:
        """As `by_colour`, for charts with lines only."""
        found = self.by_colour
        legend = found["legend"] and {
            **found["legend"],
            "symbolType": "stroke",
            "symbolStrokeWidth": 2,
        }
        return {**found, "legend": legend}

    @property
    def by_shape(self) -> Spec:
        return self._by_policy([SYMBOLS[style.symbol] for style in self.styles])

    def by_hardware(self, spec: Spec, size: tuple[Any, Any] = (300, 230), **resolve: str) -> Spec:
        spec = {**spec, "width": size[0], "height": size[1]}
        return panels("hardware", self.axis(0).labels, 3, spec, **resolve)

    def load(self) -> Spec:
        """Return the encoding of load, as a number if it is one."""
        axis = self.axis(2)
        if not axis.numbers:
            return self.load_column()
        is_log = min(axis.numbers) > 0 and max(axis.numbers) / min(axis.numbers) >= 8
        scale = {"zero": False, "nice": False, "padding": 12}
        # `format` would write ticks of one digit as 2e+1.
        ticks: Spec = {"labelExpr": "format(datum.value, ',~g')"}
        is_searched = self.study.capacity is not None  # loads of a search are close together
        are_round = all(float(f"{number:.3g}") == number for number in axis.numbers)
        if are_round and not is_searched and len(axis.numbers) <= 16:
            ticks["values"] = axis.numbers
        elif is_log:
            ticks = log_axis()
        else:
            ticks["tickCount"] = 8
        if is_log:
            del scale["zero"]
        return quantity("load", titled(axis), log=is_log, scale=scale, axis=ticks)

    def points(self, encoding: Spec) -> list[Spec]:
        """Return markers: open for overloaded runs, with a dot for undecided ones."""
        dot = {key: value for key, value in encoding.items() if key != "shape"}
        encoding = {**encoding, "shape": self.by_shape}
        stable, undecided = "datum.state == 'stable'", "datum.state == 'undecided'"
        look = {"size": 55, "opacity": 1}
        dotted = look | {"size": 9, "shape": "circle"}
        return [
            mark("point", encoding, keep(stable), filled=True, **look),
            mark("point", encoding, keep(f"!({stable})"), filled=False, **look),
            mark("point", dot, keep(undecided), filled=True, **dotted),
        ]

    def load_column(self) -> Spec:
        """Return the encoding of load as a category of the simulated loads."""
        axis = self.axis(2)
        return category("load_name", titled(axis), sort=axis.labels, axis={"labelAngle": 0})

    def limit_lines(
        self, channel: str, rows: list[Spec] | None = None, *, label_at: str = "right"
    ) -> list[Spec]:
        """Return a limit of the SLO as a line across a panel, with a label at one end."""
        own: Spec = {} if rows else {"data": {"values": [{}]}}
        rows = rows or [*calculate(limit="limit"), keep("isValid(datum.limit)")]
        text = calculate(text=f"'SLO ' + {number('datum.limit')} + ' ms'")
        place = {channel: {"field": "limit", "type": "quantitative"}}
        if channel == "y":
            end = "width" if label_at == "right" else 4
            beside: Spec = {"x": {"value": end}, "y": place["y"]}
            look: dict[str, Any] = {"align": label_at, "dy": -6}
        else:
            beside = {"y": {"value": 10}, "x": place["x"]}
            look = {"align": "right", "dx": -5}
        look["color"] = red = self.named("slo")
        label = {**beside, "text": {"field": "text"}}
        return [
            {**own, **mark("rule", place, *rows, color=red, strokeDash=[6, 4], strokeWidth=1.4)},
            {**own, **mark("text", label, *rows, *text, **look)},
        ]


def params(shown: DrawnMeasure) -> Spec:
    """Return the parameters for expressions about the drawn measure."""
    values: Spec = {"metric": shown.index, "unit": shown.unit, "low": shown.is_low_better}
    values |= {"scale": shown.scale, "limit": shown.limit}
    return {"params": [{"name": name, "value": value} for name, value in values.items()]}


_IN_PERCENT = "format(100 * datum.value, '.0f') + ' %'"


def over_load(sketch: Sketch, shown: DrawnMeasure) -> Spec:
    """Return a measure over load: a line per policy with a 95 % band, open marks if overloaded."""
    half = "(datum.half[metric] || 0)"
    spread = f"({half} ? ' ± ' + {number(half)} : '')"
    text = (
        f"datum.where + ': ' + {number('datum.value')} + {spread} + ' ' + unit + datum.state_text"
    )
    floor = "(scale == 'log' ? datum.value / 100 : 0)"  # no axis shows values below 0
    fields = calculate(
        value="datum.mean[metric]",
        low=f"max(datum.value - {half}, {floor})",
        high=f"datum.value + {half}",
        text=text,
    )
    y: Spec = {"field": "value", "type": "quantitative", "title": shown.title}
    y["scale"] = {"type": shown.scale, "nice": False, "padding": 6}
    y["axis"] = {"labelExpr": f"scale == 'log' ? ({log_axis()['labelExpr']}) : datum.label"}
    place = {"x": sketch.load(), "color": sketch.by_colour}
    band = {**place, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    place |= {"y": y}
    layers = [
        mark("area", band, keep("datum.half[metric] != null"), opacity=0.16),
        mark("line", place, strokeWidth=1.8),
        *sketch.points({**place, **TOLD}),
        *sketch.limit_lines("y", label_at="left"),  # where latency is lowest
    ]
    own = [*fields, keep("isValid(datum.value) && (scale != 'log' || datum.value > 0)")]
    return {
        **params(shown),
        "transform": [*sketch.names, *own],
        **sketch.by_hardware({"layer": layers}),
    }


def cost(sketch: Sketch, shown: DrawnMeasure, cost: int) -> Spec:
    """Return latency against cost; dataset ``front`` has the rows of the Pareto front."""
    text = (
        f"datum.where + ': ' + {number('datum.value')} + ' ms, ' + {number('datum.cost')}"
        f" + {literal(f' {sketch.study.currency} per million')} + datum.state_text"
    )
    fields = calculate(value="datum.mean[metric]", cost=f"datum.mean[{cost}]", text=text)
    title, room = f"cost, {sketch.study.currency} per million output tokens", {"padding": 9}
    x = quantity("cost", title, log=True, scale=room)
    y = quantity("value", shown.title, log=True, scale=room)
    place = {"x": x, "y": y, "color": sketch.by_colour}
    edge = {"color": {"value": sketch.named("ink")}, "x": x, "y": y}
    front = {
        "data": {"name": "front"},
        **mark("line", edge, *fields, interpolate="step-after", strokeWidth=1.2),
    }
    path = {**place, "order": {"field": "l", "type": "quantitative"}}
    on_front = {**place, "stroke": {"value": sketch.named("ink")}, "shape": sketch.by_shape}
    rimmed = {"filled": True, "size": 110, "opacity": 1, "strokeWidth": 1.4}
    layers = [
        mark("line", path, opacity=0.35, strokeWidth=1),
        front,
        *sketch.points({**place, **TOLD}),
        mark("point", on_front, keep("datum.front"), **rimmed),
        *sketch.limit_lines("y"),
    ]
    return {
        **params(shown),
        "transform": [*sketch.names, *fields, keep("datum.cost > 0 && datum.value > 0")],
        **sketch.by_hardware({"layer": layers}),
    }


def speed_up(sketch: Sketch, shown: DrawnMeasure) -> Spec:
    """Return the gain of speculation over none, by draft length and load."""
    lens = sketch.study.draft_lens
    order = sorted(range(len(lens)), key=lambda p: (lens[p] is None, lens[p] or 0, p))
    label = [  # two drafters may have the same k
        sketch.axis(1).labels[p] if k is None or lens.count(k) > 1 else f"k = {k}"
        for p, k in enumerate(lens)
    ]
    open_mark = literal({"stable": "", "overloaded": " ○", "undecided": " ?"})
    sure = "datum.gain[metric][1]"
    span = f"'; 95 %: ' + {number(sure)} + ' to ' + {number('datum.gain[metric][2]')}"
    times = "'×' + format(datum.value, '.2f')"
    fields = calculate(
        value="datum.gain[metric][0]",
        row=f"{literal(label)}[datum.p]",
        strength="abs(log(datum.value))",
        short=f"format(datum.value, '.2f') + {open_mark}[datum.state]",
        text=f"datum.where + ': ' + {times} + ({sure} ? {span} : '') + datum.state_text",
    )
    names = list(dict.fromkeys(label[p] for p in order if p != sketch.study.baseline))
    x = sketch.load_column()
    y = category("row", None, sort=names)
    ink = {"scale": {"type": "linear", "domain": [0, 1.1], "range": [0, 0.8], "clamp": True}}
    fill = {
        "color": {
            "condition": {"test": "datum.value >= 1", "value": sketch.named("gain")},
            "value": sketch.named("loss"),
        },
        "opacity": {"field": "strength", "type": "quantitative", "legend": None, **ink},
        **TOLD,
    }
    layers = [mark("rect", fill), mark("text", {"text": {"field": "short"}, **TOLD})]
    baseline = -1 if sketch.study.baseline is None else sketch.study.baseline
    kept = keep(f"datum.p != {baseline} && datum.gain[metric] != null")
    spec = {"layer": layers, "encoding": {"x": x, "y": y}}
    return {
        **params(shown),
        "transform": [kept, *sketch.names, *fields],
        **sketch.by_hardware(spec, ({"step": 52}, {"step": 27})),
    }


def crossover(sketch: Sketch, shown: DrawnMeasure) -> Spec:
    """Return the best policy of each hardware at each load, and its lead."""
    fill = {"color": {**sketch.by_colour, "legend": None}, **TOLD}
    detail = {"color": sketch.named("muted"), "fontSize": 10.5}
    lines = {"policy": {"dy": -13, "fontWeight": "bold"}, "what": detail | {"dy": 1}}
    lines["lead"] = detail | {"dy": 15}
    room = {"expr": "bandwidth('x') - 6"}
    layers = [
        mark("rect", fill, opacity=0.18),
        *(
            mark("text", {"text": {"field": f}, **TOLD}, limit=room, **look)
            for f, look in lines.items()
        ),
    ]
    y = category("hardware", None, sort=sketch.axis(0).labels)
    return {
        **params(shown),
        "transform": [*_WINNERS, *sketch.names, *_lead_texts(sketch)],
        "layer": layers,
        "encoding": {"x": sketch.load_column(), "y": y},
        "width": {"step": 116},
        "height": {"step": 54},
    }


_WINNERS = [
    keep("datum.rank[metric] != null"),
    *calculate(value="datum.mean[metric]", rank_here="datum.rank[metric]"),
    {
        "window": [
            {"op": "row_number", "as": "place"},
            {"op": "lead", "field": "value", "as": "next"},
            {"op": "lead", "field": "p", "as": "next_p"},
        ],
        "sort": [{"field": "rank_here"}],
        "groupby": ["h", "l"],
    },
    keep("datum.place == 1"),
]
"""Keep the best cell of each hardware and load, with the one ranked next."""


def _lead_texts(sketch: Sketch) -> list[Spec]:
    policies, is_bound = literal(sketch.axis(1).labels), literal(sketch.study.bounds)
    lead = "(low ? datum.next / datum.value : datum.value / datum.next)"
    tied = "indexof(datum.ties[metric] || [], datum.next_p) >= 0"
    ahead = f"({tied} ? '= ' + {policies}[datum.next_p] : '×' + format({lead}, '.2f'))"
    what, other = (f"{number(each)} + ' ' + unit" for each in ("datum.value", "datum.next"))
    next_text = f"'; next: ' + {policies}[datum.next_p] + ', ' + {other}"
    tie_text = "'; the paired 95 % interval of the difference includes 0'"
    told = f"(datum.next == null ? '' : {next_text}) + ({tied} ? {tie_text} : '')"
    is_over = "datum.state == 'overloaded' ? 'all overloaded'"
    return calculate(
        next=f"{is_bound}[datum.next_p] ? null : datum.next",  # there is no lead over a bound
        what=what,
        lead=f"{is_over} : datum.next == null ? '' : {ahead}",
        text=f"datum.where + ': ' + {what} + {told} + datum.state_text",
    )


def capacity(sketch: Sketch) -> Spec:
    """Return the capacity of one server, from the rows ``results`` of a capacity plan."""
    assert sketch.study.capacity is not None
    title = f"{sketch.axis(2).unit} that one {sketch.study.capacity['unit']} sustains"
    x = quantity("sustained", title, scale={"zero": True})
    fields = calculate(h="datum.places[0]", p="datum.places[1]", l="0", state="'stable'")
    bar = {"color": sketch.by_colour, **TOLD}
    return {
        "transform": [*fields, *sketch.names],
        "layer": [mark("bar", bar), mark("text", {"text": {"field": "short"}}, align="left", dx=5)],
        "encoding": {
            "x": x,
            "y": category("hardware", None, sort=sketch.axis(0).labels),
            "yOffset": category("policy", sort=sketch.axis(1).labels),
        },
        "width": 520,
        "height": {"step": 24, "for": "offset"},
    }


def what_ifs(sketch: Sketch) -> Spec:
    """Return the alternatives under other assumptions, from the rows of a plan's answer."""
    # On a phone on two lines, without the cost, which the bar shows.
    rented = "replace(replace(datum.rented, regexp(', [^ ]+ [^ ]+ per hour$'), ''), ', ', '|')"
    lines = f"width < 300 ? split({rented}, '|') : datum.rented"
    fields = calculate(text="datum.what + ': ' + datum.rented", lines=lines)
    title = f"{sketch.study.currency} per hour"
    x = quantity("cost", title, scale={"zero": True}, axis={"tickCount": 6})
    fill = {
        "condition": {"test": "datum.change == 'other'", "value": sketch.named("loss")},
        "value": sketch.named("gain"),
    }
    room = {"expr": "width - 4"}
    texts = {"x": {"value": 0}, "text": {"field": "lines"}, **TOLD}
    small = {"dy": {"expr": "width < 300 ? -6 : 0"}, "fontSize": {"expr": "width < 300 ? 10 : 11"}}
    return {
        "transform": fields,
        "layer": [
            mark("bar", {"x": x, "color": fill, **TOLD}, opacity=0.45),
            mark("text", texts, align="left", dx=4, limit=room, lineHeight=12, **small),
        ],
        "encoding": {"y": category("what", None, axis={"labelLimit": 260})},
        "width": 520,
        "height": {"step": 26},
    }


_ENDS = {"min": "least", "max": "most"}
_STEPPED = ("draft_len", "replicas", "prefill_replicas", "decode_replicas")


def cdf(sketch: Sketch) -> Spec:
    """Return the distributions of the latencies, one panel each."""
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
                "datum.policy + ': ' + format(100 * datum.share, '.0f') + ' % within ' + "
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
        axis={"labelExpr": _IN_PERCENT, "tickCount": 5},
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
    """Return a run over time, without series that never change."""
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
    """Return how the time divides, by policy."""
    parts = list(PARTS.values())
    share = "format(100 * datum.share, '.0f') + ' %'"
    stacked = {"stack": "share", "groupby": ["policy"], "sort": [{"field": "part"}]}
    spread: list[Spec] = [
        *calculate(part="[0, 1, 2, 3]"),
        {"flatten": ["part"]},
        *calculate(share="datum.parts[datum.part]", name=f"{literal(parts)}[datum.part]"),
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
        "share of the time of all servers",
        axis={"labelExpr": _IN_PERCENT, "tickCount": 5},
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
