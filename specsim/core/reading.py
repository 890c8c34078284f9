"""Reading: files from outside, with limits. Every loader of YAML, JSON, CSV and Parquet is here.

A file can be small and mean terabytes (aliases, exponents, compressed columns), or have no end at
all. What exceeds a limit is an error of one line, found before it costs time or memory.
"""

import csv
import gzip
import json
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import IO, Any

import yaml
from yaml.composer import Composer
from yaml.constructor import ConstructorError

from specsim.core.atomic import note_input
from specsim.core.errors import SpecsimError

MAX_TEXT_BYTES = 64 << 20  # largest YAML or JSON document that is read whole
MAX_DATA_BYTES = 4 << 30  # largest file of rows
MAX_ROWS = 100_000_000  # rows of a table, as many as a run may have requests
MAX_LINE = 64 << 20  # longest line of a file of rows, characters
MAX_DEPTH = 100  # deepest nesting of lists and mappings
MAX_NODES = 1_000_000  # values of a YAML document; each alias counts with all that it stands for
MAX_DIGITS = 400  # longest number in a text; a double has 309 digits before its point

_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, and ten times as fast
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_HALF = "holds half of a surrogate pair, which is no character; leave it out"
_TOO_DEEP = f"not JSON: nested more than {MAX_DEPTH} levels deep"
_PARQUET_MAGIC = b"PAR1"
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")


def number_in(text: str, kind: type[float] = float, *, is_share: bool = False) -> float | None:
    """Return a number as a person writes it, with thousands as in 1,000, and a share as 90 %, too.

    None where it is no number of that kind, which is ``float`` or ``int``.
    """
    plain = text.strip()
    if is_share and plain.endswith("%"):
        plain = f"{plain[:-1].rstrip()}e-2"
    try:
        value = kind(plain.replace(",", "") if _THOUSANDS.fullmatch(plain) else plain)
        return None if isnan(value) else value
    except (ValueError, OverflowError):
        return None


class UnreadableError(ValueError):
    """A text that is none of its kind, or exceeds a limit; says why, and on which line."""


@contextmanager
def readable(source: object, error: type[SpecsimError]) -> Iterator[None]:
    """Raise `error` in place of what says that a file, called `source`, cannot be read."""
    try:
        yield
    except OSError as problem:
        raise error(f"{source}: cannot be read: {problem.strerror}") from problem
    except UnreadableError as problem:
        raise error(f"{source}: {problem}") from problem


