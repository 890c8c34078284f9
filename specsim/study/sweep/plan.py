"""Plan of a sweep, from one YAML file: its points, and what is wrong with them before any run.

The grid is the product of the axes. An axis is a mapping of dotted field names to values; several
fields of one axis change together. The first axis changes slowest, the replication fastest.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, islice, product
from math import isfinite, prod
from pathlib import Path, PurePath
from typing import Any, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.settings import (
    Settings,
    as_flow,
    check_used,
    listed,
    overridden,
    set_field,
    validated,
)
from specsim.profile import load_profile
from specsim.run.deployment import Deployment
from specsim.run.experiment import Experiment, check_size, estimated_seconds
from specsim.study.inputs import load_with_base
from specsim.workload.readers import read_trace

Axis = dict[str, list[Any]]  # values by dotted field name, as many of each field

Row = tuple[int, dict[str, Any]]  # index on an axis, and the value of each of its fields there

_MAX_POINTS = 100_000
_SPACED = ("linspace", "logspace", "range")


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep."""

    number: int  # place in the order of the sweep, from 0
    places: tuple[int, ...]  # index of its values on each axis
    axes: dict[str, Any]  # value of each field that an axis sets
    labels: dict[str, str]  # short labels of these, different for different values of a field
    replication: int
    seed: int
    config: dict[str, Any]  # of the experiment, as in its YAML file

    def experiment(self) -> Experiment:
        return Experiment.parse(self.config, f"point {self.number}")


class Sweep(Settings):
    """A base experiment and the axes along which it is varied."""

    base: dict[str, Any]
    """The experiment as in its YAML file; in a file also the path of one, relative to that file's
    folder. Fields that an axis sets may be missing."""
    axes: list[Axis]
    """In a file, values may also be ``{linspace: [first, last, count]}`` or ``logspace``
    (neighbours have equal ratios), both ends included. ``{range: [first, last, step]}`` ends at the
    last whole step."""
    replications: int = Field(default=1, ge=1)
    """Runs per combination; run i has the seed of the base plus i, so that all combinations meet
    the same luck (common random numbers)."""

    @field_validator("axes", mode="before")
    @classmethod
    def _spell_out(cls, axes: object) -> object:
        if not isinstance(axes, list) or not all(isinstance(axis, dict) for axis in axes):
            raise ValueError(
                "must be a list of axes, such as [{policy: [off, static:k=3]}, "
                "{workload.arrivals.rate: {logspace: [1, 32, 6]}}]"
            )
        if not axes:
            raise ValueError("names no axis, so the grid is empty; give at least one")
        return [
            {field: _values(str(field), given) for field, given in axis.items()} for axis in axes
        ]

    @model_validator(mode="after")
    def _check_grid(self) -> Self:
        _check_fields([field for axis in self.axes for field in axis])
        for axis in self.axes:
            if len({len(values) for values in axis.values()}) != 1:
                counts = ", ".join(f"{field} {len(values)}" for field, values in axis.items())
                raise ValueError(
                    f"axes: the fields of one axis are linked: they change together and need "
                    f"equally many values (found: {counts or 'no field'}); make them axes of their "
                    "own or even them out"
                )
        if self.num_points > _MAX_POINTS:
            raise ValueError(
                f"axes: {self.num_points:,} runs are more than {_MAX_POINTS:,}; use fewer values "
                "or several sweeps"
            )
        return self

    @classmethod
    def load(cls, path: Path, overrides: Iterable[str] | Mapping[str, object] = ()) -> Self:
        """Return the sweep in a YAML file, with some fields of its base replaced.

        Raises a ConfigError if the file cannot be read, or an axis or override is wrong.
        """
        data = load_with_base(path)
        if "workload" in data and "axes" not in data:
            raise ConfigError(
                f"{path}: is an experiment, not a sweep; name it in one: base: {path.name}, "
                "axes: [{policy: [off, static:k=3]}]"
            )
        with validated(str(path), ConfigError):
            sweep = cls.model_validate(data)
        overrides = listed(overrides)
        check_used(overrides, (field for axis in sweep.axes for field in axis), "an axis sets")
        sweep = sweep.model_copy(update={"base": overridden(sweep.base, overrides)})
        sweep.check(str(path))
        return sweep

    def check(self, source: str) -> list[Experiment]:
        """Return experiments with every value of every axis; a ConfigError if a value is wrong.

        Combinations that contradict each other, such as a draft longer than the limit, fail in
        their own run.
        """
        valid = []
        unproven = {(axis, place) for axis, rows in enumerate(self._rows) for place, _ in rows}
        problems: dict[tuple[int, int], ConfigError] = {}
        for combination in product(*self._rows):
            values = {(axis, place) for axis, (place, _) in enumerate(combination)}
            if not values & unproven:
                continue
            try:
                valid.append(Experiment.parse(self._config(combination, source), source))
            except ConfigError as error:
                for value in values:
                    problems.setdefault(value, error)
            else:
                unproven -= values
        if unproven:
            raise problems[min(unproven)]
        if self.replications > 1:  # their seeds follow that of the base
            last = {**valid[0].to_dict(), "seed": self.seed + self.replications - 1}
            Experiment.parse(last, source)
        return valid

    @property
    def notes(self) -> list[str]:
        """What to know before comparing points."""
        valid = self.check("axes")
        modes = {e.is_async for e in valid if e.engine.async_scheduling is None}
        if len(modes) < 2:
            return []
        return [
            "some policies or methods run with asynchronous scheduling and others cannot, and "
            "their differences hold that, too; set engine.async_scheduling to false to compare"
        ]

    @property
    def seed(self) -> int:
        """Seed of the first replication."""
        return int(self.base.get("seed", 0))

    @property
    def num_points(self) -> int:
        return prod(map(len, self._rows)) * self.replications

    def points(self) -> Iterator[SweepPoint]:
        known = {f: labels(values) for axis in self.axes for f, values in axis.items()}
        numbers = count()
        for combination in product(*self._rows):
            config = self._config(combination, "axes")
            for replication in range(self.replications):
                seed = self.seed + replication
                yield SweepPoint(
                    number=next(numbers),
                    places=tuple(place for place, _ in combination),
                    axes={field: value for _, row in combination for field, value in row.items()},
                    labels={f: known[f][place] for place, row in combination for f in row},
                    replication=replication,
                    seed=seed,
                    config={**config, "seed": seed},
                )

    @property
    def _rows(self) -> list[list[Row]]:
        columns = [zip(*axis.values(), strict=True) for axis in self.axes]
        return [
            [(place, dict(zip(axis, row, strict=True))) for place, row in enumerate(rows)]
            for axis, rows in zip(self.axes, columns, strict=True)
        ]

    def _config(self, combination: Iterable[Row], source: str) -> dict[str, Any]:
        config: dict[str, Any] = json.loads(json.dumps(self.base))
        for _, row in combination:
            for field, value in row.items():
                set_field(config, field, value, f"{source}: axes: {field}")
        return config


