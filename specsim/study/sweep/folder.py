"""SweepFolder: where a sweep keeps its results, point by point, and goes on after a break.

``sweep.yaml`` says what was asked for, ``points/00017.json`` is there, whole, as soon as that point
has ended, and ``points.parquet`` when all have.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.settings import load_mapping, validated
from specsim.core.version import __version__
from specsim.profile import load_profile
from specsim.study.inputs import inputs_of
from specsim.study.sweep.plan import Sweep

_FORMAT = 1
_DRAWN = ("distributions", "timeline", "breakdown")
"""Parts of a record that are large and not needed for the table."""
_HEADER = ("sweep_format", "specsim_version", "seed", "num_points", "profiles", "inputs")


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep."""

    path: Path
    sweep: Sweep
    specsim_version: str
    """Of the one that wrote it."""
    profiles: dict[str, str]
    """Digest of each profile that the points name, so that they cannot change in between."""
    inputs: dict[str, str | None]
    """The same of everything else that they read; empty in folders of older versions."""

    @classmethod
    def create(cls, path: Path, sweep: Sweep, *, resume: bool) -> Self:
        """Return a folder to write to, which is made if it is missing.

        Args:
            resume: Whether it may hold points of this very sweep, which are kept.

        Raises:
            ConfigError: It holds a sweep and `resume` is false, or another sweep, or one of another
                version, or it cannot be written to.
        """
        plan = path / "sweep.yaml"
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path}: is a file; name a folder")
        if not plan.exists():
            if any(path.glob("points*")):
                raise ConfigError(f"{path}: holds points of no sweep; name another folder")
            folder = cls(path, sweep, __version__, *_digests(sweep))
            with new_file(plan) as temporary:
                temporary.write_text(folder._as_yaml(), encoding="utf-8")
            return folder
        found = cls.open(path)
        if not resume:
            raise ConfigError(
                f"{path}: holds a sweep already; go on with it by --resume or name another folder"
            )
        if found.specsim_version != __version__:
            raise ConfigError(
                f"{plan}: was begun by specsim {found.specsim_version}, and this is {__version__}, "
                "whose points may differ; name another folder"
            )
        _check_same(found.sweep, sweep, plan)
        profiles, inputs = _digests(sweep)
        changed = [f"profile {n}" for n, kept in found.profiles.items() if profiles.get(n) != kept]
        changed += [name for name, kept in found.inputs.items() if inputs.get(name) != kept]
        for name in changed:
            raise ConfigError(
                f"{plan}: --resume: {name} has changed since the sweep began; name another folder"
            )
        for leftover in (path / "points").glob(".*.tmp"):  # of a process that was killed
            leftover.unlink(missing_ok=True)
        return found

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return a folder to read from.

        Raises:
            ConfigError: It holds no sweep, or one that this version cannot read.
        """
        plan = path / "sweep.yaml"
        if not plan.is_file():
            raise ConfigError(
                f"{path}: holds no sweep.yaml; give a folder that `specsim sweep` wrote"
            )
        data = load_mapping(plan, ConfigError)
        header = {name: data.pop(name, None) for name in _HEADER}
        if header["sweep_format"] is None:
            raise ConfigError(
                f"{plan}: was not written by `specsim sweep`, which keeps its own sweep.yaml in a "
                "folder of results; name another folder"
            )
        if header["sweep_format"] != _FORMAT:
            raise ConfigError(
                f"{plan}: sweep_format = {header['sweep_format']}, but specsim {__version__} reads "
                f"{_FORMAT}; use specsim {header['specsim_version']} or run the sweep again"
            )
        with validated(str(plan), ConfigError):
            sweep = Sweep.model_validate(data)
        digests = (header[name] or {} for name in ("profiles", "inputs"))
        return cls(path, sweep, str(header["specsim_version"]), *digests)

    def _as_yaml(self) -> str:
        sweep = self.sweep
        header = (_FORMAT, __version__, sweep.seed, sweep.num_points, self.profiles, self.inputs)
        content = {**dict(zip(_HEADER, header, strict=True)), **sweep.model_dump(mode="json")}
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)

    def record_path(self, number: int) -> Path:
        """Return where the record of a point is, or will be."""
        return self.path / "points" / f"{number:05}.json"

    def write(self, record: dict[str, Any]) -> None:
        """Keep the record of a point that has ended."""
        with new_file(self.record_path(record["point"])) as temporary:
            temporary.write_text(json.dumps(record, allow_nan=False) + "\n", encoding="ascii")

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records of all points that have ended, in their order."""
        for number in range(self.sweep.num_points):
            if (path := self.record_path(number)).exists():
                yield _record(path, number)

    def numbers(self) -> list[dict[str, Any]]:
        """Return the same records without what is only drawn."""
        return [
            {name: value for name, value in record.items() if name not in _DRAWN}
            for record in self.records()
        ]

    def finish(self) -> list[dict[str, Any]]:
        """Write ``points.parquet``, one row per point, and return what `numbers` does.

        Raises:
            ConfigError: A record is missing or damaged, or the folder cannot be written to.
        """
        records = self.numbers()
        if len(records) < self.sweep.num_points:
            raise ConfigError(
                f"{self.path}: holds {len(records)} of {self.sweep.num_points} points; run the "
                "sweep again with --resume"
            )
        with new_file(self.path / "points.parquet") as temporary:
            pq.write_table(_table(records), temporary, compression="zstd")
        return records


