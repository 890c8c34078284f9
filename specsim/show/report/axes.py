"""Configurations as results folders have them, and axes by role.

The roles are hardware, policy, load and other. No user's class is loaded, since a folder may come
from another computer.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain, product, repeat
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, field_validator

from specsim.core.errors import ConfigError
from specsim.core.settings import as_yaml, from_short_form, validated
from specsim.core.version import __version__
from specsim.show.study import (
    HARDWARE,
    LOAD,
    OTHER,
    POLICY,
    Axis,
    FleetKind,
    Point,
    Study,
    gpu_first,
)
from specsim.study.sweep import Sweep, SweepFolder, SweepPoint, labels


class PaidEngines(NamedTuple):
    """The engines of a configuration."""

    kind: FleetKind
    engines: dict[str, float]  # number of engines by profile


class WrittenConfig:
    """A configuration as it was written, with short forms such as ``poisson:rate=4``."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        workload, engine = (fields.get(name) or {} for name in ("workload", "engine"))
        self.arrivals, self.lengths = (_in_full(workload, name) for name in ("arrivals", "lengths"))
        self.proposer = _in_full(engine, "speculative_config", "method")
        self.pools: dict[str, Any] = fields.get("pools") or {}
        self.profile = str(fields.get("profile", "?"))
        limits = slo.items() if isinstance(slo := fields.get("slo"), dict) else ()
        self.slo = {name: float(ms) for name, ms in limits if isinstance(ms, int | float)}
        """Limits, ms."""
        policy = fields.get("policy")
        kind = policy.get("kind") if isinstance(policy, dict) else policy
        self.policy = "off" if kind is False else policy  # YAML reads an unquoted off as False

    @property
    def _policy_fields(self) -> dict[str, Any]:
        """Fields of the policy; empty for the short form of a user's class."""
        if isinstance(self.policy, dict):
            return self.policy
        kind, _, options = str(self.policy).partition(":")
        fields = dict(option.partition("=")[::2] for option in options.split(","))
        k = fields.get("k", "").strip()
        return {"kind": kind, "k": int(k) if k.isdecimal() else None}

    @property
    def draft_len(self) -> int | None:
        """The draft length that it always asks for; None if the policy decides."""
        limit: int | None = self.proposer.get("num_speculative_tokens")
        if self.policy is None:
            is_decided = "num_speculative_tokens_per_batch_size" in self.proposer
            return (None if is_decided else limit) if self.proposer else 0
        kind, k = (self._policy_fields.get(name) for name in ("kind", "k"))
        if kind != "static":
            return 0 if kind == "off" else None
        return k if isinstance(k, int) else limit

    @property
    def drafter(self) -> str | None:
        """The profile of a drafter on GPUs of its own, if drafts are made; else None."""
        apart = self.proposer.get("own_gpus")
        if apart is None or self._policy_fields.get("kind") == "off":
            return None
        return str(apart.get("profile") or self.profile)

    def fleet(self, metrics: Mapping[str, float]) -> PaidEngines:
        """Return the engines of a run; if their number changed, the mean of those paid for.

        Args:
            metrics: Its summary, flat.
        """
        found: defaultdict[str, float] = defaultdict(float)
        if self.pools:
            for name in ("prefill", "decode"):
                pool = self.pools.get(name) or {}
                mean = metrics.get(f"pools.autoscaling.{name}.mean_replicas")
                replicas = int(pool.get("replicas") or 1) if mean is None else mean
                found[str(pool.get("profile") or self.profile)] += replicas
            return PaidEngines("pools", dict(found))
        mean = metrics.get("autoscaling.mean_replicas")
        replicas = metrics.get("replicas", 1) if mean is None else mean
        found[self.profile] += replicas
        if (drafter := self.drafter) is not None:
            found[drafter] += replicas
            return PaidEngines("drafter", dict(found))
        return PaidEngines("replicas" if mean is None else "scaled", dict(found))

    def title(self, hardware: list[str], model_id: object = None) -> str:
        """Return a short title of a run, from its configuration and the labels of its hardware.

        The summary's `model_id` names the model if the profile is a user's file.
        """
        model = self.profile.partition("/")[2]
        if self.profile.endswith((".yaml", ".yml")):
            model = PurePath(str(model_id or "")).name
        gpus = list(dict.fromkeys(gpu_first(_gpu_of(name)) for name in hardware))
        where = ", ".join(gpus) if len(gpus) < 4 else f"{len(gpus)} GPUs"
        method = self.proposer.get("method", "")
        parts = (self.lengths, self.arrivals)
        traffic = [str(part[name]) for part in parts for name in ("name", "path") if part.get(name)]
        drafting = f"with {method}" if method else ""
        said = (f"{model} on {where}" if model else where, drafting, *traffic[:1])
        return ", ".join(filter(None, said))


def _in_full(block: Mapping[str, Any], name: str, tag: str = "kind") -> dict[str, Any]:
    """Return a member of a family in full, also if it was written in short form."""
    own = block.get(name)
    return from_short_form(own, tag) if isinstance(own, str) else own or {}


