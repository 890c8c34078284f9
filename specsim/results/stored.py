"""Tables of a results folder, read back and checked column by column."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from specsim.core.errors import ConfigError

__all__ = ["StoredTable"]

_PROVENANCE = ("config_hash", "seed", "specsim_version")
_REMEDY = "give a folder that `specsim run --out` wrote"


class StoredTable:
    """A table that `specsim run --out` wrote.

    Args:
        file: Name of the table in it.
        columns: Those that it must have, besides where it comes from.

    Raises:
        ConfigError: It is missing, cut short, empty, or not one of specsim's.
    """

    def __init__(self, folder: Path, file: str, columns: Iterable[str]) -> None:
        self.path = folder / file
        if not self.path.is_file():
            raise ConfigError(f"{folder}: holds no {file}; {_hint(folder, file)}")
        try:
            self._table = pq.read_table(self.path)
        except (pa.ArrowException, OSError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(
                f"{self.path}: cannot be read as Parquet, so it is cut short or something else "
                f"({why}); run the experiment again"
            ) from error
        for name in (*columns, *_PROVENANCE):
            if name not in self._table.column_names:
                raise ConfigError(
                    f"{self.path}: has no column '{name}', so it is not ours; {_REMEDY}"
                )
        if not self._table.num_rows:
            what = file.removesuffix("s.parquet")
            raise ConfigError(f"{self.path}: holds no {what}; {_REMEDY}")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self._table.column_names

    @property
    def provenance(self) -> dict[str, object]:
        """Hash of the configuration, seed, and version of specsim."""
        return {name: self._constant(name) for name in _PROVENANCE}

    def numbers(self, name: str, *, may_be_nan: bool = False) -> NDArray[Any]:
        """Return a column of counts or times, all of which are 0 or more, of shape (n,).

        Raises:
            ConfigError: It holds something else.
        """
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
