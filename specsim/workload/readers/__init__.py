"""Readers: opening workload files, gzipped or not, recognising their format, reading them."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import TextIOWrapper
from math import isfinite
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.blame import blamed, held_to
from specsim.core.columns import opened_parquet, parquet_table
from specsim.core.errors import TraceError, UnknownFormatError
from specsim.core.families import Family, Member
from specsim.core.reading import (
    MAX_DATA_BYTES,
    UnreadableError,
    check_file,
    lines,
    number_in,
    parse_json,
    readable,
    short,
)
from specsim.core.resources import locate
from specsim.core.surroundings import working_folder
from specsim.workload.trace import Trace, TraceBuilder

_ENCODING = "utf-8-sig"  # UTF-8, with or without the byte order mark of Windows
_BROKEN = (OSError, EOFError, UnicodeDecodeError, UnreadableError, zlib.error, csv.Error)
"""Errors of reading a file that is cut off or damaged."""
_PACKED = {
    b"BZh": "compressed by bzip2",
    b"\xfd7zX": "compressed by xz",
    b"(\xb5/\xfd": "compressed by zstd",
    b"PK\x03\x04": "a zip archive, as sheets of Excel are",
}


def _why(error: Exception) -> str:
    return f"{error}; save it in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file, with its place for error messages."""

    place: str  # such as ``trace.csv, line 7``
    values: dict[str, Any]

    def integer(self, field: str, *, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
        """Return a field; a TraceError unless it is a whole number in [minimum, maximum]."""
        value = self.number(field, has_thousands=True)
        if value != int(value) or not minimum <= value <= maximum:
            most = "2**31 - 1" if maximum == 2**31 - 1 else maximum
            raise TraceError(
                f"{self.place}: {field} = {short(self.values[field])} must be a whole number from "
                f"{minimum} to {most}; correct or remove the row"
            )
        return int(value)

    def number(self, field: str, *, has_thousands: bool = False) -> float:
        """Return a field; a TraceError unless it is a finite number.

        Args:
            has_thousands: Whether 1,500 means 1500; otherwise the comma may be a decimal one, and
                is refused.
        """
        value = self.get(field)
        try:
            number = float("nan" if isinstance(value, bool) else value)
        except (TypeError, ValueError, OverflowError):
            known = number_in(value) if has_thousands and isinstance(value, str) else None
            number = float("nan") if known is None else known
        if not abs(number) < float("inf"):
            raise TraceError(
                f"{self.place}: {field} = {short(value)} is not a finite number; correct or remove "
                "the row"
            )
        return number

    def get(self, field: str) -> Any:
        """Return a field; a TraceError unless it is there."""
        value = self.values.get(field)
        if value is None:
            found = [str(name) for name, value in self.values.items() if value is not None]
            raise TraceError(
                f"{self.place}: no value for '{field}' (found: {', '.join(found) or 'nothing'})"
            )
        return value

    def label(self, field: str) -> str | int | float | None:
        """Return an identifier; a TraceError unless it is text, a number or None."""
        value = self.values.get(field)
        is_finite = isinstance(value, str | int) or (isinstance(value, float) and isfinite(value))
        if value is not None and not is_finite:
            raise TraceError(
                f"{self.place}: {field} = {short(value)} must be text or a number; correct or "
                "remove the row"
            )
        return value

    def hash_ids(self, field: str) -> tuple[int, ...]:
        """Return a field; a TraceError unless it is a list of whole numbers or texts."""
        values = self.get(field)
        if not isinstance(values, list):
            raise TraceError(f"{self.place}: {field} is not a list of ids; correct or remove it")
        for place, value in enumerate(values):
            if type(value) not in (int, str):
                raise TraceError(
                    f"{self.place}: {field}[{place}] = {short(value)}, but an id is a whole number "
                    "or a text; correct or remove the row"
                )
        return tuple(values)

    def token_ids(self, field: str) -> NDArray[np.int64]:
        """Return a field; a TraceError unless it is a list of whole numbers in [0, 2**31)."""
        values = self.get(field)
        rule = "whole numbers from 0 to 2**31 - 1; correct or remove the row"
        if not isinstance(values, list):
            raise TraceError(f"{self.place}: {field} is not a list of token ids, {rule}")
        for place, value in enumerate(values):
            if type(value) is not int or not 0 <= value < 2**31:
                raise TraceError(
                    f"{self.place}: {field}[{place}] = {short(value)}, but token ids are {rule}"
                )
        return np.array(values, dtype=np.int64)


class TraceFile:
    """A workload file, read as often as needed; a TraceError if it is empty or unreadable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: dict[str, None] | None = None  # of all JSON fields, once they are read
        with readable(path, TraceError):
            check_file(path)
            with path.open("rb") as stream:
                self._magic = stream.read(4)
        if not self._magic:
            raise TraceError(f"{path}: is empty; a workload has at least one request")
        for magic, name in _PACKED.items():
            if self._magic.startswith(magic):
                raise TraceError(
                    f"{path}: is {name}, which is not read; save it as CSV, compressed by gzip or "
                    "not at all"
                )

    def _open(self) -> IO[str]:
        if self._magic.startswith(b"\x1f\x8b"):  # gzip
            return TextIOWrapper(gzip.open(self.path), encoding=_ENCODING, newline="")
        return self.path.open(encoding=_ENCODING, newline="")

    @cached_property
    def container(self) -> Literal["parquet", "csv", "jsonl", "json"]:
        """The format of the rows, judged by the content."""
        if self._magic == b"PAR1":
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
                return next((line.strip() for line in lines(stream) if line.strip()), "")
        except _BROKEN as error:
            raise TraceError(
                f"{self.path}: is neither text, gzip nor Parquet: {_why(error)}"
            ) from error

    @cached_property
    def columns(self) -> list[str]:
        """Names of the first row's fields; empty if there is no row."""
        if self.container == "parquet":
            with opened_parquet(self.path, TraceError) as file:
                return list(file.schema_arrow.names)
        if self.container == "json":
            document = self.document
            first = document[0] if isinstance(document, list) and document else document
            return list(first) if isinstance(first, dict) else []
        first_row = next(self.rows(), None)
        return list(first_row.values) if first_row else []

    @property
    def all_columns(self) -> list[str]:
        """Names of the fields that any row has; rows of JSON may differ."""
        if self.container in ("parquet", "csv") or not self.columns:
            return self.columns
        if self._names is None:  # unless all rows were read before
            for _ in self.objects("entry"):
                pass
        return list(self._names or ())

    @cached_property
    def time_columns(self) -> frozenset[str]:
        """Names of the Parquet columns with a time type, which rows give in seconds."""
        if self.container != "parquet":
            return frozenset()
        with opened_parquet(self.path, TraceError) as file:
            fields = [*file.schema_arrow]
        return frozenset(each.name for each in fields if str(each.type).startswith(_TIMES))

    @cached_property
    def document(self) -> Any:
        """The content of a JSON file."""
        try:
            with self._open() as stream:
                text = stream.read(MAX_DATA_BYTES)
        except _BROKEN as error:
            raise TraceError(f"{self.path}: ends or breaks in the middle: {_why(error)}") from error
        try:
            return parse_json(text)
        except UnreadableError as error:
            raise TraceError(f"{self.path}: {error}; correct or remove it") from error

    def rows(self) -> Iterator[Row]:
        """Yield the rows of any file but a JSON document; a TraceError if a row is broken."""
        if self.container == "parquet":
            yield from self._parquet_rows()
            return
        try:
            with self._open() as stream:
                is_csv = self.container == "csv"
                yield from (
                    self._csv_rows(stream) if is_csv else self._naming(self._json_rows(stream))
                )
        except _BROKEN as error:
            raise TraceError(f"{self.path}: ends or breaks in the middle: {_why(error)}") from error

    def objects(self, called: str) -> Iterator[Row]:
        """Yield the objects of JSON lines or of a JSON document; `called` names them in errors."""
        if self.container == "jsonl":
            yield from self.rows()
            return
        documents = self.document if isinstance(self.document, list) else [self.document]
        yield from self._naming(
            _object(f"{self.path}, {called} {number}", document)
            for number, document in enumerate(documents)
        )

    def _naming(self, rows: Iterator[Row]) -> Iterator[Row]:
        names: dict[str, None] = {}
        for row in rows:
            if not row.values.keys() <= names.keys():
                names |= dict.fromkeys(row.values)
            yield row
        self._names = names

    def _parquet_rows(self) -> Iterator[Row]:
        table = parquet_table(self.path, TraceError)
        columns = [_values(column) for column in table.columns]
        for number, values in enumerate(zip(*columns, strict=True)):
            row = dict(zip(table.column_names, values, strict=True))
            yield Row(f"{self.path}, row {number}", row)

    def _csv_rows(self, stream: IO[str]) -> Iterator[Row]:
        reader = csv.DictReader(lines(stream), restval=None, delimiter=self._delimiter)
        names = [name for name in reader.fieldnames or () if name]
        if len({*names}) < len(names):
            name = next(name for name in names if names.count(name) > 1)
            raise TraceError(
                f"{self.path}: several columns are called {name!r}; leave one, or rename them"
            )
        for values in reader:
            place = f"{self.path}, line {reader.line_num}"
            if any(values.pop(None, ())) and len(values) > 1:  # otherwise it is no table
                raise TraceError(
                    f"{place}: more values than the {len(values)} columns; quote what holds a "
                    f"{self._delimiter!r}, or remove the row"
                )
            yield Row(place, values)

    @property
    def _delimiter(self) -> str:
        """The most frequent of comma, semicolon, tab and bar in the first line."""
        return max(",;\t|", key=self._first_line().count)

    def _json_rows(self, stream: IO[str]) -> Iterator[Row]:
        for number, line in enumerate(lines(stream), start=1):
            if not line.strip():
                continue
            place = f"{self.path}, line {number}"
            try:
                values = parse_json(line, is_line=True)
            except UnreadableError as error:
                raise TraceError(
                    f"{place}: {error}; the line may have been cut off: correct or remove it"
                ) from error
            yield _object(place, values)


_TIMES = ("timestamp", "duration")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _values(column: Any) -> list[Any]:
    """Return the values of a Parquet column; times as seconds, dates as seconds since 1970.

    Bytes are read as text, since some programs write Parquet so.
    """
    if not str(column.type).startswith(_TIMES):
        values: list[Any] = column.to_pylist()
        return [n.decode(errors="backslashreplace") if isinstance(n, bytes) else n for n in values]
    seconds = _SECONDS[column.type.unit]
    return [n if n is None else n * seconds for n in column.cast("int64").to_pylist()]


def _object(place: str, values: Any) -> Row:
    if not isinstance(values, dict):
        raise TraceError(f"{place}: holds a {type(values).__name__}, not an object")
    named = {name: own for name, own in _usage(values).items() if name not in values}
    return Row(place, values | named if named else values)  # `usage` stays, for its readers


_DEEPEST = 3  # response.body.usage, of OpenAI's batches


def _usage(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ``usage``, as in answers of OpenAI's API, by path.

    Of several at different depths, the outermost ones count.
    """
    objects = [("", values)]
    for _ in range(_DEEPEST):
        said = [(path, each["usage"]) for path, each in objects if "usage" in each]
        said = [(path, usage) for path, usage in said if isinstance(usage, dict)]
        if said:
            return {f"{path}usage.{name}": own for path, each in said for name, own in each.items()}
        objects = [
            (f"{path}{name}.", own)
            for path, each in objects
            for name, own in each.items()
            if isinstance(own, dict)
        ]
    return {}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):  # the row's reader reports the line
        pass
    return True


TEXT = frozenset({"prompt", "messages", "conversations"})
"""Fields of text logs, which `specsim.tokens` converts to token traces."""


class Reader(Member):
    """One trace format."""

    kind: str
    containers: ClassVar[tuple[str, ...]] = ()
    """Containers of its files (`TraceFile.container`)."""
    columns: ClassVar[frozenset[str]] = frozenset()
    """Columns that every file of the format has."""

    def matches(self, file: TraceFile) -> bool:
        """Return whether the file is of this format, whatever its name."""
        return file.container in self.containers and self.columns <= set(file.columns)

    def read(self, file: TraceFile) -> Trace:
        """Return the workload in a file that `matches`, in order of arrival.

        Raises a TraceError with file, line, field, value and rule if a row is wrong.
        """
        builder = TraceBuilder(file.path, self.kind)
        for row in file.rows():
            self.add(row, builder)
        return builder.build()

    def add(self, row: Row, builder: TraceBuilder) -> None:
        """Add the content of a row; unused by formats without rows, which override `read`."""
        raise NotImplementedError("write add, or read")


READERS = Family("workload.readers", Reader)
_BY_NAMES = "columns"  # reader of files that no other format matches


@blamed()
def read_trace(path: Path | str, reader: str | None = None) -> Trace:
    """Return the workload in a file of any known format, gzip-compressed or not.

    Raises a TraceError if the file is missing, empty, of no known format, or breaks its rules.

    Args:
        reader: Name of a reader, or of a user's class (``my_parts:Gateway``); by default the first
            that matches.
    """
    file = TraceFile(locate(Path(path)))
    kinds = sorted(READERS.all_members(), key=lambda kind: kind == _BY_NAMES)
    if reader is not None:
        kinds = [reader]
    for kind in kinds:
        member = READERS.parse(kind)
        if member.matches(file):
            trace = member.read(file)
            held_to(member, "read", trace, isinstance(trace, Trace), "a Trace")
            return trace
    if not file.columns:
        raise TraceError(f"{path}: has no row; a trace holds a request at least")
    columns = ", ".join(file.columns)
    if reader is not None:
        raise TraceError(f"{path}: no file of reader '{reader}'; it has these columns: {columns}")
    if TEXT.intersection(file.columns) and not _holds_numbers(file):
        raise TraceError(
            f"{path}: holds text (columns: {columns}), no lengths and no token ids; `specsim "
            "tokens from-text` makes a token trace of it"
        )
    raise UnknownFormatError(
        f"{path}: no known format has these columns: {columns}; name the columns of a table, "
        "of which a row is a request, prompt_len, output_len and, if known, arrival_time "
        "(`specsim list` shows all readers)"
    )


def _holds_numbers(file: TraceFile) -> bool:
    """Whether a field with the name of a text, such as ``prompt``, is a number in the first row."""
    first = {} if file.container == "json" else next(file.rows()).values
    return all(str(first.get(name, 0)).strip().isdecimal() for name in TEXT)


def read_named(path: Path, field: str) -> Trace:
    """Return the workload in the file that a field of an experiment names.

    Raises a TraceError that names the field if there is no such file.
    """
    if not locate(path).exists():
        raise TraceError(
            f"{field} = {path}: there is no such file, neither beside the experiment nor in "
            f"{working_folder()}; correct the path"
        )
    kept, trace = _facts(path), read_trace(path)
    kept[:] = [FileFacts.of(trace)]
    return trace


class FileFacts(NamedTuple):
    """Facts about a file besides its rows."""

    rows: int
    sessions: int
    in_sessions: bool
    note: str

    @classmethod
    def of(cls, trace: Trace) -> "FileFacts":
        return cls(len(trace), trace.num_sessions, trace.sessions is not None, trace.note)


def facts_of(path: Path, field: str) -> FileFacts:
    """Return the facts about the file that a field of an experiment names.

    The file is read only if it changed since the last time. Raises a TraceError as `read_named`
    does.
    """
    return (_facts(path) or [FileFacts.of(read_named(path, field))])[0]


def _facts(path: Path) -> list[FileFacts]:
    """Return the list in which a file's facts are cached until it changes."""
    try:
        told = locate(path).stat()
    except OSError:  # reported like any other unreadable file
        return []
    return _kept(path, (told.st_dev, told.st_ino, told.st_mtime_ns, told.st_size))


@lru_cache(maxsize=64)
def _kept(path: Path, version: tuple[int, ...]) -> list[FileFacts]:
    return []
