"""Marks: what an output bears, so that a later command knows that specsim wrote it.

A mark is the version of specsim, where the form of a file has a place for it: a field of a JSON
object (of the first one of JSON lines), a comment of YAML, of scripts and of Prometheus' text, a
comment of HTML, SVG, XML and PDF, a text of a PNG, a column or a key of a Parquet file; packed by
gzip or not. CSV has none. Files are read as what they are: that one holds these words says nothing.
"""

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from specsim.core.version import __version__

MARK = "specsim_version"
PICTURE_MARK = f"{MARK}: {__version__}"
"""What PNG and PDF files have as the program that made them."""
_HEAD = 1 << 16  # bytes in which the mark stands, but for that of a PDF
_MOST_PDF = 64 << 20  # bytes of a PDF that are looked into
_COMMENT = re.compile(rb"# specsim_version: \S+")
_TAG = re.compile(rb"<!-- specsim_version: \S+ -->")
_NAME = re.compile(r'[{,]\s*"((?:[^"\\]|\\.)*)"\s*:\s*')
_VALUE_END = re.compile(r"\s*(?=[,}])")
_PNG = re.compile(rb"\x89PNG\r\n\x1a\n.{25}.{4}tEXtSoftware\0specsim_version: ", re.S)
_PDF = re.compile(rb"\n(?:<<[^<>]*/Creator \(|%)specsim_version: [^()\n]+[)\n]")


def is_marked(path: Path) -> bool:
    """Return whether specsim wrote a file."""
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return _is_marked_table(path)
        file.seek(0)
        if file.read(2) != b"\x1f\x8b":
            return _is_marked_text(file)
        file.seek(0)
        try:
            with gzip.open(file) as unpacked:
                return _is_marked_text(cast("IO[bytes]", unpacked))
        except (OSError, EOFError):
            return False


def mark(path: Path) -> None:
    """Give a file that specsim has just written its mark, if it has none and a place for it."""
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    with (gzip.open if is_packed else open)(path, "rb") as file:
        head = file.read(_HEAD)
    place, text = _place(head)
    if not text or is_marked(path):
        return
    marked = path.with_name(f"{path.name}.marked")
    try:
        with (gzip.open if is_packed else open)(path, "rb") as old, marked.open("wb") as plain:
            new: Any = gzip.GzipFile("", "wb", fileobj=plain, mtime=0) if is_packed else plain
            new.write(old.read(place) + text)
            shutil.copyfileobj(old, new)
            if new is not plain:
                new.close()
        shutil.copyfile(marked, path)  # the file remains the one that is locked
    finally:
        marked.unlink(missing_ok=True)


def _place(head: bytes) -> tuple[int, bytes]:
    """Return where in a file its mark goes, and the mark; empty where there is no place."""
    first = head.partition(b"\n")[0]
    if head.startswith(b"{"):
        begin, end = (b"\n ", b",") if head[1:2] == b"\n" else (b"", b", ")
        return 1, begin + f'"{MARK}": "{__version__}"'.encode() + end
    if head.startswith(b"<"):
        return len(first) + 1, f"<!-- {MARK}: {__version__} -->\n".encode()
    comment = f"# {MARK}: {__version__}\n".encode()
    if head.startswith(b"#!"):
        return len(first) + 1, comment
    is_yaml = re.match(rb"[\w.-]+:(\s|$)", first) is not None
    return 0, comment if is_yaml or head.startswith(b"#") else b""


def _is_marked_table(path: Path) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - pyarrow takes 30 MiB
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException):
        return False
    return MARK in schema.names or MARK.encode() in (schema.metadata or {})


def _is_marked_text(file: IO[bytes]) -> bool:
    file.seek(0)
    head = file.read(_HEAD)
    if head.startswith(b"{"):
        return _is_marked_json(head.decode(errors="replace"))
    if head.startswith(b"%PDF"):
        return _PDF.search(head + file.read(_MOST_PDF)) is not None
    if head.startswith(b"\x89PNG"):
        return _PNG.match(head) is not None
    rule = _TAG if head.startswith(b"<") else _COMMENT
    return any(rule.fullmatch(line.rstrip(b"\r")) for line in head.split(b"\n", 2)[:2])


def _is_marked_json(head: str) -> bool:
    """Return whether a JSON object has a mark where specsim writes it."""
    for name, value in _fields(head):
        # Fields of summary.json are vLLM's, but for one that has ours.
        own = value.get(MARK) if name == "specsim" and isinstance(value, dict) else None
        if isinstance(value if name == MARK else own, str):
            return True
    return False


def _fields(head: str) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a JSON object that the beginning of its text has as a whole.

    All of a summary with its lists per request would take 250 MiB, and half as long as the run.
    """
    decode, place = json.JSONDecoder().raw_decode, 0
    while name := _NAME.match(head, place):
        try:
            value, place = decode(head, name.end())
        except (ValueError, RecursionError):
            return
        if (end := _VALUE_END.match(head, place)) is None:
            return
        place = end.end()
        yield name[1], value
