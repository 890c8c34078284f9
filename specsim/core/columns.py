"""Columns: tables of measured numbers, from CSV (gzip or not), Parquet, or JSON lines."""

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ProfileError

__all__ = ["Columns", "find_table", "first_line", "read_columns", "table_header"]

Columns = dict[str, NDArray[np.float64]]
"""Shape (rows,) each, by name."""

_WORDS = {"true": 1.0, "false": 0.0}


def find_table(folder: Path, name: str) -> Path | None:
    """Return the file of a table in a folder, ``name.csv`` or ``name.csv.gz``, or None."""
    found = (folder / f"{name}{suffix}" for suffix in (".csv", ".csv.gz"))
    return next((path for path in found if path.is_file()), None)


def first_line(path: Path) -> int:
    """Return the number of the line on which a table's first row stands."""
    return 1 if path.suffix == ".jsonl" else 2


def table_header(path: Path) -> list[str]:
    """Return the names of a table's columns.

    Returns:
        Empty if the file is.

    Raises:
        ProfileError: The file cannot be read.
    """
    return next(_rows(path), [])


def read_columns(
    path: Path, numbers: Iterable[str], words: Sequence[str] = ()
) -> tuple[Columns, dict[str, list[str]]]:
    """Return columns of a table, found by their header, in any order; others are ignored.

    Args:
        numbers: Columns that hold numbers of at least 0.
        words: Columns that hold text.

    Returns:
        dict of ndarray of float, shape (rows,): By the name of the column, of shape (rows,).
        dict of list of str: Likewise.

    Raises:
        ProfileError: The file cannot be read, lacks a column, has no row, or a value is not a
            number of at least 0.
    """
    rows, names = _rows(path), list(numbers)
    header = next(rows, [])
    places = {}
    for name in (*names, *words):
        if name not in header:
            raise ProfileError(
                f"{path}: has no column '{name}' (found: {', '.join(header) or 'nothing'}); the "
                "first line must name the columns"
            )
        places[name] = header.index(name)
    texts: dict[str, list[str]] = {name: [] for name in places}
    for line, row in enumerate(rows, start=first_line(path)):
        if len(row) < len(header):
            raise ProfileError(
                f"{path}, line {line}: {len(row)} values for {len(header)} columns; the line may "
                "have been cut off"
            )
        for name, place in places.items():
            texts[name].append(row[place])
    if not next(iter(texts.values())):
        raise ProfileError(f"{path}: has no rows below its header")
    columns = {name: _numbers(path, name, texts[name]) for name in names}
    return columns, {name: texts[name] for name in words}


def _numbers(path: Path, name: str, texts: list[str]) -> NDArray[np.float64]:
    values = np.array([_number(text) for text in texts])
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        row = int(wrong[0])
        raise ProfileError(
            f"{path}, line {row + first_line(path)}: {name} = {texts[row]!r} must be a number of "
            "at least 0; correct or remove the row"
        )
    return values


def _number(text: str) -> float:
    try:
        return _WORDS[text.lower()] if text.lower() in _WORDS else float(text)
    except ValueError:
        return float("nan")


def _rows(path: Path) -> Iterator[list[str]]:
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    if path.suffix == ".jsonl":
        yield from _json_rows(path)
        return
    try:
        with _opened(path) as stream:
            yield from (row for row in csv.reader(stream) if row)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProfileError(f"{path}: cannot be read: {reason}") from error


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    if path.suffix == ".gz":
        with gzip.open(path) as stream, TextIOWrapper(stream, "utf-8", newline="") as text:
            yield text
    else:
        with path.open(encoding="utf-8-sig", newline="") as text:
            yield text


def _parquet_rows(path: Path) -> Iterator[list[str]]:
    import pyarrow as pa  # noqa: PLC0415 - pyarrow takes 30 MiB
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ProfileError(f"{path}: is not a complete Parquet file") from error
    yield list(table.column_names)
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        yield [str(value) for value in row]


def _json_rows(path: Path) -> Iterator[list[str]]:
    """Yield the numbers that stand under the names of the first line's."""
    names: list[str] = []
    try:
        with path.open(encoding="utf-8") as stream:
            for line, text in enumerate(stream, start=1):
                try:
                    row = json.loads(text)
                except ValueError as error:
                    raise ProfileError(
                        f"{path}, line {line}: is not JSON; it may have been cut off: remove it"
                    ) from error
                if not isinstance(row, dict):
                    raise ProfileError(f"{path}, line {line}: must be a mapping of names to values")
                if not names:
                    names = [name for name in row if isinstance(row[name], int | float)]
                    yield names
                yield [str(row.get(name, "")) for name in names]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProfileError(f"{path}: cannot be read: {reason}") from error
