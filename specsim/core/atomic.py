"""Files that appear whole or not at all, and replace only what specsim wrote: that bears its mark.

A mark is the version of specsim, where the form of a file has a place for it: a field of a JSON
object (of the first one of JSON lines), a comment of YAML, of scripts and of Prometheus' text, a
comment of HTML, SVG, XML and PDF, a text of a PNG, a column or a key of a Parquet file; packed by
gzip or not. CSV has none. Files are read as what they are: that one holds these words says nothing.
"""

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from gzip import GzipFile
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Any, BinaryIO, ClassVar, cast

from specsim.core.errors import ConfigError
from specsim.core.surroundings import WORKING_FOLDER_GONE, is_on, working_folder
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
    import pyarrow as pa
    import pyarrow.parquet as pq

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


FORCES = "SPECSIM_FORCE"
"""Environment variable that lets outputs replace any file but inputs, as ``specsim --force``."""
_NOT_OURS = "was not written by specsim and would be lost"
_UNFINISHED = re.compile(r"\.unfinished-[a-z0-9_]{8}")


class _Inputs:
    """Files that the command at hand has read; a program that is no command replaces any."""

    paths: set[Path] | None = None
    own: ClassVar[set[Path]] = set()  # files that it has written itself before it read them


def track_inputs() -> None:
    """Begin a command: remember which files it reads."""
    _Inputs.paths = set()
    _Inputs.own = set()


def note_input(path: Path) -> None:
    """Say that a file is read."""
    if _Inputs.paths is not None and path.resolve() not in _Inputs.own:
        _Inputs.paths.add(path.resolve())


@contextmanager
def new_file(path: Path, *, is_own: bool = False) -> Iterator[Path]:
    """Give an empty temporary file to write to; it becomes `path` only if the block succeeds.

    A ConfigError if it is there and no file, an input of this command, or not specsim's, or its
    folder cannot be written to.

    Args:
        path: Replaced if specsim wrote it, or what it links to; folders made for it are taken away
            again if the block fails.
        is_own: Whether the caller knows that what it replaces is specsim's.
    """
    temporary: Path | None = None
    made: list[Path] = []
    try:
        target = path.resolve()
        if target.is_symlink():  # Python before 3.13 raises in `resolve`
            raise ConfigError(f"{path}: cannot be written: is a link to itself; name a file")
        if target.exists() and not target.is_file():  # to replace /dev/null would break the machine
            kind = "is a folder" if target.is_dir() else "is no ordinary file"
            raise ConfigError(f"{path}: cannot be written: {kind}; name a file")
        check_folder(path.parent, file=path)
        if not is_own:
            _check_file(path)
        made.extend(folder for folder in target.parents if not folder.exists())
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear(target.parent, re.compile(rf"\.{re.escape(target.name)}\.\d+\.tmp(\.marked)?"))
        begun = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        # A folder that cannot be written to is found before the work.
        with _claimed(lambda: _touched(begun)) as temporary:
            yield temporary
            if not is_own:
                mark(temporary)
                _check_file(path)  # by now all inputs have been read
            temporary.replace(target)
            _Inputs.own.add(target)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        if temporary is not None:
            with suppress(OSError):  # it has become `path`, or was never made
                temporary.unlink()
        for folder in made:
            with suppress(OSError):  # holds the file, or was never made
                folder.rmdir()


def _unwritable(path: Path, error: OSError) -> ConfigError:
    """Return the error of a file or folder, by the name that its user gave it."""
    shown = Path(*(part for part in path.parts if not _UNFINISHED.fullmatch(part)))
    why = error.strerror or str(error)
    if not path.is_absolute() and working_folder() is None:
        why = WORKING_FOLDER_GONE
    return ConfigError(f"{shown}: cannot be written: {why}")


def check_folder(path: Path, *, file: Path | None = None) -> None:
    """Raise a ConfigError if a folder, of a file, cannot be there.

    It or one above it is a file, or it is a link to what is not there, such as a disk.
    """
    for place in (path, *path.parents):
        if file is None and place.is_symlink() and not place.exists():
            raise ConfigError(
                f"{path}: cannot be written: {place} is a link to {os.readlink(place)}, which is "
                "not there; make it, or name another folder"
            )
        if place.exists() and not place.is_dir():
            if file is None and place == path:
                raise ConfigError(f"{path}: is a file; name a folder")
            raise ConfigError(
                f"{file or path}: cannot be written: {place} is a file; name another folder"
            )


