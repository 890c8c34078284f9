"""Study: what a report shows, from whatever folder it was read."""

import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import cycle
from statistics import fmean
from typing import Any, Literal, NamedTuple

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.settings import nearest
from specsim.hardware.specs import gpu_file
from specsim.profile import Profile, load_profile
from specsim.results.metrics import SHOWN, TITLES
from specsim.results.stability import Stability, stability_in, together
from specsim.run.deployment import gpus_of
from specsim.run.validity import BASES, step_times
from specsim.study.capacity.choices import Prices
from specsim.study.paired import SpeedUp, speed_up
from specsim.study.plan.candidates import gpu_name

HARDWARE, POLICY, LOAD, OTHER = "hardware", "policy", "load", "other"
FleetKind = Literal["replicas", "scaled", "pools", "drafter"]
"""Kind of the engines in a run: a fixed or scaled number of replicas, pools, or with drafters."""


@dataclass(frozen=True)
class Axis:
    """A property in which runs differ, or which they share."""

    role: str
    """``hardware``, ``policy``, ``load`` (the horizontal axis of charts over load), or
    ``other``."""
    title: str  # for readers, such as ``Request rate``
    unit: str  # such as ``requests/s``; empty if it has none
    field: str  # such as ``workload.arrivals.rate``
    labels: list[str]  # of its values, in order
    numbers: list[float] | None = None  # the values, if all of them are numbers


@dataclass(frozen=True)
class Point:
    """One run."""

    number: int
    places: tuple[int, ...]  # index of its value on each axis of the study
    replication: int
    seed: int
    config_hash: str | None  # None if the configuration was not valid
    error: str | None = None  # why it failed, in one line
    metrics: dict[str, float] = field(default_factory=dict)  # by the names of ``summary.json``
    distributions: dict[str, list[float]] = field(default_factory=dict)
    """Quantiles of ``ttft_ms``, ``tpot_ms`` and ``e2el_ms``, at equal steps from 0 to 100 %."""
    timeline: dict[str, list[float | None]] = field(default_factory=dict)
    """``time_s`` with ``running``, ``waiting``, ``kv_usage`` and ``draft_len``."""
    breakdown: dict[str, float] = field(default_factory=dict)
    """Seconds: ``target_s``, ``draft_s``, ``overhead_s`` and ``idle_s``."""
    fleet: dict[str, float] = field(default_factory=dict)
    """Mean number of paid engines, by profile; a drafter on GPUs of its own counts as one."""
    fleet_kind: FleetKind = "replicas"
    gpus: float | None = None  # of the fleet; None if not known
    cost: float | None = None  # of these GPUs, per hour; None if not known
    keeps_limits: bool = True  # whether enough requests keep the limits, if that was asked


@dataclass(frozen=True)
class Study:
    """Some runs, and the axes along which they differ."""

    kind: str  # ``sweep``, ``comparison``, ``run``, ``capacity`` or ``tuning``
    title: str
    axes: list[Axis]  # hardware, policy and load first, even with a single value
    points: list[Point]
    num_expected: int  # more than the points if the study is not finished
    draft_lens: list[int | None]
    """Draft length that each policy always uses; 0 without speculation, None if it varies."""
    profiles: list[str]  # profile of each hardware, as configured
    config: str  # configuration of the runs, as YAML
    version: str  # of specsim, in the runs
    prices: dict[str, float] = field(default_factory=dict)
    """Price of one replica's GPUs per hour, by label of the hardware, where known."""
    currency: str = "USD"
    price_date: str = ""
    warnings: list[str] = field(default_factory=list)
    slo: dict[str, float] = field(default_factory=dict)
    """Limits that all runs share, ms, by names such as ``ttft_ms``."""
    gpus: dict[str, int] = field(default_factory=dict)
    """GPUs of one replica, by label of the hardware, where known."""
    step_times: dict[str, str] = field(default_factory=dict)
    """Source of step times by label of the hardware; see `specsim.run.validity.step_times`."""
    capacity: dict[str, Any] | None = None
    """Results of a capacity search, if the study is one."""
    plan: dict[str, Any] | None = None
    """The answer of a plan, as text; see `specsim.study.plan.words.page_words`."""

    @property
    def baseline(self) -> int | None:
        """Index of the policy that does not speculate; None if there is none."""
        return self.draft_lens.index(0) if 0 in self.draft_lens else None

    @property
    def bounds(self) -> list[bool]:
        """Whether each policy uses what no server can know, and so is not called best.

        Their names say so; no policy class is loaded, since results may come from elsewhere.
        """
        return [bool(re.search(r"oracle|\bbayes\b", name, re.I)) for name in self.axes[1].labels]

    @property
    def finished(self) -> list[Point]:
        return [point for point in self.points if point.error is None]

    @property
    def failed(self) -> list[Point]:
        return [point for point in self.points if point.error is not None]


