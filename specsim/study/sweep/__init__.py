"""Sweeps: one experiment along several axes, point by point, resumable."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from specsim.core.atomic import check_folder, new_file
from specsim.core.errors import ConfigError, SpecsimError
from specsim.core.processes import LocalProcesses
from specsim.core.runner import Backend, Job, Runner
from specsim.core.settings import as_yaml, flattened, load_mapping, validated
from specsim.core.version import __version__
from specsim.profile import load_profile
from specsim.results import check_kind
from specsim.results.folder import StepsTable, described, structured_columns
from specsim.results.metrics import distributions
from specsim.results.stability import as_flags, stability_of
from specsim.results.timeline import over_time
from specsim.run.experiment import check_size
from specsim.run.simulate import simulate
from specsim.run.summary import Summary
from specsim.study.inputs import inputs_of
from specsim.study.sweep.plan import Sweep, SweepPoint, labels, of_points
from specsim.workload import WorkloadConfig
from specsim.workload.trace import TraceRequests

__all__ = [
    "Backend", "LocalProcesses", "Sweep", "SweepFolder", "SweepPoint", "flat_metrics", "labels",
    "run_point", "run_sweep", "sweep",
]  # fmt: skip


_FORMAT = 1
_UNREADABLE = "cannot be read"
_DRAWN = ("distributions", "timeline", "breakdown")
"""Large parts of a record that the table of points leaves out."""
_HEADER = ("sweep_format", "specsim_version", "seed", "num_points", "profiles", "inputs", "notes")


@dataclass(frozen=True)
class SweepFolder:
    """The results folder of a sweep, which keeps each point as it ends and can be resumed.

    ``sweep.yaml`` holds the sweep, ``points/00017.json`` the record of a point as soon as that has
    ended, and ``points.parquet`` all of them at the end.
    """

    path: Path
    sweep: Sweep
    specsim_version: str  # the version that wrote the folder
    profiles: dict[str, str]
    """Digest of each profile that the points name, by which a change between sessions is found."""
    inputs: dict[str, str | None]  # the same of all other files that the points read
    notes: list[str] = field(default_factory=list)
    """What a user should know before comparing points."""

    @classmethod
    def create(cls, path: Path, sweep: Sweep, *, resume: bool) -> Self:
        """Return a folder to write to, made if missing; with `resume` it may hold this sweep.

        Raises a ConfigError if the folder holds another sweep, one of another version of specsim,
        or any sweep without `resume`.
        """
        plan = path / "sweep.yaml"
        check_folder(path)
        if not plan.exists():
            if any(path.glob("points*")):
                raise ConfigError(f"{path}: holds points of no sweep; name another folder")
            check_kind(path, ["points"])
            folder = cls(path, sweep, __version__, *_digests(sweep), sweep.notes)
            with new_file(plan, is_own=True) as temporary:
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
        found._check_unchanged(plan)
        for leftover in (path / "points").glob(".*.tmp"):  # left by a killed process
            leftover.unlink(missing_ok=True)
        return found

    def _check_unchanged(self, plan: Path) -> None:
        now = type(self)(self.path, self.sweep, __version__, *_digests(self.sweep))._read
        for name, kept in self._read.items():
            if kept not in (None, _UNREADABLE, now.get(name)):  # no point used an unreadable file
                raise ConfigError(
                    f"{plan}: --resume: {name} has changed since the sweep began; name another "
                    "folder"
                )

    @property
    def _read(self) -> dict[str, str | None]:
        return {f"profile {name}": digest for name, digest in self.profiles.items()} | self.inputs

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return a folder to read from; a ConfigError if it holds no sweep of this version."""
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
        try:
            with validated(str(plan), ConfigError):
                sweep = Sweep.model_validate(data)
        except ConfigError as error:
            remedy = "correct the sweep's own file, and run it into a new folder"
            raise ConfigError(f"{error}; {remedy}") from error
        profiles, inputs = (header[name] or {} for name in ("profiles", "inputs"))
        version, notes = str(header["specsim_version"]), header["notes"] or []
        return cls(path, sweep, version, profiles, inputs, notes)

    def _as_yaml(self) -> str:
        sweep = self.sweep
        read = (self.profiles, self.inputs)
        header = (_FORMAT, __version__, sweep.seed, sweep.num_points, *read, self.notes)
        content = dict(zip(_HEADER, header, strict=True)) | sweep.model_dump(mode="json")
        return as_yaml(content, width=100)

    def record_path(self, number: int) -> Path:
        return self.path / "points" / f"{number:05}.json"

    def write(self, record: dict[str, Any]) -> None:
        with new_file(self.record_path(record["point"]), is_own=True) as temporary:
            temporary.write_text(json.dumps(record, allow_nan=False) + "\n", encoding="ascii")

    def records(self) -> Iterator[dict[str, Any]]:
        for point in self.sweep.points():
            if (path := self.record_path(point.number)).exists():
                yield _record(path, point)

    def numbers(self) -> list[dict[str, Any]]:
        """Return the records of all points without the parts that are only drawn."""
        return [
            {name: value for name, value in record.items() if name not in _DRAWN}
            for record in self.records()
        ]

    def warnings(self, records: list[dict[str, Any]]) -> list[str]:
        """Return warnings about a sweep and some of its points, each kind once.

        Warnings that differ in numbers alone are given once, for the first point that has one.
        """
        ended = [record for record in records if record["error"] is None]
        found: dict[str, list[tuple[str, str]]] = {}
        for record in ended:
            where = ", ".join(f"{name} {label}" for name, label in record["labels"].items())
            for text in record.get("warnings", []):
                found.setdefault(re.sub(r"\d[\d,.]*", "0", text), []).append((where, text))
        said = []
        for each in found.values():
            is_common = len(each) == len(ended) and len({text for _, text in each}) == 1
            names = of_points([where for where, _ in each])
            said.append(each[0][1] if is_common else f"{names}: {each[0][1]}")
        return [*self.notes, *said]

    def finish(self) -> list[dict[str, Any]]:
        """Write ``points.parquet`` and return `numbers`; a ConfigError if a record is missing."""
        records = self.numbers()
        if len(records) < self.sweep.num_points:
            raise ConfigError(
                f"{self.path}: holds {len(records)} of {self.sweep.num_points} points; run the "
                "sweep again with --resume"
            )
        with new_file(self.path / "points.parquet", is_own=True) as temporary:
            pq.write_table(_table(records), temporary, compression="zstd")
        return records