@contextmanager
def new_folder(path: Path, replaced: Iterable[str] = ()) -> Iterator[Path]:
    """Give a temporary folder to fill; its files move into `path` only if the block succeeds.

    A ConfigError if the folder cannot be written to, or something in it that would be replaced is
    not specsim's.

    Args:
        path: Made if missing, and taken away again if the block fails; files and folders of the
            same name in it are replaced, others stay.
        replaced: Names of what is written, as far as they are known beforehand. Files of these
            names do not stay even if none takes their place.
    """
    replaced = tuple(replaced)
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    temporary: Path | None = None
    try:
        check_folder(path)
        check_replaceable(path, replaced)  # before the work
        path.mkdir(parents=True, exist_ok=True)
        _clear(path, _UNFINISHED)
        made_here = path.resolve()  # no URI
        with _claimed(lambda: Path(mkdtemp(prefix=".unfinished-", dir=made_here))) as temporary:
            yield temporary
            _move(temporary, path, replaced)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        for folder in made:
            with suppress(OSError):  # holds the results, or was never made
                folder.rmdir()


def _move(unfinished: Path, folder: Path, replaced: Iterable[str]) -> None:
    """Move what a folder holds into another, where it takes the place of its like."""
    children = sorted(unfinished.iterdir())
    for file in unfinished.rglob("*"):
        if file.is_file():
            mark(file)
    check_replaceable(folder, [child.name for child in children])
    for child in children:
        target = folder / child.name
        if target.is_dir():
            shutil.rmtree(target)
        child.replace(target)
    for name in {*replaced} - {child.name for child in children}:
        (folder / name).unlink(missing_ok=True)


@contextmanager
def packed(path: Path, *, is_packed: bool) -> Iterator[BinaryIO]:
    """Open a file to write bytes to; packed without name and time, for the same bytes each time."""
    with path.open("wb") as plain:
        if not is_packed:
            yield plain
            return
        with GzipFile("", "wb", fileobj=plain, mtime=0) as stream:
            yield cast("BinaryIO", stream)


def check_replaceable(folder: Path, names: Iterable[str]) -> None:
    """Raise a ConfigError unless specsim wrote all that a folder holds under some names."""
    for name in names:
        path = folder / name
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if os.path.lexists(file) and not _is_ours(file) and not _is_forced(file):
                raise ConfigError(
                    f"{file}: {_NOT_OURS}; move it or name another folder, or add --force"
                )
            _check_no_input(file)


def _check_file(path: Path) -> None:
    """Raise a ConfigError if a file that is to be replaced is somebody else's."""
    _check_no_input(path)
    if path.is_file() and path.stat().st_size and not is_marked(path) and not _is_forced(path):
        raise ConfigError(f"{path}: {_NOT_OURS}; name another file, or add --force")


def _check_no_input(path: Path) -> None:
    if path.is_file() and path.resolve() in (_Inputs.paths or ()):
        raise ConfigError(f"{path}: is an input of this very command; name another output")


def _is_ours(path: Path) -> bool:
    return path.is_file() and is_marked(path)


def _is_forced(path: Path) -> bool:
    return is_on(FORCES) and not path.is_dir()


@contextmanager
def _claimed(make: Callable[[], Path]) -> Iterator[Path]:
    """Hold a lock on a file or folder that is being written, which ends with the process."""
    lock = None
    while lock is None:
        path = make()
        found = os.open(path, os.O_RDONLY)
        _lock(found, waits=True)
        if path.exists():
            lock = found
        else:  # somebody has cleared it away before it was locked
            os.close(found)
    try:
        yield path
    finally:
        os.close(lock)


def _touched(path: Path) -> Path:
    path.touch()
    return path


def _lock(file: int, *, waits: bool) -> None:
    """Lock a file; an OSError if another process has it and this one does not wait."""
    try:
        import fcntl
    except ImportError:  # on Windows
        if not waits:
            raise OSError from None
        return
    with suppress(OSError) if waits else nullcontext():  # a file system may have no locks
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))


def _clear(folder: Path, name: re.Pattern[str]) -> None:
    """Remove what processes that were killed have left unfinished in a folder."""
    for path in [each for each in folder.iterdir() if name.fullmatch(each.name)]:
        with suppress(OSError):  # it is being written, or has gone
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                _lock(file, waits=False)
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            finally:
                os.close(file)