def with_prices(study: Study, per_gpu: Prices) -> Study:
    """Return a study with the GPUs and the price per hour of a replica, by hardware.

    Hardware is left out if its profile is not available, or its GPU has no price.
    """
    profiles = _at_hand({*study.profiles, *(name for p in study.points for name in p.fleet)})
    prices, gpus, basis = {}, {}, {}
    for label, name in zip(study.axes[0].labels, study.profiles, strict=True):
        profile = profiles.get(name)
        if profile is None:
            continue
        gpus[label], basis[label] = profile.num_gpus, step_times(profile)
        price = per_gpu.per_hour(gpus_of([(profile, 1)]))
        if price is not None:
            prices[label] = price
    points = [_with_fleet_priced(point, profiles, per_gpu) for point in study.points]
    rests = defaultdict[str, set[str]](set)
    for point in points:
        label = study.axes[0].labels[point.places[0]]
        if point.cost is not None and point.fleet_kind == "pools":  # per replica, on average
            prices[label] = point.cost / sum(point.fleet.values())
        rests[label] |= {step_times(profiles[name]) for name in point.fleet if name in profiles}
    basis |= {label: max(kinds, key=BASES.index) for label, kinds in rests.items() if kinds}
    known: dict[str, Any] = {"prices": prices, "gpus": gpus, "step_times": basis, "points": points}
    return replace(study, **known, currency=per_gpu.currency, price_date=per_gpu.date)


def for_readers(study: Study) -> Study:
    """Return a study with GPUs and policies named as in a plan: ``H100``, ``oracle (bound)``."""
    hardware, policy, *others = study.axes
    names = [
        f"{p} (bound)" if own else p for p, own in zip(policy.labels, study.bounds, strict=True)
    ]
    axes = [replace(hardware, labels=[*map(gpu_first, hardware.labels)])]
    axes += [replace(policy, labels=names), *others]
    capacity, warnings = study.capacity, study.warnings
    if capacity is not None:
        own = "|".join(map(re.escape, hardware.labels))  # warnings begin with the hardware
        warnings = [
            re.sub(rf"\b(?:{own})(?=:| )", lambda found: gpu_first(found[0]), text)
            for text in warnings
        ]
        best = {
            name: [{**each, "hardware": gpu_first(each["hardware"])} for each in capacity[name]]
            for name in ("most", "cheapest")
        }
        capacity = {**capacity, **best}
    by_label: dict[str, Any] = {
        name: {gpu_first(label): value for label, value in getattr(study, name).items()}
        for name in ("prices", "gpus", "step_times")
    }
    return replace(study, axes=axes, capacity=capacity, warnings=warnings, **by_label)


def gpu_first(label: str) -> str:
    """Return ``H100/llama-3.1-8b`` for ``h100/llama-3.1-8b``; names of files do not change."""
    gpu = re.split(r"[/ ]|-tp\d", label)[0]
    is_file = gpu.endswith((".yaml", ".yml"))
    return label if is_file or gpu_file(gpu) is None else gpu_name(gpu) + label[len(gpu) :]


def _at_hand(names: set[str]) -> dict[str, Profile]:
    """Return the available profiles: results may come from another computer."""
    found = {}
    for name in names:
        with suppress(SpecsimError):
            found[name] = load_profile(name)
    return found