def check_file(path: Path, limit: int = MAX_DATA_BYTES) -> None:
    """Raise an UnreadableError unless a path is an ordinary file of at most so many bytes.

    An OSError if there is nothing.
    """
    status = path.stat()
    note_input(path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, os.strerror(21), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableError("is no ordinary file; name one")
    if status.st_size > limit:
        raise UnreadableError(
            f"has {status.st_size / 2**20:,.0f} MiB, more than the {limit / 2**20:,.0f} MiB that "
            "are read; split it, or name another file"
        )


def read_text(path: Path) -> str:
    """Return the text of a document; an UnreadableError if it is too large or not UTF-8.

    It is compressed if the path ends in ``.gz``.
    """
    check_file(path, MAX_TEXT_BYTES)
    try:
        if path.suffix != ".gz":
            return path.read_text(encoding="utf-8-sig")
        with gzip.open(path, "rt", encoding="utf-8-sig") as file:
            text = file.read(MAX_TEXT_BYTES + 1)
    except UnicodeDecodeError as problem:
        raise UnreadableError("is not a UTF-8 text file; save it in UTF-8") from problem
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise UnreadableError("is not gzip, or not all of it; compress it anew") from problem
    if len(text) > MAX_TEXT_BYTES:
        raise UnreadableError("holds more than the 64 MiB that are read; split it")
    return text


def parse_yaml(text: str, *, is_ours: bool = True) -> Any:
    """Return the value that a text in YAML holds; a yaml.YAMLError if it is none.

    Where it `is_ours`, 010 and 1:30 are none: whoever writes them does not mean 8 and 90.
    """
    try:
        return yaml.load(text, _Yaml if is_ours else _OthersYaml)
    except UnicodeEncodeError as problem:
        raise yaml.MarkedYAMLError(problem=_HALF) from problem


class _Yaml(_FASTEST, Composer):
    """As PyYAML's, with limits, but no value of it is a ValueError, and no key stands twice.

    Values are composed here, from the parser's events: libyaml's own composer recurses per level,
    and ends the process when its stack is full.
    """

    get_single_node = Composer.get_single_node

    def __init__(self, text: str) -> None:
        _FASTEST.__init__(self, text)
        Composer.__init__(self)
        self._depth = 0
        self._num_values = 0
        self._sizes: dict[str, int] = {}
        """Values that each anchor stands for, once they have been composed."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next value; a ConstructorError if it exceeds a limit."""
        event = self.peek_event()
        before = self._num_values
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refusal(f"nested more than {MAX_DEPTH} levels deep", event)
        if isinstance(event, yaml.AliasEvent) and event.anchor in self.anchors:
            if event.anchor not in self._sizes:
                raise _refusal(f"the alias '*{event.anchor}' holds itself", event)
            self._num_values += self._sizes[event.anchor]
        else:
            self._num_values += 1
        if self._num_values > MAX_NODES:
            raise _refusal(f"stands, with its aliases, for more than {MAX_NODES:,} values", event)
        node = Composer.compose_node(self, parent, index)
        self._depth -= 1
        if event.anchor is not None:
            self._sizes.setdefault(event.anchor, self._num_values - before)
        return node


class _OthersYaml(_Yaml):
    """Of another program, which says what numbers mean (``defaultMode: 0644``)."""


def _refusal(why: str, where: Any) -> ConstructorError:
    return ConstructorError(None, None, why, where.start_mark)


_OF_OTHER_BASE = re.compile(r"[-+]?0[0-7_]+$|[-+]?[0-9_.]+:[0-9_:.]+$")
"""Numbers to the base of 8 and of 60, as 010 and 1:30 are in YAML 1.1."""


def _scalar(kind: str) -> Any:
    construct = getattr(_FASTEST, f"construct_yaml_{kind}")

    def checked(loader: Any, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            what = f"is marked as {kind} and is none"
            raise ConstructorError(None, None, what, node.start_mark)
        if kind == "int" and len(node.value) > MAX_DIGITS:
            what = f"a number of {len(node.value):,} digits; at most {MAX_DIGITS} are read"
            raise ConstructorError(None, None, what, node.start_mark)
        try:
            value = construct(loader, node)
        except (ValueError, OverflowError, LookupError, AttributeError) as problem:
            what = f"{short(node.value)} is no {kind}: {problem}"
            raise ConstructorError(None, None, what, node.start_mark) from problem
        if _OF_OTHER_BASE.match(node.value) and not isinstance(loader, _OthersYaml):
            what = f"{node.value} is {value} in YAML 1.1; write the number that is meant, or a text"
            raise ConstructorError(None, None, what, node.start_mark)
        return value

    return checked


def _mapping(loader: Any, node: yaml.MappingNode) -> Any:
    if not isinstance(node, yaml.MappingNode):
        raise ConstructorError(None, None, "is marked as map and is none", node.start_mark)
    seen: set[str] = set()
    for key, _ in node.value:
        if key.tag == "tag:yaml.org,2002:binary" or not isinstance(key, yaml.ScalarNode):
            problem = "a key must be a text; write one"
            raise ConstructorError(None, None, problem, key.start_mark)
        if key.value in seen:
            problem = f"the key '{key.value:.60}' stands here twice; leave one"
            raise ConstructorError(None, None, problem, key.start_mark)
        seen.add(str(key.value))
    return loader.construct_yaml_map(node)


def _refused(loader: Any, node: yaml.Node) -> Any:
    kind = str(node.tag).rpartition(":")[2]
    raise ConstructorError(
        None, None, f"a value of the kind {kind} is of no use here; write text", node.start_mark
    )


_Yaml.add_constructor("tag:yaml.org,2002:map", _mapping)
for _kind in ("int", "float", "timestamp", "bool"):
    _Yaml.add_constructor(f"tag:yaml.org,2002:{_kind}", _scalar(_kind))
for _kind in ("binary", "set", "omap", "pairs"):
    _Yaml.add_constructor(f"tag:yaml.org,2002:{_kind}", _refused)


def parse_json(text: str | bytes, *, is_line: bool = False) -> Any:
    """Return the value that a text in JSON holds; an UnreadableError if it is none.

    Args:
        is_line: Whether it is one line of many, so that the caller knows which.
    """
    if not text.strip():
        raise UnreadableError("is empty")
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = json.loads(text)
        if _HALF_PAIR.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as problem:
        place = "" if is_line else f"line {problem.lineno}: "
        raise UnreadableError(f"{place}not JSON: {problem.msg}") from problem
    except UnicodeDecodeError as problem:
        raise UnreadableError("is not a UTF-8 text; save it in UTF-8") from problem
    except UnicodeEncodeError as problem:
        raise UnreadableError(f"not JSON: {_HALF}") from problem
    except RecursionError as problem:
        raise UnreadableError(_TOO_DEEP) from problem
    except ValueError as problem:  # of the number of digits
        raise UnreadableError("not JSON: a number in it has too many digits") from problem
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inside for each in values if isinstance(each, dict | list)]
        if not level:
            return
    raise UnreadableError(_TOO_DEEP)


def csv_rows(stream: IO[str]) -> Iterator[list[str]]:
    """Yield the rows of a CSV file; a csv.Error where a row or field is too long."""
    return csv.reader(lines(stream))


def lines(stream: IO[str]) -> Iterator[str]:
    """Yield the lines of a stream; an UnreadableError at one that has no end."""
    while line := stream.readline(MAX_LINE):
        if len(line) >= MAX_LINE:
            raise UnreadableError(f"a line is longer than {MAX_LINE:,} characters")
        yield line


def check_parquet(path: Path) -> None:
    """Raise an UnreadableError unless a Parquet file begins and ends as one.

    The reader trusts the length that the footer states, and can end the process over a wrong one.
    """
    check_file(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(max(0, size - 8))
        tail = file.read(8)
    if size < 12 or head != _PARQUET_MAGIC or tail[4:] != _PARQUET_MAGIC:
        raise UnreadableError("is not a complete Parquet file")
    (length,) = struct.unpack("<I", tail[:4])
    if not 0 < length <= size - 12:
        raise UnreadableError("is not a complete Parquet file: its footer is broken")


def check_rows(metadata: Any) -> None:
    """Raise an UnreadableError if a Parquet file's columns would take too much memory."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    if not 0 <= size <= MAX_DATA_BYTES or metadata.num_rows > MAX_ROWS:
        raise UnreadableError(
            f"holds {metadata.num_rows:,} rows of {size / 2**20:,.0f} MiB; at most {MAX_ROWS:,} "
            f"rows of {MAX_DATA_BYTES / 2**20:,.0f} MiB are read; split it"
        )


def short(value: object) -> str:
    """Return a value in at most 60 characters, on one line."""
    try:
        text = " ".join(repr(value).split())  # that of an array has lines
    except ValueError:  # an integer of more digits than Python prints
        text = f"a {type(value).__name__} too long to print"
    return text if len(text) <= 60 else text[:57] + "..."