def _check_fields(fields: list[str]) -> None:
    """Raise a ValueError if a field of an axis is no field, or a later axis sets it again."""
    for place, field in enumerate(fields):
        if field in fields[:place]:
            raise ValueError(f"axes: '{field}' is on two axes; give it once")
        for earlier in fields[:place]:
            if earlier.startswith(f"{field}."):
                raise ValueError(
                    f"axes: '{field}' would take the place of '{earlier}', which stands before it "
                    "and would change nothing; name them the other way round, or leave one out"
                )
    if "seed" in fields:
        raise ValueError("axes: 'seed' cannot be an axis; set replications instead")


def _values(field: str, given: object) -> list[Any]:
    """Return the values of a field, spaced evenly between two ends if `given` says so."""
    if isinstance(given, dict) and len(given) == 1 and (kind := next(iter(given))) in _SPACED:
        return _spaced(field, str(kind), given[kind])
    if not isinstance(given, list):
        raise ValueError(  # noqa: TRY004 - what pydantic explains
            f"{field} = {given!r} must be a list of values, {{linspace: [first, last, count]}}, "
            "{logspace: [first, last, count]} or {range: [first, last, step]}"
        )
    if not given:
        raise ValueError(f"'{field}' has no value, so the grid is empty; give at least one")
    for place, value in enumerate(given):
        if value in given[:place]:
            raise ValueError(f"{field} = {value!r} is given twice; leave it out once")
    is_policy = field.rpartition(".")[2] == "policy"
    if not is_policy and all(isinstance(value, bool) for value in given):
        return given
    # An unquoted off is the boolean False in YAML 1.1.
    return ["off" if value is False else value for value in given]


def _spaced(field: str, kind: str, ends: object) -> list[Any]:
    third = "step" if kind == "range" else "count"
    rule = f"{field} = {{{kind}: {ends}}}: must be [first, last, {third}]"
    if not isinstance(ends, list) or len(ends) != 3 or not all(map(_is_number, ends)):
        raise ValueError(f"{rule}, three numbers")
    if kind == "range":
        return _stepped(rule, *ends)
    first, last, count = ends
    if not isinstance(count, int) or not 2 <= count <= _MAX_POINTS or first == last:
        raise ValueError(
            f"{rule}, with two different ends and a whole count from 2 to {_MAX_POINTS:,}"
        )
    if kind == "logspace" and not (first > 0 and last > 0):
        raise ValueError(f"{rule}, with both ends above 0")
    space = np.linspace if kind == "linspace" else np.geomspace
    return _rounded(space(first, last, count), are_whole=type(first) is type(last) is int)