def _with_fleet_priced(point: Point, profiles: Mapping[str, Profile], per_gpu: Prices) -> Point:
    """Return a point with its GPUs and their cost, if all its profiles are known."""
    if not point.fleet or not point.fleet.keys() <= profiles.keys():
        return point
    gpus = gpus_of((profiles[name], number) for name, number in point.fleet.items())
    return replace(point, gpus=gpus.total(), cost=per_gpu.per_hour(gpus))


class Measure(NamedTuple):
    """One number of a run."""

    name: str  # as in ``summary.json``, or added by `measured`
    title: str
    unit: str
    is_low_better: bool = True


def titled(shown: Measure | Axis) -> str:
    """Return the title, with the unit if there is one."""
    return f"{shown.title}, {shown.unit}" if shown.unit else shown.title


COST = "cost_per_mtok"
_SHARES = [*(f"p{percent}" for percent in range(1, 100)), "p99.9"]
"""Percentiles at which limits may be set; a capacity plan has those of its limits."""
MEASURES = (
    *(
        Measure(f"{statistic}_{kind}_ms", f"{statistic} {TITLES[kind]}", "ms")
        for kind in ("e2el", "ttft", "tpot", "itl")
        for statistic in dict.fromkeys([*SHOWN, *_SHARES])
    ),
    Measure("output_throughput", "Output throughput", "tokens/s", False),
    Measure("request_goodput", "Goodput", "requests/s", False),
    Measure("slo_attainment", "Requests within the SLO", "share", False),
    Measure(COST, "Cost", "per million output tokens"),
    Measure("tokens_per_step", "Tokens per step", "", False),
    Measure("spec_decode_acceptance_rate", "Draft acceptance", "%", False),
    Measure("num_preemptions", "Preemptions", ""),
    Measure("pools.mean_prefill_ms", "Mean time until prefilled", "ms"),
    Measure("pools.mean_transfer_ms", "Mean KV transfer", "ms"),
    Measure("pools.transferred_tokens", "Transferred tokens", ""),
    *(
        Measure(f"hits.{tier}_share", f"Prefix hits, {title}", "share of the prompt tokens", False)
        for tier, title in (("gpu", "GPU"), ("host", "host memory"), ("disk", "disk"))
    ),
    Measure("overloaded", "Overloaded", "share of the runs"),
    Measure("undecided", "Undecided whether overloaded", "share of the runs"),
)
"""All measures; the first is shown by default."""
_OF_LIMITS = {f"{share}_{kind}_ms" for kind in TITLES for share in _SHARES}
_KNOWN = {each.name for each in MEASURES} - (
    _OF_LIMITS - {f"{share}_{kind}_ms" for kind in TITLES for share in SHOWN}
)


_BETWEEN_TOKENS = ("_tpot_ms", "_itl_ms")
"""These are 0 if answers have one token, and then tables do not show them."""


def measured(study: Study, point: Point) -> dict[str, float]:
    """Return the measures of a point, by the names of `MEASURES`."""
    found = {n: v for n, v in point.metrics.items() if v or not n.endswith(_BETWEEN_TOKENS)}
    throughput, goodput = found.get("request_throughput"), found.get("request_goodput")
    if throughput and goodput is not None:
        found["slo_attainment"] = goodput / throughput
    for tier in ("gpu", "host", "disk"):
        if (tokens := found.get(f"hits.{tier}_tokens")) is not None:
            found[f"hits.{tier}_share"] = tokens / found["total_input_tokens"]
    tokens_per_s = found.get("output_throughput")
    if point.cost is not None and tokens_per_s:
        found[COST] = point.cost / 3600 / tokens_per_s * 1e6 * paid_share(found)
    known = _KNOWN if study.capacity is None else _KNOWN | _OF_LIMITS
    return {name: value for name, value in found.items() if name in known}


