"""StepsTable: the steps of a run, read back from its results folder and checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from specsim.errors import ConfigError
from specsim.results.records import STEP_FIELDS

__all__ = ["StepsTable", "load_steps"]

_PROVENANCE = ("config_hash", "seed", "specsim_version")
_SOMETIMES_UNKNOWN = "alpha_estimate"
_REMEDY = "give a folder that `specsim run --out` wrote"


@dataclass(frozen=True)
class StepsTable:
    """The steps of some replicas of a run, replica after replica, in the order of the clock."""

    columns: dict[str, NDArray[Any]]
    """Each of shape (n_steps,): ``replica``, those of `specsim.results.records.STEP_FIELDS`, and
    ``alpha_estimate``, nan where the policy had none."""
    provenance: dict[str, object]
    """Hash of the configuration, seed, and version of specsim."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column."""
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["replica"])

    @property
    def replicas(self) -> list[int]:
        """Replicas that ran at least one step."""
        return [int(number) for number in np.unique(self["replica"])]

    @property
    def span(self) -> tuple[float, float]:
        """When the first step was scheduled and when the last one ended, seconds."""
        return float(self["scheduled_at"].min()), float(self["ended_at"].max())

    def of_replica(self, number: int) -> "StepsTable":
        """Return the steps of one replica.

        Parameters
        ----------
        number : int

        Returns
        -------
        StepsTable

        Raises
        ------
        ConfigError
            It ran no step.
        """
        if number not in self.replicas:
            known = ", ".join(map(str, self.replicas))
            raise ConfigError(f"replica {number} ran no step; choose from {known}")
        mine = self["replica"] == number
        columns = {name: column[mine] for name, column in self.columns.items()}
        return StepsTable(columns, self.provenance)

    @property
    def held_until(self) -> NDArray[np.float64]:
        """When each step of a single replica ended or the next was scheduled, if that was sooner.

        Asynchronous steps overlap; the times from ``scheduled_at`` to here do not, and together
        they are the time in which the engine was busy. Shape (n_steps,), seconds.
        """
        until: NDArray[np.float64] = self["ended_at"].copy()
        np.minimum(until[:-1], self["scheduled_at"][1:], out=until[:-1])
        return until


def load_steps(folder: Path) -> StepsTable:
    """Return the steps table of a results folder.

    Parameters
    ----------
    folder : Path
        As ``specsim run --out`` wrote it, or a policy's folder of ``specsim compare --out``.

    Returns
    -------
    StepsTable

    Raises
    ------
    ConfigError
        There is no ``steps.parquet``, or it is cut short, or not one of specsim's.
    """
    path = folder / "steps.parquet"
    if not path.is_file():
        raise ConfigError(f"{folder}: holds no steps.parquet; {_hint(folder)}")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"{path}: cannot be read as Parquet, so it is cut short or something else ({why}); "
            "run the experiment again"
        ) from error
    names = [name for name in STEP_FIELDS.names or () if name != _SOMETIMES_UNKNOWN]
    for name in ("replica", *names, *_PROVENANCE):
        if name not in table.column_names:
            raise ConfigError(f"{path}: has no column '{name}', so it is not ours; {_REMEDY}")
    if not table.num_rows:
        raise ConfigError(f"{path}: holds no step; {_REMEDY}")
    columns = {name: _numbers(table[name], path, name) for name in ("replica", *names)}
    columns[_SOMETIMES_UNKNOWN] = _alpha_estimate(table, path)
    _check(columns, path)
    return StepsTable(columns, {name: _constant(table[name], path, name) for name in _PROVENANCE})


def _hint(folder: Path) -> str:
    """Return what to do, naming the folders below it that would do."""
    if not folder.is_dir():
        return f"there is no such folder; {_REMEDY}"
    below = sorted(path.parent.name for path in folder.glob("*/steps.parquet"))
    return f"give one of the folders in it: {', '.join(below[:8])}" if below else _REMEDY


def _alpha_estimate(table: pa.Table, path: Path) -> NDArray[Any]:
    if _SOMETIMES_UNKNOWN not in table.column_names:
        return np.full(table.num_rows, np.nan, dtype=np.float32)
    return _numbers(table[_SOMETIMES_UNKNOWN], path, _SOMETIMES_UNKNOWN, may_be_nan=True)


def _numbers(
    column: "pa.ChunkedArray[Any]", path: Path, name: str, *, may_be_nan: bool = False
) -> NDArray[Any]:
    """Return a column of counts or times, all of which are 0 or more."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise ConfigError(f"{path}: column '{name}' holds {column.type}, not numbers; {_REMEDY}")
    values = column.to_numpy()
    with np.errstate(invalid="ignore"):
        wrong = ~((values >= 0) & (values < np.inf))
    if may_be_nan:
        wrong &= ~np.isnan(values)
    if wrong.any() or column.null_count:
        row = int(wrong.argmax())
        raise ConfigError(
            f"{path}: row {row + 1}: {name} = {column[row].as_py()} must be a number of 0 or more; "
            "run the experiment again"
        )
    return np.ascontiguousarray(values)


def _constant(column: "pa.ChunkedArray[Any]", path: Path, name: str) -> object:
    values = column.unique().to_pylist()
    if len(values) > 1:
        raise ConfigError(
            f"{path}: column '{name}' has {len(values)} values, so it holds several runs; {_REMEDY}"
        )
    return values[0]


def _check(columns: dict[str, NDArray[Any]], path: Path) -> None:
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
