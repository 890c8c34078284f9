"""StepsTable: the steps of a run, read back from its results folder and checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.results.records import STEP_FIELDS
from specsim.results.stored import StoredTable

__all__ = ["StepsTable", "load_steps"]

_SOMETIMES_UNKNOWN = "alpha_estimate"


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

        Raises:
            ConfigError: It ran no step.
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

    Args:
        folder: As ``specsim run --out`` wrote it, or a policy's folder of ``specsim compare
            --out``.

    Raises:
        ConfigError: There is no ``steps.parquet``, or it is cut short, or not one of specsim's.
    """
    names = [name for name in STEP_FIELDS.names or () if name != _SOMETIMES_UNKNOWN]
    table = StoredTable(folder, "steps.parquet", ("replica", *names))
    columns = {name: table.numbers(name) for name in ("replica", *names)}
    if _SOMETIMES_UNKNOWN in table:
        columns[_SOMETIMES_UNKNOWN] = table.numbers(_SOMETIMES_UNKNOWN, may_be_nan=True)
    else:
        columns[_SOMETIMES_UNKNOWN] = np.full(len(table), np.nan, dtype=np.float32)
    _check(columns, table.path)
    return StepsTable(columns, table.provenance)


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