def paid_share(metrics: Mapping[str, float]) -> float:
    """Return the time that engines are paid for / the time from first arrival to last end.

    Scaled engines are paid for from the beginning of a run.
    """
    for scaled in ("autoscaling", "pools.autoscaling.prefill", "pools.autoscaling.decode"):
        if seconds := metrics.get(f"{scaled}.replica_seconds"):
            return seconds / metrics[f"{scaled}.mean_replicas"] / metrics["duration"]
    return 1.0


class Style(NamedTuple):
    """How a policy is drawn, equally in every chart, on the page and on paper.

    Any two colours stay apart in normal vision, protanopia, deuteranopia and tritanopia (OKLab
    distance of at least 0.07, after Machado, Oliveira and Fernandes 2009), at a contrast of at
    least 3 to the background. Markers repeat the distinction for print without colour.
    """

    light: str  # colour on a light background
    dark: str  # colour on a dark background, of the same hue
    symbol: str  # marker, a name in `SYMBOLS`


BASELINE = Style("#3b424c", "#c6ccd6", "circle")
"""Style of no speculation: grey, as the reference of all others."""

_COLOURS = (
    ("#4c6ec8", "#84a7fd"),
    ("#c48326", "#fbbe73"),
    ("#7b1b79", "#b555b1"),
    ("#921502", "#cf5440"),
    ("#1c40bc", "#4b7afa"),
    ("#ac5d1a", "#e89458"),
    ("#864e7a", "#be83b1"),
)
SYMBOLS = {
    "circle": "M.9 0A.9 .9 0 1 1 -.9 0A.9 .9 0 1 1 .9 0Z",
    "square": "M-.8 -.8h1.6v1.6h-1.6Z",
    "diamond": "M0 -1.1L1.1 0L0 1.1L-1.1 0Z",
    "triangle-up": "M0 -1L1.1 .9h-2.2Z",
    "cross": "M-.35 -1h.7v.65h.65v.7h-.65v.65h-.7v-.65h-.65v-.7h.65Z",
    "triangle-down": "M0 1L1.1 -.9h-2.2Z",
    "pentagon": "M0 -1L1 -.25L.6 .9h-1.2L-1 -.25Z",
    "x": "M-.6 -1L0 -.4L.6 -1L1 -.6L.4 0L1 .6L.6 1L0 .4L-.6 1L-1 .6L-.4 0L-1 -.6Z",
    "hexagon": "M0 -1L.9 -.5v1L0 1L-.9 .5v-1Z",
    "star": "M0 -1.2L.34 -.4L1.2 -.4L.52 .14L.78 1L0 .48L-.78 1L-.52 .14L-1.2 -.4L-.34 -.4Z",
    "triangle-left": "M-1 0L.9 -1.1v2.2Z",
    "triangle-right": "M1 0L-.9 -1.1v2.2Z",
}
"""Shapes of markers, as SVG paths around the origin."""


def styles(is_baseline: list[bool]) -> list[Style]:
    """Return styles, grey for no speculation; markers differ where colours repeat."""
    looks = zip(cycle(_COLOURS), cycle([*SYMBOLS][1:]), strict=False)
    return [BASELINE if own else Style(*(look := next(looks))[0], look[1]) for own in is_baseline]


Cell = list[Point]
Cells = dict[tuple[int, int, int], Cell]  # by indices of hardware, policy and load


def group(study: Study) -> Cells:
    """Return the finished runs of a `restricted` study, with the metrics of `MEASURES`."""
    cells: Cells = {}
    for point in study.finished:
        hardware, policy, load = point.places[:3]
        known = replace(point, metrics=measured(study, point))
        cells.setdefault((hardware, policy, load), []).append(known)
    return cells


