"""Results folders of runs, read back and checked: every reader of their files is here."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specsim.core.columns import parquet_table
from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping
from specsim.results.step_log import STEP_FIELDS
from specsim.results.tables import TABLE_FIELDS

_PROVENANCE = ("config_hash", "seed", "specsim_version")
_TIMES = ("arrived_at", "scheduled_at", "first_token_at", "ended_at")
_REMEDY = "give a folder that `specsim run --out` wrote"


@dataclass(frozen=True)
class RunTable:
    """A table of a run."""

    columns: dict[str, NDArray[Any]]
    """Each of shape (n,)."""
    provenance: dict[str, object]
    """Hash of the configuration, seed, and version of specsim."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


class StepsTable(RunTable):
    """The steps of some replicas of a run, replica after replica, in the order of the clock.

    Its columns are ``replica`` and those of `specsim.results.step_log.STEP_FIELDS`;
    ``alpha_estimate`` is nan where the policy had none.
    """

    @property
    def replicas(self) -> list[int]:
        """Replicas that ran at least one step."""
        return [int(number) for number in np.unique(self["replica"])]

    @property
    def span(self) -> tuple[float, float]:
        """When the first step was scheduled and when the last one ended, seconds."""
        return float(self["scheduled_at"].min()), float(self["ended_at"].max())

    def of_replica(self, number: int) -> "StepsTable":
        """Return the steps of one replica; a ConfigError if it ran none."""
        if number not in self.replicas:
            known = ", ".join(map(str, self.replicas))
            raise ConfigError(f"replica {number} ran no step; choose from {known}")
        return self.where(self["replica"] == number)

    def where(self, wanted: NDArray[np.bool_]) -> "StepsTable":
        """Return some of the steps."""
        columns = {name: column[wanted] for name, column in self.columns.items()}
        return StepsTable(columns, self.provenance)

    @property
    def held_until(self) -> NDArray[np.float64]:
        """When each step of a single replica ended or the next was scheduled, if that was sooner.

        Asynchronous steps overlap; the times from ``scheduled_at`` to here do not, and together
        they are the time in which the engine was busy. Shape (n,), seconds.
        """
        until: NDArray[np.float64] = self["ended_at"].copy()
        np.minimum(until[:-1], self["scheduled_at"][1:], out=until[:-1])
        return until


@dataclass(frozen=True)
class ResultsFolder:
    """What ``specsim run --out`` wrote; each file is read when it is asked for.

    Raises:
        ConfigError: From each property: its file is missing, cut short or not ours, or not of the
            same run as ``summary.json``.
    """

    path: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        """``summary.json``."""
        summary = load_mapping(self.path / "summary.json", ConfigError)
        own_block(self.path / "summary.json", summary)
        return summary

    @property
    def own(self) -> dict[str, Any]:
        """The block ``specsim`` of the summary."""
        block: dict[str, Any] = self.summary["specsim"]
        return block

    @property
    def provenance(self) -> dict[str, object]:
        """Hash of the configuration, seed, and version of specsim."""
        return {name: self.own[name] for name in _PROVENANCE}

    @cached_property
    def config(self) -> dict[str, Any]:
        """``config.yaml``, unchecked: its classes may be on another computer."""
        return load_mapping(self.path / "config.yaml", ConfigError)

    @cached_property
    def requests(self) -> RunTable:
        """The requests of all replicas, in order of their number."""
        table = load_requests(self.path)
        self._check_origin(table)
        return table

    @cached_property
    def steps(self) -> StepsTable:
        """The steps of all replicas."""
        table = load_steps(self.path)
        self._check_origin(table)
        return table

    def _check_origin(self, table: RunTable) -> None:
        names = "its tables and summary.json"
        check_same_run(self.path, names, table.provenance, self.provenance)


def own_block(path: Path, summary: object) -> dict[str, Any]:
    """Return what only specsim writes into a summary; a ConfigError if that is not there."""
    own = summary.get("specsim") if isinstance(summary, dict) else None
    if not isinstance(own, dict) or not own.keys() >= {*_PROVENANCE, "num_gpu_blocks"}:
        raise ConfigError(
            f"{path}: is no summary of specsim's (has no block 'specsim' of ours); {_REMEDY}"
        )
    return own


def check_same_run(folder: Path, names: str, first: object, second: object) -> None:
    """Raise a ConfigError if two files of a folder say different things of their origin."""
    if first != second:
        raise ConfigError(
            f"{folder}: {names} differ: not the same run, or another version of specsim; run the "
            "experiment again"
        )


