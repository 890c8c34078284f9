"""Meanings: what each field and column of results is, and in which unit.

The reference pages are made from the same file, and Parquet files say it of their columns.
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
    """Raise a ConfigError if a folder holds results of another command than writes these files.

    Whoever reads the folder could not tell which are meant.
    """
    for file, command in _WRITTEN_BY.items():
        if file not in written and (folder / file).exists():
            raise ConfigError(
                f"{folder}: holds the results of `specsim {command}` ({file}); name another folder"
            )


@cache
def meanings() -> dict[str, dict[str, Any]]:
    """Return by file and name the meaning; of Parquet files, unit and meaning."""
    return load_mapping(Path(__file__).with_name("columns.yaml"), ConfigError)


def grouped(name: str) -> str:
    """Return the name under which the meaning of a field of summary.json is known.

    All statistics of a latency have one.
    """
    return re.sub(r"^(mean|median|std|p\d+)_(\w+_ms)$", r"<statistic>_\2", name)


def metadata(file: str, column: str) -> dict[str, str] | None:
    """Return what a Parquet file says of a column: its unit and meaning; None if not known.

    A column that is no other of the file's may be a number of summary.json, by its name there.
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