def restricted(study: Study, choices: list[str]) -> tuple[Study, list[str]]:
    """Return the part of a study at given values of some axes, and notes on defaults.

    `choices` are like ``profile=h100``: field and label of an axis. An axis other than hardware,
    policy and load is held at its first value unless it is named. Raises a ConfigError if there is
    no such axis or value.
    """
    wanted = dict(_parsed(study, choice) for choice in choices)
    held = [
        number
        for number, axis in enumerate(study.axes)
        if axis.role == OTHER and len(axis.labels) > 1 and number not in wanted
    ]
    places = {**dict.fromkeys(held, 0), **wanted}
    axes = [_cut(axis, places.get(number)) for number, axis in enumerate(study.axes)]
    points = [
        replace(point, places=tuple(0 if n in places else p for n, p in enumerate(point.places)))
        for point in study.points
        if all(point.places[number] == place for number, place in places.items())
    ]
    policy = places.get(1)
    lens = study.draft_lens if policy is None else [study.draft_lens[policy]]
    names = [f"{study.axes[number].field}={study.axes[number].labels[0]}" for number in held]
    profiles = study.profiles if 0 not in places else [study.profiles[places[0]]]
    part = replace(study, axes=axes, points=points, draft_lens=lens, profiles=profiles)
    return part, names


def _parsed(study: Study, choice: str) -> tuple[int, int]:
    field, equals, label = choice.partition("=")
    if not equals:
        axis = study.axes[0]
        example = f"{axis.field}={axis.labels[0]}"
        raise ConfigError(f"--where {choice}: expected FIELD=VALUE, such as {example}")
    fields = [axis.field for axis in study.axes]
    if field not in fields:
        raise ConfigError(f"--where {choice}: no axis '{field}'; {nearest(field, fields)}")
    number = fields.index(field)
    labels = study.axes[number].labels
    if label not in labels:
        raise ConfigError(f"--where {choice}: '{field}' is never that; {nearest(label, labels)}")
    return number, labels.index(label)


def _cut(axis: Axis, place: int | None) -> Axis:
    if place is None:
        return axis
    numbers = None if axis.numbers is None else [axis.numbers[place]]
    return replace(axis, labels=[axis.labels[place]], numbers=numbers)


def find_measure(study: Study, name: str) -> Measure:
    """Return a measure that the runs of a study have; a ConfigError if none of them has it."""
    if not study.finished:
        raise ConfigError("none of these runs has come to an end, so there is nothing to draw")
    known = {name for point in study.finished for name in measured(study, point)}
    for measure in MEASURES:
        if measure.name == name and name in known:
            return measure
    raise ConfigError(f"--metric {name}: no run has it; {nearest(name, sorted(known))}")


def values_of(cell: Cell, measure: Measure) -> dict[int, float]:
    """Return a measure of the runs of a cell, by replication."""
    found = ((point.replication, point.metrics.get(measure.name)) for point in cell)
    return {replication: value for replication, value in found if value is not None}


def gain(candidate: Cell, reference: Cell, measure: Measure) -> SpeedUp | None:
    """Return how many times better a cell is than another; None without common replications.

    None, too, if one of them has a 0, which has no ratio: leaving it out would be unfair.
    """
    mine, theirs = values_of(candidate, measure), values_of(reference, measure)
    shared = sorted(mine.keys() & theirs.keys())
    if not shared or min(*(mine[n] for n in shared), *(theirs[n] for n in shared)) <= 0:
        return None
    above, below = [theirs[n] for n in shared], [mine[n] for n in shared]
    return speed_up(above, below) if measure.is_low_better else speed_up(below, above)


def ranked(cells: Cells, hardware: int, load: int, measure: Measure) -> list[int]:
    """Return policies on some hardware at some load, best first; overloaded ones last.

    By the mean over the replications that all of them have, if there are any.
    """
    found = {
        policy: values
        for (own_hardware, policy, own_load), cell in cells.items()
        if (own_hardware, own_load) == (hardware, load) and (values := values_of(cell, measure))
    }
    shared = set.intersection(*map(set, found.values())) if found else set()
    sign = 1 if measure.is_low_better else -1

    def rank(policy: int) -> tuple[bool, float, int]:
        values = {n: v for n, v in found[policy].items() if n in shared} or found[policy]
        cell = cells[hardware, policy, load]
        return stability(cell) == "overloaded", sign * fmean(values.values()), policy

    return sorted(found, key=rank)


def stability(cell: Cell) -> Stability:
    """Return the stability of the runs of a cell."""
    return together(stability_in(point.metrics) for point in cell)