def _gpu_of(label: str) -> str:
    is_file = label.endswith(("yaml", "yml"))
    return PurePath(label).stem if is_file else label.partition("/")[0]


def check_version(path: Path, version: object, remedy: str) -> None:
    """Raise a ConfigError unless results were written by this version of specsim."""
    if version != __version__:
        raise ConfigError(
            f"{path}: was written by specsim {version}, and this is {__version__}; {remedy}"
        )


_LOADS = {
    "workload.arrivals.rate": ("Request rate", "requests/s"),
    "workload.arrivals.concurrency": ("Concurrency", "requests"),
    "workload.arrivals.time_scale": ("Time scale of the trace", ""),
}
_ARRIVALS = "workload.arrivals"
_TITLES = {"profile": "Hardware", "policy": "Policy", _ARRIVALS: "Arrivals", "replicas": "Servers"}


def role_of(fields: list[str]) -> str:
    """Return the role of an axis, from the dotted names of the fields that it sets."""
    if any(name in _LOADS or name == _ARRIVALS for name in fields):
        return LOAD
    if "profile" in fields:
        return HARDWARE
    if any(name.startswith(("policy", "engine.speculative_config")) for name in fields):
        return POLICY
    return OTHER


def axis_of(role: str, field: str, names: list[str], values: list[Any]) -> Axis:
    """Return an axis; `field` is the dotted name of the main field that it sets."""
    if field == _ARRIVALS:
        field, names, values = _spelled_out(names, values)
    title, unit = _LOADS.get(field, (_TITLES.get(field, field), ""))
    numbers = [float(value) for value in values] if _are_numbers(values) else None
    return Axis(role, title, unit, field, shortened(names) if role == HARDWARE else names, numbers)


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _spelled_out(names: list[str], values: list[Any]) -> tuple[str, list[str], list[Any]]:
    """Return field, names and values of arrivals by the one number that differs, if any."""
    in_full = [from_short_form(each) if isinstance(each, str) else each for each in values]
    for field in _LOADS:
        name = field.rsplit(".", 1)[1]
        found = [value.get(name) if isinstance(value, dict) else None for value in in_full]
        if None not in found and len(set(found)) == len(found):
            return field, labels(found), found
    return _ARRIVALS, names, values


def shortened(names: list[str]) -> list[str]:
    """Return names such as ``h100/llama-3.1-8b`` without the model if all have the same."""
    parts = [name.split("/") for name in names]
    is_shared = len({tuple(part[1:]) for part in parts}) == 1
    return [part[0] for part in parts] if is_shared and len(parts) > 1 else names


def single_axes(config: WrittenConfig) -> dict[str, Axis]:
    """Return the axes of a configuration by role, each with a single value."""
    arrivals, policy = config.arrivals, config.policy
    field = next((name for name in _LOADS if arrivals.get(name.rsplit(".", 1)[1])), None)
    if field is None:
        kind = str(arrivals.get("kind", "as configured"))
        load = Axis(LOAD, "Arrivals", "", "workload.arrivals.rate", [kind])
    else:
        value = arrivals[field.rsplit(".", 1)[1]]
        load = axis_of(LOAD, field, labels([value]), [value])
    if not policy:
        always = config.draft_len
        policy = "schedule" if always is None else f"static:k={always}" if always else "off"
    return {
        HARDWARE: axis_of(HARDWARE, "profile", labels([config.profile]), [""]),
        POLICY: axis_of(POLICY, "policy", labels([policy]), [""]),
        LOAD: load,
    }


def of_sessions(load: Axis, configs: Iterable[WrittenConfig], points: Iterable[Point]) -> Axis:
    """Return the load axis, named a rate of sessions if it is one; a trace's is of requests."""
    if load.field != "workload.arrivals.rate":
        return load
    kinds = {each.arrivals.get("kind") for each in configs}
    if "trace" in kinds or not all("sessions.count" in each.metrics for each in points):
        return load
    return replace(load, title="Session rate", unit="sessions/s")