def _digests(sweep: Sweep) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return digests of profiles, and of everything else that the points of a sweep read."""
    experiments = sweep.check("axes")
    read = {
        each.name: each.digest
        for experiment in experiments
        for field, each in inputs_of(experiment).items()
        if field != "profile"
    }
    profiles = {experiment.profile for experiment in experiments}
    return {name: _profile_digest(name) for name in sorted(profiles)}, dict(sorted(read.items()))


def _profile_digest(name: str) -> str:
    try:
        content = load_profile(name).model_dump_json()
    except SpecsimError:
        return "cannot be read"  # its points will say why
    return sha256(content.encode()).hexdigest()[:12]


def _check_same(found: Sweep, wanted: Sweep, plan: Path) -> None:
    for name in Sweep.model_fields:
        if getattr(found, name) != getattr(wanted, name):
            raise ConfigError(
                f"{plan}: --resume: belongs to another sweep: its '{name}' differs; name another "
                "folder"
            )


def _record(path: Path, number: int) -> dict[str, Any]:
    try:
        record = load_mapping(path, ConfigError)
    except ConfigError as error:
        raise ConfigError(f"{error}; remove the file and --resume") from error
    missing = {"axes", "labels", "replication", "seed", "error", "metrics"} - set(record)
    if record.get("point") != number or missing:
        raise ConfigError(f"{path}: is not the record of point {number}; remove it and --resume")
    return record


def _table(records: list[dict[str, Any]]) -> pa.Table:
    columns: dict[str, list[Any]] = {"point": [r["point"] for r in records]}
    for field in records[0]["axes"]:
        values = [r["axes"][field] for r in records]
        if not all(type(value) in (int, float) for value in values):
            values = [r["labels"][field] for r in records]
        columns[field] = values
    for name in ("replication", "seed", "config_hash", "specsim_version", "error"):
        columns[name] = [r[name] for r in records]
    for name in dict.fromkeys(name for r in records for name in r["metrics"]):
        columns[name] = [r["metrics"].get(name) for r in records]
    return pa.table({name: _array(values) for name, values in columns.items()})


def _array(values: list[Any]) -> "pa.Array[Any]":
    if any(isinstance(value, float) for value in values):
        values = [None if value is None else float(value) for value in values]
    array: pa.Array[Any] = pa.array(values)
    return array