def _stepped(rule: str, first: float, last: float, step: float) -> list[Any]:
    steps = (last - first) / step if step else -1.0
    if not 0 <= steps < _MAX_POINTS:
        raise ValueError(
            f"{rule}, with a step other than 0 that leads from first to last, and at most "
            f"{_MAX_POINTS:,} values"
        )
    num_steps = int(steps + 1e-9)  # (0.3 - 0) / 0.1 is a little less than 3
    are_whole = type(first) is type(step) is int
    return _rounded([first + place * step for place in range(num_steps + 1)], are_whole=are_whole)


def _rounded(values: Iterable[float], *, are_whole: bool) -> list[Any]:
    """Return numbers rounded to twelve digits: 0.3 for 0.30000000000000004."""
    rounded = [float(f"{value:.12g}") for value in values]
    are_whole = are_whole and all(value.is_integer() for value in rounded)
    return [int(value) for value in rounded] if are_whole else rounded


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def labels(values: list[Any]) -> list[str]:
    """Return a short label for each of some different values, different for each.

    Numbers have their shortest form, members of a family are like ``static:k=3``, files lack folder
    and suffix. Values whose short labels are equal are given in full.
    """
    short = [_short(value) for value in values]
    full = [str(value) for value in values]
    return [s if short.count(s) == 1 else f for s, f in zip(short, full, strict=True)]


def _short(value: Any) -> str:
    if isinstance(value, dict):
        kind = value.get("kind", value.get("method"))
        kind = "off" if kind is False else kind  # unquoted, in YAML 1.1
        fields = [f"{k}={_written(v)}" for k, v in value.items() if k not in ("kind", "method")]
        return f"{kind}:{','.join(fields)}" if kind and fields else str(kind or ",".join(fields))
    return _written(value)


def _written(value: Any) -> str:
    """Return a value as it is typed after ``field=``."""
    if isinstance(value, dict | list):
        return as_flow(value).replace(", ", ",")
    if isinstance(value, float):
        return f"{value:g}"
    text = json.dumps(value) if isinstance(value, bool | None) else str(value)
    return PurePath(text).stem if text.endswith((".yaml", ".yml", ".json")) else text


_MOST_CHECKED = 20_000  # points; of larger sweeps only each value of each axis is checked
_START_SECONDS = 0.2  # of the smallest point


def point_name(point: SweepPoint) -> str:
    """Return the name of a point in messages: the labels of its axes."""
    return ", ".join(f"{field} {label}" for field, label in point.labels.items())


def problems_of(sweep: Sweep) -> list[str]:
    """Return what is wrong with the points of a sweep, one line per different problem."""
    found: dict[str, list[str]] = {}
    for point in _first_replications(sweep):
        for problem in _problems(point):
            found.setdefault(problem, []).append(point_name(point))
    return [f"{of_points(names)}: {problem}" for problem, names in found.items()]


def of_points(names: list[str]) -> str:
    """Return one name for some points; points that differ in seed alone are named once."""
    first, *others = dict.fromkeys(names)
    if not others:
        return first
    return f"{first} and {len(others)} more point{'s' if len(others) > 1 else ''}"


def seconds_of(sweep: Sweep) -> float:
    """Return the estimated time of all points that can be run, in one process, seconds."""
    total = 0.0
    for point in _first_replications(sweep):
        try:
            total += _START_SECONDS + estimated_seconds(point.experiment())
        except SpecsimError:
            continue
    num_checked = min(sweep.num_points // sweep.replications, _MOST_CHECKED)
    return total * sweep.num_points / max(1, num_checked)


def _first_replications(sweep: Sweep) -> Iterator[SweepPoint]:
    yield from islice((p for p in sweep.points() if not p.replication), _MOST_CHECKED)


def _problems(point: SweepPoint) -> Iterator[str]:
    try:
        experiment = point.experiment()
    except SpecsimError as error:
        yield from (line.removeprefix(f"point {point.number}: ") for line in str(error).split("\n"))
        return
    try:
        check_size(experiment)
        Deployment.of(experiment, _profile(experiment.serving.profile))
    except SpecsimError as error:
        yield str(error)
    for path in experiment.workload.traces.values():
        yield from _trace_problems(path)


_profile = lru_cache(maxsize=1000)(load_profile)


@lru_cache(maxsize=1000)
def _trace_problems(path: Path) -> list[str]:
    try:
        read_trace(path)
    except SpecsimError as error:
        return [str(error)]
    return []
