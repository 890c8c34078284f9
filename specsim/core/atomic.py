"""Files that are there whole or not at all."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from specsim.core.errors import ConfigError

__all__ = ["new_file", "new_folder"]


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Give an empty temporary file to write to; it becomes `path` only if the block succeeds.

    Args:
        path: Replaced if it exists, or what it links to; folders made for it are taken away again
            if the block fails.

    Raises:
        ConfigError: It is there and no file, or its folder cannot be written to.
    """
    temporary: Path | None = None
    made: list[Path] = []
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():  # to replace /dev/null would break the machine
            kind = "is a folder" if target.is_dir() else "is no ordinary file"
            raise ConfigError(f"{path}: cannot be written: {kind}; name a file")
        made.extend(folder for folder in target.parents if not folder.exists())
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        temporary.touch()  # a folder that cannot be written to is found before the work
        yield temporary
        temporary.replace(target)
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

    Args:
        path: Made if missing, and taken away again if the block fails; files and folders of the
            same name in it are replaced, others stay.
        replaced: Files in it that do not stay even if none of the same name takes their place.

    Raises:
        ConfigError: The folder cannot be written to.
    """
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    temporary: Path | None = None
    written: set[str] = set()
    try:
        path.mkdir(parents=True, exist_ok=True)
        temporary = Path(mkdtemp(prefix=".unfinished-", dir=path))
        yield temporary
        for child in sorted(temporary.iterdir()):
            target = path / child.name
            if target.is_dir():
                shutil.rmtree(target)
            child.replace(target)
            written.add(child.name)
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
