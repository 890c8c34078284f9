"""Columns: tables of measured numbers, from CSV (gzip or not), Parquet, or JSON lines."""

import csv
import gzip
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ProfileError, SpecsimError
from specsim.core.reading import (
    UnreadableError,
    check_file,
    check_parquet,
    check_rows,
    csv_rows,
    lines,
    parse_json,
    short,
)

Numbers = NDArray[np.float64]
Columns = dict[str, Numbers]  # shape (rows,) each, by name

_LARGEST = 1e30  # nothing that was measured has more of any unit; its square is a number, too
_WORDS = {"true": 1.0, "false": 0.0}


def find_table(folder: Path, name: str) -> Path | None:
    """Return the file of a table in a folder, ``name.csv`` or ``name.csv.gz``, or None."""
    found = (folder / f"{name}{suffix}" for suffix in (".csv", ".csv.gz"))
    return next((path for path in found if path.is_file()), None)


def first_line(path: Path) -> int:
    """Return the number of the line on which a table's first row stands."""
    return 1 if path.suffix == ".jsonl" else 2


def table_header(path: Path) -> list[str]:
    """Return the names of a table's columns, none if it is empty; a ProfileError if unreadable."""
    return next(_rows(path), [])


def read_columns(
    path: Path, numbers: Iterable[str], words: Sequence[str] = ()
) -> tuple[Columns, dict[str, list[str]]]:
    """Return columns of numbers, and columns of words, by the names in a table's header.

    A ProfileError if the file cannot be read, lacks a column, has no row, or a number is none of at
    least 0.
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
        if len(row) < len(header) or any(row[len(header) :]):
            is_long = len(row) > len(header)
            reason = "have a comma too many" if is_long else "have been cut off"
            raise ProfileError(
                f"{path}, line {line}: {len(row)} values for {len(header)} columns; the line may "
                f"{reason}"
            )
        for name, place in places.items():
            texts[name].append(row[place])
    if not next(iter(texts.values())):
        raise ProfileError(f"{path}: has no rows below its header")
    columns = {name: _numbers(path, name, texts[name]) for name in names}
    return columns, {name: texts[name] for name in words}


def _numbers(path: Path, name: str, texts: list[str]) -> NDArray[np.float64]:
    values = np.array([_number(text) for text in texts])
    wrong = np.flatnonzero(~((values >= 0) & (values <= _LARGEST)))
    if len(wrong):
        row = int(wrong[0])
        rule = "at least 0" if not values[row] > _LARGEST else f"at most {_LARGEST:g}"
        raise ProfileError(
            f"{path}, line {row + first_line(path)}: {name} = {texts[row]!r} must be a number of "
            f"{rule}; correct or remove the row"
        )
    return values


def _number(text: str) -> float:
    try:
        return _WORDS[text.lower()] if text.lower() in _WORDS else float(text)
    except ValueError:
        return float("nan")


def _rows(path: Path) -> Iterator[list[str]]:
    """Yield the names of a table's columns, then its rows."""
    if path.suffix == ".parquet":
        table = parquet_table(path, ProfileError)
        yield list(table.column_names)
        for values in zip(*(column.to_pylist() for column in table.columns), strict=True):
            yield list(map(str, values))
        return
    parse = _json_rows if path.suffix == ".jsonl" else _csv_rows
    try:
        check_file(path)
        yield from parse(path)
    except (OSError, EOFError, UnicodeDecodeError, UnreadableError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProfileError(f"{path}: cannot be read: {reason}") from error


@contextmanager
def opened_parquet(
    path: Path, error: type[SpecsimError], remedy: str = "name a whole one"
) -> Iterator[Any]:
    """Open a Parquet file (`pyarrow.parquet.ParquetFile`); raise `error` if it is not whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_parquet(path)
        with pq.ParquetFile(path.resolve()) as file:  # a name such as static:k=3 is no URI
            check_rows(file.metadata)
            yield file
    except UnreadableError as problem:
        raise error(f"{path}: {problem}; {remedy}") from problem
    except (OSError, pa.ArrowException, UnicodeDecodeError) as problem:
        why = getattr(problem, "strerror", None) or short(problem)
        raise error(f"{path}: cannot be read as Parquet: {why}; {remedy}") from problem


def parquet_table(path: Path, error: type[SpecsimError], remedy: str = "name a whole one") -> Any:
    """Return all of a Parquet file (`pyarrow.Table`); raise `error` if any value is broken.

    The reader believes what a file says of itself: text that is no UTF-8, or an index beyond a
    dictionary, would fail later, or end the process.
    """
    with opened_parquet(path, error, remedy) as file:
        table = file.read()
        for name, column in zip(table.column_names, table.columns, strict=True):
            _check_column(f"{path}: column '{name}'", column, error)
        return table


def _check_column(place: str, column: Any, error: type[SpecsimError]) -> None:
    import pyarrow as pa

    try:
        column.validate(full=True)
    except pa.ArrowInvalid as problem:
        if "UTF8" not in str(problem):
            raise
        raise error(
            f"{place} holds text that is not UTF-8; save it in UTF-8, or leave the column out"
        ) from problem


def _csv_rows(path: Path) -> Iterator[list[str]]:
    is_packed = path.suffix == ".gz"
    encoding = "utf-8" if is_packed else "utf-8-sig"
    with (gzip.open if is_packed else open)(path, "rt", encoding=encoding, newline="") as stream:
        yield from (row for row in csv_rows(stream) if row)


def _json_rows(path: Path) -> Iterator[list[str]]:
    """Take as columns what the first line has numbers for, also in mappings: ``outer.inner``."""
    names: list[str] = []
    with path.open(encoding="utf-8") as stream:
        for line, text in enumerate(lines(stream), start=1):
            try:
                row = parse_json(text)
            except ValueError as error:
                raise ProfileError(
                    f"{path}, line {line}: is not JSON; it may have been cut off: remove it"
                ) from error
            if not isinstance(row, dict):
                raise ProfileError(f"{path}, line {line}: must be a mapping of names to values")
            for name in [name for name in row if isinstance(row[name], dict)]:
                row |= {f"{name}.{inner}": value for inner, value in row[name].items()}
            if not names:
                names = [name for name in row if isinstance(row[name], int | float)]
                yield names
            yield [str(row.get(name, "")) for name in names]


def grid_of(columns: Sequence[Numbers], times: Numbers) -> tuple[list[Numbers], Numbers]:
    """Return axes and grid of measured times, NaN where nothing was measured.

    Args:
        columns: Coordinates, shape (rows,) each; the values that occur, rising, are the axes.
        times: Shape (rows,).
    """
    axes = [np.unique(column) for column in columns]
    values = np.full([len(axis) for axis in axes], np.nan)
    places = [np.searchsorted(axis, column) for axis, column in zip(axes, columns, strict=True)]
    values[tuple(places)] = times
    return axes, values
