"""RequestsTable: the requests of a run, read back from its results folder and checked."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.results.stored import StoredTable
from specsim.results.tables import TABLE_FIELDS

__all__ = ["RequestsTable", "load_requests"]

_TIMES = ("arrived_at", "scheduled_at", "first_token_at", "ended_at")


@dataclass(frozen=True)
class RequestsTable:
    """The requests of a run, in order of their number."""

    columns: dict[str, NDArray[Any]]
    """Each of shape (n,): those of `specsim.results.tables.TABLE_FIELDS`."""
    provenance: dict[str, object]
    """Hash of the configuration, seed, and version of specsim."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column."""
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["request"])


def load_requests(folder: Path) -> RequestsTable:
    """Return the requests table of a results folder.

    Args:
        folder: As ``specsim run --out`` wrote it, or a policy's folder of ``specsim compare
            --out``.

    Raises:
        ConfigError: There is no ``requests.parquet``, or it is cut short, or not one of specsim's.
    """
    names = TABLE_FIELDS.names or ()
    table = StoredTable(folder, "requests.parquet", names)
    columns = {name: table.numbers(name) for name in names}
    wrong = np.zeros(len(table), dtype=bool)
    for earlier, later in pairwise(_TIMES):
        wrong |= columns[later] < columns[earlier]
    if wrong.any():
        raise ConfigError(
            f"{table.path}: row {int(wrong.argmax()) + 1}: its times must be in the order of "
            f"{', '.join(_TIMES)}; run the experiment again"
        )
    return RequestsTable(columns, table.provenance)
