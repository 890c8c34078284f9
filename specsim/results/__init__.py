"""Meanings: what each field and column of the results files means, and its unit.

The reference pages and the metadata of Parquet columns are made from the same file, columns.yaml.
"""

import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from specsim.core.errors import ConfigError
from specsim.core.settings import load_mapping

_WRITTEN_BY = {
    "points": "sweep", "comparison.json": "compare", "capacity.json": "capacity",
    "summary.json": "run",
}  # fmt: skip


def check_kind(folder: Path, written: Collection[str]) -> None:
    """Raise a ConfigError if a folder holds the results of another command.

    `written` are the files to write; a reader of a mixed folder could not tell which results are
    meant.
    """
    for file, command in _WRITTEN_BY.items():
        if file not in written and (folder / file).exists():
            raise ConfigError(
                f"{folder}: holds the results of `specsim {command}` ({file}); name another folder"
            )


@cache
def meanings() -> dict[str, dict[str, Any]]:
    """Return the meaning of each field by file and name; for Parquet files, (unit, meaning)."""
    return load_mapping(Path(__file__).with_name("columns.yaml"), ConfigError)


def grouped(name: str) -> str:
    """Return the name under which the meaning of a field of summary.json is stored.

    All statistics of one latency share an entry: ``p99_ttft_ms`` is under ``<statistic>_ttft_ms``.
    """
    return re.sub(r"^(mean|median|std|p\d+)_(\w+_ms)$", r"<statistic>_\2", name)


def metadata(file: str, column: str) -> dict[str, str] | None:
    """Return unit and meaning of a Parquet column for its metadata; None if not known.

    A column that the file's own list lacks is looked up among the fields of summary.json.
    """
    known = meanings()
    if column in known[file]:
        unit, meaning = known[file][column]
        return {"unit": unit, "meaning": meaning}
    outer = column.partition(".")[0]
    meaning = known["summary.json"].get(grouped(column)) or known["specsim"].get(outer)
    if meaning is None:
        return None
    return {
        "unit": "ms" if column.endswith("_ms") or outer.endswith("_ms") else "",
        "meaning": meaning,
    }