def load_sweep(folder: Path) -> Study:
    """Return a sweep, finished or not; a ConfigError if it is damaged or of another version."""
    found = SweepFolder.open(folder)
    check_version(folder, found.specsim_version, "use that version or run the sweep again")
    sweep, base = found.sweep, WrittenConfig(found.sweep.base)
    records = list(found.records())
    if not records:
        raise ConfigError(
            f"{folder}: none of its {sweep.num_points:,} points has ended yet; wait for the first, "
            "or run the sweep again with --resume"
        )
    varies_slo = any(field.startswith("slo") for axis in sweep.axes for field in axis)
    grid, asked = _Grid(sweep, base), list(sweep.points())
    places, configs = [*map(grid.places, asked)], [WrittenConfig(each.config) for each in asked]
    points = []
    for number, record in ((record["point"], record) for record in records):
        fleet = configs[number].fleet(record["metrics"])
        point = _point(found.record_path(number), record, places[number])
        points.append(replace(point, fleet=fleet.engines, fleet_kind=fleet.kind))
    profiles, lens = dict[int, str](), defaultdict[int, set[int | None]](set)
    for (own, policy, *_), config in zip(places, configs, strict=True):
        profiles[own] = config.profile
        lens[policy].add(config.draft_len)
    hardware, policies, load, *others = grid.axes
    ended = [point for point in points if point.error is None]
    return Study(
        kind="sweep",
        title=base.title(hardware.labels),
        axes=[hardware, policies, of_sessions(load, configs, ended), *others],
        slo={} if varies_slo else base.slo,
        points=points,
        num_expected=sweep.num_points,
        # If something else changes a draft length, it is not the policy's own.
        draft_lens=[own.pop() if len(own) == 1 else None for _, own in sorted(lens.items())],
        profiles=[name for _, name in sorted(profiles.items())],
        config=as_yaml(sweep.model_dump(mode="json")),
        version=found.specsim_version,
        warnings=found.warnings(records),
    )


def _groups(axes: list[dict[str, list[Any]]]) -> list[list[int]]:
    """Return which axes of a sweep are hardware, policy and load, and each of the others."""
    roles = [role_of(list(axis)) for axis in axes]
    hardware, policy, loads = (
        [n for n, role in enumerate(roles) if role == wanted] for wanted in (HARDWARE, POLICY, LOAD)
    )
    first = [next(iter(axis.values())) for axis in axes]
    counted = [n for n, role in enumerate(roles) if role == OTHER and _are_numbers(first[n])]
    load = (loads or counted)[:1]  # otherwise any other axis of numbers
    main = [hardware, policy, load]
    return [*main, *([n] for n in range(len(axes)) if not any(n in group for group in main))]


class _Grid:
    """The mapping from the axes of a sweep to those of a study."""

    def __init__(self, sweep: Sweep, base: WrittenConfig) -> None:
        self._sweep = sweep
        self._lengths = [len(next(iter(axis.values()))) for axis in sweep.axes]
        self._groups, common = _groups(sweep.axes), single_axes(base)
        roles = chain((HARDWARE, POLICY, LOAD), repeat(OTHER))
        self.axes = [
            self._axis(role, group) if group else common[role]
            for role, group in zip(roles, self._groups, strict=False)
        ]
        self.axes[2], self._load_places = _rising(self.axes[2])

    def places(self, point: SweepPoint) -> tuple[int, ...]:
        hardware, policy, load, *others = (
            int(
                np.ravel_multi_index(
                    [point.places[n] for n in group], [self._lengths[n] for n in group]
                )
            )
            if group
            else 0
            for group in self._groups
        )
        return hardware, policy, self._load_places[load], *others

    def _axis(self, role: str, group: list[int]) -> Axis:
        fields = [self._main_field(number, role) for number in group]
        names = [self._names(number, field) for number, field in zip(group, fields, strict=True)]
        combined = [", ".join(each) for each in product(*names)]
        values = self._sweep.axes[group[0]][fields[0]] if len(group) == 1 else combined
        return axis_of(role, fields[0], combined, values)

    def _main_field(self, number: int, role: str) -> str:
        fields = list(self._sweep.axes[number])
        return next((field for field in fields if role_of([field]) == role), fields[0])

    def _names(self, number: int, field: str) -> list[str]:
        """Return the labels of an axis: of its main field, or of all fields if not unique."""
        axis = self._sweep.axes[number]
        own = labels(axis[field])
        if len(set(own)) == len(own):
            return own
        return [", ".join(each) for each in zip(*map(labels, axis.values()), strict=True)]


def _rising(axis: Axis) -> tuple[Axis, list[int]]:
    """Return an axis sorted by its numbers, and the new place of each old value."""
    order = np.argsort(axis.numbers or np.zeros(len(axis.labels)), kind="stable").tolist()
    numbers = axis.numbers and [axis.numbers[place] for place in order]
    found = replace(axis, labels=[axis.labels[place] for place in order], numbers=numbers)
    return found, np.argsort(order).tolist()


def _point(path: Path, record: dict[str, Any], places: tuple[int, ...]) -> Point:
    remedy = "remove it and run the sweep with --resume"
    check_version(path, record.get("specsim_version"), remedy)
    with validated(f"{path} ({remedy})", ConfigError):
        return Point(**dict(_Record.model_validate(record)), number=record["point"], places=places)


class _Record(BaseModel):
    """The fields of a point's file that a report draws."""

    model_config = ConfigDict(allow_inf_nan=False)

    replication: int
    seed: int
    config_hash: str | None
    error: str | None
    metrics: dict[str, float]
    distributions: dict[str, list[float]]
    timeline: dict[str, list[float | None]]
    breakdown: dict[str, float]

    @field_validator("timeline")
    @classmethod
    def _check_lengths(cls, series: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
        if len({len(values) for values in series.values()}) > 1:
            raise ValueError("its series are not equally long")
        return series
