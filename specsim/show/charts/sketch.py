"""What the charts of a study have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

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
"""What a mark says when it is pointed at."""
STATES = {"overloaded": "the queue kept growing", "undecided": "undecided whether it keeps up"}


class DrawnMeasure(NamedTuple):
    """The measure that is drawn; a page fills in what is chosen there."""

    index: Any  # among the measures of a cell
    title: Any  # with its unit
    unit: Any
    is_low_better: Any
    limit: Any  # of the SLO; None without
    scale: Any  # of the axis: ``log`` or ``linear``


@dataclass(frozen=True)
class Sketch:
    """What the charts of one study have in common."""

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
        """Transforms that add the names of what a cell has indices of, and its load as a number."""
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
        """As `by_colour`, of charts that have lines alone."""
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
        """Return the encoding of load, as a number where it is one."""
        axis = self.axis(2)
        if not axis.numbers:
            return self.load_column()
        is_log = min(axis.numbers) > 0 and max(axis.numbers) / min(axis.numbers) >= 8
        scale = {"zero": False, "nice": False, "padding": 12}
        # By `format`, ticks of one digit are 2e+1.
        ticks: Spec = {"labelExpr": "format(datum.value, ',~g')"}
        is_searched = self.study.capacity is not None  # then loads lie close together
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
        """Return markers: open where the queue kept growing, with a dot where that is undecided."""
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
        """Return the encoding of load as one of those that were run."""
        axis = self.axis(2)
        return category("load_name", titled(axis), sort=axis.labels, axis={"labelAngle": 0})

    def limit_lines(
        self, channel: str, rows: list[Spec] | None = None, *, label_at: str = "right"
    ) -> list[Spec]:
        """Return a limit of the SLO as a line across a panel, and what it is, at one end."""
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
    """Return the parameters that expressions read of what is drawn."""
    values: Spec = {"metric": shown.index, "unit": shown.unit, "low": shown.is_low_better}
    values |= {"scale": shown.scale, "limit": shown.limit}
    return {"params": [{"name": name, "value": value} for name, value in values.items()]}
