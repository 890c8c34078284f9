"""Reading: files from outside, with limits. Every loader of YAML, JSON, CSV and Parquet is here.

A file can be small and mean terabytes (aliases, exponents, compressed columns), or have no end at
all. What exceeds a limit is an error of one line, found before it costs time or memory.
"""

import csv
import json
import os
import re
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import yaml
from yaml.constructor import ConstructorError

from specsim.core.atomic import note_input

MAX_TEXT_BYTES = 64 << 20  # largest YAML or JSON document that is read whole
MAX_DATA_BYTES = 4 << 30  # largest file of rows
MAX_ROWS = 100_000_000  # rows of a table, as many as a run may have requests
MAX_LINE = 64 << 20  # longest line of a file of rows, characters
MAX_DEPTH = 100  # deepest nesting of lists and mappings
MAX_NODES = 5_000_000  # values of a YAML document; each alias counts with all that it stands for
MAX_DIGITS = 400  # longest number in a text; a double has 309 digits before its point

_FASTEST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, and ten times as fast
_YAML: Any = type("_Yaml", (_FASTEST,), {})
"""As PyYAML's, but no value of it is a ValueError, and no key stands twice."""
_ALIAS = re.compile(r"(?:^|[\s\[{,:-])\*\w", re.MULTILINE)
_NESTED = re.compile(rf"(?:[\[{{]\s*(?:\"[^\"]*\"\s*:\s*)?){{{MAX_DEPTH + 1}}}")
_PARQUET_MAGIC = b"PAR1"


class UnreadableError(ValueError):
    """A text that is none of its kind, or exceeds a limit; says why, and on which line."""


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
    """Return the text of a document; an UnreadableError if it is too large or not UTF-8."""
    check_file(path, MAX_TEXT_BYTES)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as problem:
        raise UnreadableError("is not a UTF-8 text file") from problem


def parse_yaml(text: str) -> Any:
    """Return the value that a text in YAML holds; a yaml.YAMLError if it is none."""
    _check_events(text)
    try:
        return yaml.load(text, _YAML)
    except RecursionError as problem:
        raise yaml.YAMLError("a value holds itself, or is nested too deeply") from problem


def _check_events(text: str) -> None:
    """Raise a YAMLError for a text that is nested too deeply, or whose aliases stand for too much.

    libyaml's own composer recurses per level, and ends the process when its stack is full.
    """
    if _ALIAS.search(text) or max(_flow_depth(text), _deepest_indent(text)) > MAX_DEPTH:
        _check(yaml.parse(text, _YAML))


def _flow_depth(text: str) -> int:
    """Return a bound on the levels of flow style; brackets may also stand in texts and comments."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for line in text.splitlines():
        opened = line.count("[") + line.count("{")
        deepest = max(deepest, depth + opened)
        is_plain = not ({"#", "'", '"'} & {*line})
        depth = max(0, depth + opened - (line.count("]") + line.count("}") if is_plain else 0))
    return deepest


def _deepest_indent(text: str) -> int:
    """Return a bound on the levels of block style: blanks and dashes before the first word."""
    return max((len(line) - len(line.lstrip(" -?:\t")) for line in text.splitlines()), default=0)


def _check(events: Iterator[Any]) -> None:
    sizes: dict[str | None, int] = {}
    total = 0
    open_nodes: list[
        tuple[str | None, int]
    ] = []  # the anchor of each, and the total where it begins
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                raise _refusal(f"the alias '*{event.anchor}' holds itself", event)
            total += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes[anchor] = total - before
        elif isinstance(event, yaml.NodeEvent):
            total += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, total - 1))
        if len(open_nodes) > MAX_DEPTH:
            raise _refusal(f"nested more than {MAX_DEPTH} levels deep", event)
        if total > MAX_NODES:
            raise _refusal(f"its aliases stand for more than {MAX_NODES:,} values", event)


def _refusal(why: str, where: Any) -> ConstructorError:
    return ConstructorError(None, None, why, where.start_mark)


def _scalar(kind: str) -> Any:
    construct = getattr(_FASTEST, f"construct_yaml_{kind}")

    def checked(loader: Any, node: yaml.ScalarNode) -> Any:
        if kind == "int" and len(node.value) > MAX_DIGITS:
            what = f"a number of {len(node.value):,} digits; at most {MAX_DIGITS} are read"
            raise ConstructorError(None, None, what, node.start_mark)
        try:
            return construct(loader, node)
        except (ValueError, OverflowError, RecursionError, AttributeError) as problem:
            what = f"{short(node.value)} is no {kind}: {problem}"
            raise ConstructorError(None, None, what, node.start_mark) from problem

    return checked


def _mapping(loader: Any, node: yaml.MappingNode) -> Any:
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


_YAML.add_constructor("tag:yaml.org,2002:map", _mapping)
for _kind in ("int", "float", "timestamp", "bool"):
    _YAML.add_constructor(f"tag:yaml.org,2002:{_kind}", _scalar(_kind))
for _kind in ("binary", "set", "omap", "pairs"):
    _YAML.add_constructor(f"tag:yaml.org,2002:{_kind}", _refused)


def parse_json(text: str) -> Any:
    """Return the value that a text in JSON holds; an UnreadableError if it is none."""
    if _NESTED.search(text):
        raise UnreadableError(f"not JSON: nested more than {MAX_DEPTH} levels deep")
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise UnreadableError(f"line {problem.lineno}: not JSON: {problem.msg}") from problem
    except RecursionError as problem:
        raise UnreadableError("not JSON: nested too deeply") from problem
    except ValueError as problem:  # of the number of digits
        raise UnreadableError("not JSON: a number in it has too many digits") from problem


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
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"a {type(value).__name__} too long to print"
    return text if len(text) <= 60 else text[:57] + "..."
