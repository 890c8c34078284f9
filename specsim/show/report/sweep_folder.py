"""The folder of a sweep, as a study."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, field_validator

from specsim.core.errors import ConfigError
from specsim.core.settings import validated
from specsim.show.report.axes import (
    axis_of,
    check_version,
    draft_len,
    pools_of,
    role_of,
    single_axes,
    slo_of,
    title_of,
)
from specsim.show.report.study import HARDWARE, LOAD, OTHER, POLICY, Axis, Point, Study
from specsim.study.sweep import Sweep, SweepFolder, labels


def load_sweep(folder: Path) -> Study:
    """Return a sweep, finished or not; a ConfigError if it is damaged or of another version."""
    found = SweepFolder.open(folder)
    check_version(folder, found.specsim_version, "use that version or run the sweep again")
    sweep = found.sweep
    grid = _Grid(sweep)
    records = list(found.records())
    if not records:
        raise ConfigError(
            f"{folder}: none of its {sweep.num_points} points has ended yet; wait for the first, "
            "or run the sweep again with --resume"
        )
    varies_slo = any(field.startswith("slo") for axis in sweep.axes for field in axis)
    configs = {point.number: point.config for point in sweep.points()}
    points = [
        replace(
            _point(found.record_path(record["point"]), record, grid.places(record["point"])),
            pools=pools_of(configs[record["point"]]),
        )
        for record in records
    ]
    return Study(
        kind="sweep",
        title=title_of(sweep.base, grid.axes[0].labels),
        axes=grid.axes,
        slo={} if varies_slo else slo_of(sweep.base),
        points=points,
        num_expected=sweep.num_points,
        draft_lens=grid.draft_lens(configs),
        profiles=grid.profiles(configs),
        config=yaml.safe_dump(sweep.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        version=found.specsim_version,
    )


class _Grid:
    """Maps the axes of a sweep to those of a study."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._lengths = [len(next(iter(axis.values()))) for axis in sweep.axes]
        roles = [role_of(list(axis)) for axis in sweep.axes]
        if LOAD not in roles:  # anything else that is counted will do
            numeric = [n for n, role in enumerate(roles) if role == OTHER and self._is_numeric(n)]
            roles = [LOAD if n in numeric[:1] else role for n, role in enumerate(roles)]
        several = [n for n, role in enumerate(roles) if role == LOAD]
        roles = [OTHER if n in several[1:] else role for n, role in enumerate(roles)]
        self._groups = [
            *([n for n, role in enumerate(roles) if role == wanted] for wanted in _MAIN_ROLES),
            *([n] for n, role in enumerate(roles) if role == OTHER),
        ]
        common = single_axes(sweep.base)
        self.axes = [
            self._axis(_role(place), group) if group else common[_role(place)]
            for place, group in enumerate(self._groups)
        ]

    def places(self, number: int) -> tuple[int, ...]:
        own = np.unravel_index(number // self._sweep.replications, self._lengths)
        return tuple(
            int(np.ravel_multi_index([own[n] for n in group], [self._lengths[n] for n in group]))
            if group
            else 0
            for group in self._groups
        )

    def draft_lens(self, configs: dict[int, dict[str, Any]]) -> list[int | None]:
        """Return the draft length that each policy always asks for."""
        found: dict[int, set[int | None]] = {}
        for number, config in configs.items():
            found.setdefault(self.places(number)[1], set()).add(draft_len(config))
        # Where something else changes it, it is not the policy's own.
        return [values.pop() if len(values) == 1 else None for _, values in sorted(found.items())]

    def profiles(self, configs: dict[int, dict[str, Any]]) -> list[str]:
        found = {self.places(n)[0]: str(config["profile"]) for n, config in configs.items()}
        return [profile for _, profile in sorted(found.items())]

    def _is_numeric(self, number: int) -> bool:
        values = next(iter(self._sweep.axes[number].values()))
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)

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
        """Return the labels of an axis: of its main field, or of all where that is not enough."""
        axis = self._sweep.axes[number]
        own = labels(axis[field])
        if len(set(own)) == len(own):
            return own
        return [", ".join(each) for each in zip(*map(labels, axis.values()), strict=True)]


_MAIN_ROLES = (HARDWARE, POLICY, LOAD)


def _role(place: int) -> str:
    return _MAIN_ROLES[place] if place < len(_MAIN_ROLES) else OTHER


def _point(path: Path, record: dict[str, Any], places: tuple[int, ...]) -> Point:
    remedy = "remove it and run the sweep with --resume"
    check_version(path, record.get("specsim_version"), remedy)
    with validated(f"{path} ({remedy})", ConfigError):
        return Point(**dict(_Record.model_validate(record)), number=record["point"], places=places)


class _Record(BaseModel):
    """What a point's file holds and a report draws."""

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