def load_requests(folder: Path) -> RunTable:
    """Return the requests of a run, with the columns of `specsim.results.tables.TABLE_FIELDS`.

    And with ``session`` and ``turn`` if the run had sessions. A ConfigError if
    ``requests.parquet`` is missing, cut short or not specsim's.
    """
    names = TABLE_FIELDS.names or ()
    stored = _StoredTable(folder, "requests.parquet", names)
    more = [name for name in ("session", "turn") if name in stored]
    columns = {name: stored.numbers(name) for name in (*names, *more)}
    wrong = np.zeros(len(stored), dtype=bool)
    for earlier, later in pairwise(_TIMES):
        wrong |= columns[later] < columns[earlier]
    if wrong.any():
        raise ConfigError(
            f"{stored.path}: row {int(wrong.argmax()) + 1}: its times must be in the order of "
            f"{', '.join(_TIMES)}; run the experiment again"
        )
    return RunTable(columns, stored.provenance)


def load_steps(folder: Path) -> StepsTable:
    """Return the steps of a run; a ConfigError if they are missing, cut short or not ours."""
    unknown = "alpha_estimate"  # absent in files of older versions
    names = ("replica", *(name for name in STEP_FIELDS.names or () if name != unknown))
    stored = _StoredTable(folder, "steps.parquet", names)
    columns = {name: stored.numbers(name) for name in names}
    if unknown in stored:
        columns[unknown] = stored.numbers(unknown, may_be_nan=True)
    else:
        columns[unknown] = np.full(len(stored), np.nan, dtype=np.float32)
    _check_steps(columns, stored.path)
    return StepsTable(columns, stored.provenance)


def _check_steps(columns: dict[str, NDArray[Any]], path: Path) -> None:
    empty = columns["num_requests"] < 1
    if empty.any():
        raise ConfigError(
            f"{path}: row {int(empty.argmax()) + 1}: num_requests = 0, but a step has at least one "
            "request; run the experiment again"
        )
    same_replica = np.diff(columns["replica"]) == 0
    wrong = columns["ended_at"] < columns["scheduled_at"]
    for name in ("scheduled_at", "ended_at"):
        wrong[1:] |= (np.diff(columns[name]) < 0) & same_replica
    wrong[1:] |= np.diff(columns["replica"]) < 0
    if wrong.any():
        raise ConfigError(
            f"{path}: row {int(wrong.argmax()) + 1}: steps must be in the order of replica and "
            "clock; run the experiment again"
        )
    if columns["ended_at"].max() <= columns["scheduled_at"].min():
        raise ConfigError(f"{path}: all steps took no time at all; use a profile in which they do")


class _StoredTable:
    """A Parquet file of a results folder, checked column by column.

    Args:
        columns: Those that it must have, besides where it comes from.

    Raises:
        ConfigError: It is missing, cut short, empty, or not one of specsim's.
    """

    def __init__(self, folder: Path, file: str, columns: Iterable[str]) -> None:
        self.path = folder / file
        if not self.path.is_file():
            raise ConfigError(f"{folder}: holds no {file}; {_hint(folder, file)}")
        self._table = parquet_table(self.path, ConfigError, "run the experiment again")
        for name in (*columns, *_PROVENANCE):
            if name not in self:
                raise ConfigError(
                    f"{self.path}: has no column '{name}', so it is not ours; {_REMEDY}"
                )
        if not len(self):
            what = file.removesuffix("s.parquet")
            raise ConfigError(f"{self.path}: holds no {what}; {_REMEDY}")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self._table.column_names

    @property
    def provenance(self) -> dict[str, object]:
        return {name: self._constant(name) for name in _PROVENANCE}

    def numbers(self, name: str, *, may_be_nan: bool = False) -> NDArray[Any]:
        """Return a column of counts or times, all of which are 0 or more."""
        column = self._table[name]
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise ConfigError(
                f"{self.path}: column '{name}' holds {column.type}, not numbers; {_REMEDY}"
            )
        values = column.to_numpy()
        with np.errstate(invalid="ignore"):
            wrong = ~((values >= 0) & (values < np.inf))
        if may_be_nan:
            wrong &= ~np.isnan(values)
        if wrong.any() or column.null_count:
            row = int(wrong.argmax())
            raise ConfigError(
                f"{self.path}: row {row + 1}: {name} = {column[row].as_py()} must be a number of "
                "0 or more; run the experiment again"
            )
        return np.ascontiguousarray(values)

    def _constant(self, name: str) -> object:
        values = self._table[name].unique().to_pylist()
        if len(values) > 1:
            raise ConfigError(
                f"{self.path}: column '{name}' has {len(values)} values, so it holds several runs; "
                f"{_REMEDY}"
            )
        return values[0]


def _hint(folder: Path, file: str) -> str:
    """Return what to do, naming the folders below it that would do."""
    if not folder.is_dir():
        return f"there is no such folder; {_REMEDY}"
    if file == "steps.parquet" and (folder / "requests.parquet").is_file():
        return "it was written with --no-steps; run the experiment again without that"
    below = sorted(path.parent.name for path in folder.glob(f"*/{file}"))
    return f"give one of the folders in it: {', '.join(below[:8])}" if below else _REMEDY
