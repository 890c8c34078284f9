"""Files that are there whole or not at all, and take the place of nobody else's."""

import mmap
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from gzip import GzipFile
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import BinaryIO, cast

from specsim.core.errors import ConfigError

FORCES = "SPECSIM_FORCE"
"""Environment variable that lets outputs replace any file but inputs, as ``specsim --force``."""
CACHE_VARIABLE = "SPECSIM_CACHE_DIR"
"""Environment variable: the folder of what is kept between runs, not ``~/.cache/specsim``."""

_MARK = b"specsim_version"  # what nearly every JSON file and every table of results holds
_UNMARKED = ("plot.png", "report.png", "timeline.png", "timeline.parquet")
"""Results without that mark: they are specsim's where one with it stands beside them."""


class _Inputs:
    """Files that the command at hand has read; a program that is no command replaces any."""

    paths: set[Path] | None = None
    own: set[Path] = set()  # noqa: RUF012 - of this process, as `paths` is
    """Files that it has written itself before it read them."""


def track_inputs() -> None:
    """Begin a command: remember which files it reads."""
    _Inputs.paths = set()
    _Inputs.own = set()


def note_input(path: Path) -> None:
    """Say that a file is read."""
    if _Inputs.paths is not None and path.resolve() not in _Inputs.own:
        _Inputs.paths.add(path.resolve())


def cache_folder() -> Path:
    """Return where specsim keeps what it needs again: compiled code, and what it has written."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specsim"


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
        if target.exists() and not target.is_file():  # to replace /dev/null would break the machine
            kind = "is a folder" if target.is_dir() else "is no ordinary file"
            raise ConfigError(f"{path}: cannot be written: {kind}; name a file")
        if not is_own:
            _check_file(path)
        made.extend(folder for folder in target.parents if not folder.exists())
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        temporary.touch()  # a folder that cannot be written to is found before the work
        yield temporary
        if not is_own:
            _check_file(path)  # by now all inputs have been read
        temporary.replace(target)
        _Inputs.own.add(target)
        if not is_own:
            _note_written(target)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):  # it has become `path`, or was never made
                temporary.unlink()
        for folder in made:
            with suppress(OSError):  # holds the file, or was never made
                folder.rmdir()


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
    written: set[str] = set()
    try:
        check_replaceable(path, replaced)  # before the work
        path.mkdir(parents=True, exist_ok=True)
        temporary = Path(mkdtemp(prefix=".unfinished-", dir=path.resolve()))  # no URI
        yield temporary
        children = sorted(temporary.iterdir())
        check_replaceable(path, [child.name for child in children])
        for child in children:
            target = path / child.name
            if target.is_dir():
                shutil.rmtree(target)
            child.replace(target)
            written.add(child.name)
            if target.is_file() and not _is_marked(target):
                _note_written(target)
        for name in replaced:
            if name not in written:
                (path / name).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        for folder in made:
            with suppress(OSError):  # holds the results, or was never made
                folder.rmdir()


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
                    f"{file}: was not written by specsim and would be lost; move it or name "
                    "another folder, or add --force"
                )
            _check_no_input(file)


def _check_file(path: Path) -> None:
    """Raise a ConfigError if a file that is to be replaced is somebody else's."""
    _check_no_input(path)
    if path.is_file() and path.stat().st_size and not _is_ours(path) and not _is_forced(path):
        raise ConfigError(
            f"{path}: was not written by specsim and would be lost; name another file, or add "
            "--force"
        )


def _check_no_input(path: Path) -> None:
    if path.is_file() and path.resolve() in (_Inputs.paths or ()):
        raise ConfigError(f"{path}: is an input of this very command; name another output")


def _is_forced(path: Path) -> bool:
    return bool(os.environ.get(FORCES)) and not path.is_dir()


def _note(path: Path) -> Path:
    name = sha256(os.fsencode(path.resolve())).hexdigest()[:24]
    return cache_folder() / "written" / name


def _identity(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _note_written(path: Path) -> None:
    """Remember a file, so that it may be replaced as long as nobody else has changed it."""
    with suppress(OSError, RuntimeError):  # without a home the user has to say --force
        note = _note(path)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(_identity(path))


def _is_noted(path: Path) -> bool:
    with suppress(OSError, RuntimeError):
        return _note(path).read_text() == _identity(path)
    return False


def _is_ours(path: Path) -> bool:
    if path.is_file() and _is_noted(path):
        return True
    if path.name in _UNMARKED and path.is_file():
        return any(_is_marked(other) for other in path.parent.iterdir())
    return _is_marked(path)


def _is_marked(path: Path) -> bool:
    may_be = path.suffix in (".json", ".parquet", ".yaml") and path.is_file()
    if not may_be or not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(_MARK) >= 0