def _digests(sweep: Sweep) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return the digests of profiles, and of all other files that the points of a sweep read."""
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
        return _UNREADABLE  # the points that read it report the error
    return sha256(content.encode()).hexdigest()[:12]


def _check_same(found: Sweep, wanted: Sweep, plan: Path) -> None:
    for name in Sweep.model_fields:
        if getattr(found, name) != getattr(wanted, name):
            raise ConfigError(
                f"{plan}: --resume: belongs to another sweep: its '{name}' differs; name another "
                "folder"
            )


def _record(path: Path, point: SweepPoint) -> dict[str, Any]:
    try:
        record = load_mapping(path, ConfigError)
    except ConfigError as error:
        raise ConfigError(f"{error}; remove the file and --resume") from error
    missing = {"axes", "labels", "replication", "seed", "error", "metrics"} - set(record)
    its = {"point": point.number, "axes": point.axes, "seed": point.seed}
    if missing or any(record.get(name) != value for name, value in its.items()):
        raise ConfigError(
            f"{path}: is not the record of point {point.number}; remove it and --resume"
        )
    return record


def _table(records: list[dict[str, Any]]) -> pa.Table:
    columns: dict[str, list[Any]] = {"point": [r["point"] for r in records]}
    for name in records[0]["axes"]:
        values = [r["axes"][name] for r in records]
        if not all(type(value) in (int, float) for value in values):
            values = [r["labels"][name] for r in records]
        columns[name] = values
    for name in ("replication", "seed", "config_hash", "specsim_version", "error"):
        columns[name] = [r[name] for r in records]
    for name in dict.fromkeys(name for r in records for name in r["metrics"]):
        columns[name] = [r["metrics"].get(name) for r in records]
    arrays = {name: _array(values) for name, values in columns.items()}
    return described(arrays, "points.parquet", records[0]["axes"])


def _array(values: list[Any]) -> Any:
    is_real = any(isinstance(value, float) for value in values)
    return pa.array(values, pa.float64() if is_real else None)


def sweep(
    path: Path | str,
    out: Path | str,
    *,
    overrides: Iterable[str] | Mapping[str, object] = (),
    resume: bool = False,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """Run the sweep in a YAML file into a folder, and return one record per point."""
    folder = SweepFolder.create(Path(out), Sweep.load(Path(path), overrides), resume=resume)
    return run_sweep(folder, LocalProcesses(workers), on_progress)


def run_sweep(
    folder: SweepFolder, backend: Backend, on_progress: Callable[[int], None] | None = None
) -> list[dict[str, Any]]:
    """Run all points of a sweep that have not ended yet, and return the records of all points.

    Each record is written to the folder as its point ends, and ``points.parquet`` at the end.
    """
    # Failed points are run again, since the cause may be gone.
    ended = {record["point"] for record in folder.numbers() if record["error"] is None}
    left = (point for point in folder.sweep.points() if point.number not in ended)
    with Runner(backend, on_progress, len(ended)) as runner:
        for _, record in runner.stream(Job(run_point, _failed), left):
            folder.write(record)
    return folder.finish()


def run_point(point: SweepPoint) -> dict[str, Any]:
    """Run a point and return its record, as in ``points/<number>.json``, even if it fails."""
    try:
        experiment = point.experiment()
        check_size(experiment)
        requests = _requests(experiment.workload.model_dump_json(), experiment.seed)
        summary = Summary(simulate(experiment, requests=requests))
        tables = summary.tables
        columns = {"replica": tables.step_replicas, **structured_columns(tables.steps)}
        steps = StepsTable(columns, summary.provenance)
        found = {
            "metrics": flat_metrics(summary.data),
            "warnings": summary.warnings,
            "distributions": distributions(tables.requests),
            **over_time(steps, summary.data["specsim"], summary.request_columns),
        }
    except SpecsimError as error:
        return _failed(point, str(error))
    except Exception as error:  # a bug here or in a user's class must not stop other points
        return _failed(point, f"{type(error).__name__}: {error}")
    return {**_header(point, None, experiment.hash), **found}


@lru_cache(maxsize=4)
def _requests(workload: str, seed: int) -> TraceRequests:
    # Cached: a process runs many policies on one workload, which may be a long file.
    return TraceRequests(WorkloadConfig.model_validate_json(workload).build(seed))


def _failed(point: SweepPoint, why: str) -> dict[str, Any]:
    try:
        config_hash = point.experiment().hash
    except SpecsimError:
        config_hash = None
    header = _header(point, (why.splitlines() or ["no reason given"])[0], config_hash)
    return {**header, "metrics": {}, "warnings": [], **{name: {} for name in _DRAWN}}


def _header(point: SweepPoint, error: str | None, config_hash: str | None) -> dict[str, Any]:
    return {
        "point": point.number,
        **{name: getattr(point, name) for name in ("axes", "labels", "replication", "seed")},
        "config_hash": config_hash,
        "specsim_version": __version__,
        "error": error,
    }


def flat_metrics(summary: dict[str, Any]) -> dict[str, float | int]:
    """Return the numbers of a ``summary.json`` without nesting.

    The fields of its block ``specsim`` are put beside the others; nested fields get dotted names,
    such as ``time_shares.target``. Booleans become 0 or 1, the stability the flags `overloaded` and
    `undecided`; other text and lists are left out.
    """
    outer = {name: value for name, value in summary.items() if name != "specsim"}
    own = summary["specsim"]
    return {
        name: int(value) if isinstance(value, bool) else value
        for name, value in flattened({**outer, **own, **as_flags(stability_of(own))}).items()
        if isinstance(value, int | float) and name.rpartition(".")[2] != "seed"
    }
