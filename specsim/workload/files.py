"""Opening a workload file: gzip or not, CSV, JSON lines, JSON or Parquet, found by content."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, Literal

from specsim.core.errors import TraceError

__all__ = ["Row", "TraceFile"]

_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_MAGIC = b"PAR1"
_ENCODING = "utf-8-sig"  # UTF-8, with or without the mark that Windows puts before it
_BROKEN = (OSError, EOFError, UnicodeDecodeError, zlib.error)
"""What reading raises of a file that is cut off, or not what it claims to be."""
_TOO_LARGE = "a number in it has too many digits, or it is nested too deeply; correct or remove it"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file, with the place it came from for error messages."""

    place: str
    """Such as ``trace.csv, line 7``."""
    values: dict[str, Any]

    def integer(self, field: str, *, minimum: int) -> int:
        """Return a field that must be a whole number.

        Raises:
            TraceError: It is missing, not a whole number, or below the minimum.
        """
        value = self.number(field)
        if value != int(value) or value < minimum:
            raise TraceError(
                f"{self.place}: {field} = {self.values[field]!r} must be a whole number of at "
                f"least {minimum}; correct or remove the row"
            )
        return int(value)

    def number(self, field: str) -> float:
        """Return a field that must be a finite number.

        Raises:
            TraceError: It is missing or not a finite number.
        """
        value = self.get(field)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not abs(number) < float("inf"):
            raise TraceError(
                f"{self.place}: {field} = {value!r} is not a finite number; correct or remove "
                "the row"
            )
        return number

    def get(self, field: str) -> Any:
        """Return a field that must be there.

        Raises:
            TraceError: It is missing.
        """
        value = self.values.get(field)
        if value is None:
            raise TraceError(
                f"{self.place}: no value for '{field}' (found: "
                f"{', '.join(map(str, self.values)) or 'nothing'})"
            )
        return value


class TraceFile:
    """A workload file, opened as often as needed.

    Raises:
        TraceError: It cannot be read, or is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream:
                self._magic = stream.read(4)
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
        if not self._magic:
            raise TraceError(f"{path}: is empty; a workload has at least one request")

    def _open(self) -> IO[str]:
        if self._magic.startswith(_GZIP_MAGIC):
            return TextIOWrapper(gzip.open(self.path), encoding=_ENCODING, newline="")
        return self.path.open(encoding=_ENCODING, newline="")

    @cached_property
    def container(self) -> Literal["parquet", "csv", "jsonl", "json"]:
        """How rows are written, judged by the content."""
        if self._magic == _PARQUET_MAGIC:
            return "parquet"
        first = self._first_line()
        if first.startswith("["):
            return "json"
        if first.startswith("{"):
            return "jsonl" if _is_json(first) else "json"
        return "csv"

    def _first_line(self) -> str:
        try:
            with self._open() as stream:
                return next((line.strip() for line in stream if line.strip()), "")
        except _BROKEN as error:
            raise TraceError(f"{self.path}: is neither text, gzip nor Parquet: {error}") from error

    @cached_property
    def columns(self) -> list[str]:
        """Names of the first row's fields; empty if there is no row."""
        if self.container == "parquet":
            return self._parquet_columns()
        if self.container == "json":
            document = self.document
            first = document[0] if isinstance(document, list) and document else document
            return list(first) if isinstance(first, dict) else []
        first_row = next(self.rows(), None)
        return list(first_row.values) if first_row else []

    def _parquet_columns(self) -> list[str]:
        import pyarrow as pa  # noqa: PLC0415 - pyarrow takes 30 MiB
        import pyarrow.parquet as pq  # noqa: PLC0415

        try:
            return list(pq.read_schema(self.path).names)
        except (OSError, pa.ArrowInvalid) as error:
            raise TraceError(f"{self.path}: is not a complete Parquet file") from error

    @cached_property
    def document(self) -> Any:
        """The whole of a JSON file."""
        try:
            with self._open() as stream:
                return json.load(stream)
        except json.JSONDecodeError as error:
            raise TraceError(f"{self.path}, line {error.lineno}: not JSON: {error.msg}") from error
        except _BROKEN as error:
            raise TraceError(f"{self.path}: ends or breaks in the middle: {error}") from error
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{self.path}: {_TOO_LARGE}") from error

    def rows(self) -> Iterator[Row]:
        """Yield the rows of a CSV or JSON-lines file.

        Raises:
            TraceError: A line cannot be parsed.
        """
        try:
            with self._open() as stream:
                parse = self._csv_rows if self.container == "csv" else self._json_rows
                yield from parse(stream)
        except _BROKEN as error:
            raise TraceError(f"{self.path}: ends or breaks in the middle: {error}") from error

    def _csv_rows(self, stream: IO[str]) -> Iterator[Row]:
        reader = csv.DictReader(stream, restval=None)
        for values in reader:
            values.pop(None, None)
            yield Row(f"{self.path}, line {reader.line_num}", values)

    def _json_rows(self, stream: IO[str]) -> Iterator[Row]:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            place = f"{self.path}, line {number}"
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                raise TraceError(
                    f"{place}: not JSON: {error.msg}; the line may have been cut off"
                ) from error
            except (ValueError, RecursionError) as error:
                raise TraceError(f"{place}: {_TOO_LARGE}") from error
            if not isinstance(values, dict):
                raise TraceError(f"{place}: holds a {type(values).__name__}, not an object")
            yield Row(place, values)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):  # the line will be read again, by who can say where it is
        return True
    return True
