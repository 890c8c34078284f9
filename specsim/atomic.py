"""Files that are there whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from specsim.errors import ConfigError

__all__ = ["new_file", "new_folder"]


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes `path` only if the block succeeds.

    Parameters
    ----------
    path : Path
        Replaced if it exists; folders made for it are taken away again if the block fails.

    Raises
    ------
    ConfigError
        The folder cannot be written to.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    made: list[Path] = []
    try:
        made.extend(folder for folder in path.parents if not folder.exists())
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # it has become `path`, or its folder is none
            temporary.unlink()
        for folder in made:
            with suppress(OSError):  # holds the file, or was never made
                folder.rmdir()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; its files move into `path` only if the block succeeds.

    Parameters
    ----------
    path : Path
        Made if missing, and taken away again if the block fails; files and folders of the same
        name in it are replaced, others stay.

    Raises
    ------
    ConfigError
        The folder cannot be written to.
    """
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    temporary: Path | None = None
    try:
        path.mkdir(parents=True, exist_ok=True)
        temporary = Path(mkdtemp(prefix=".unfinished-", dir=path))
        yield temporary
        for child in sorted(temporary.iterdir()):
            target = path / child.name
            if target.is_dir():
                shutil.rmtree(target)
            child.replace(target)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        for folder in made:
            with suppress(OSError):  # holds the results, or was never made
                folder.rmdir()
