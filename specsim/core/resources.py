"""Where the files that specsim ships lie: profiles/ and traces/.

In a checkout they lie beside the package; in an installed wheel, inside it. A folder of the same
name in the working directory comes first, so that a user's own profile needs no installation.
"""

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from specsim.core.surroundings import working_folder

_PATH_FIELDS = ("path", "corpus")  # fields of settings that name a file or a folder
_FILE_SUFFIXES = {"profile": (".yaml", ".yml"), "model": (".json",), "gpu": (".yaml", ".yml")}
"""Fields that name a file if their value ends like this, and else something shipped."""
_PATH_IN_SHORT_FORM = re.compile(rf"(?<=[:,])(\s*(?:{'|'.join(_PATH_FIELDS)})\s*=\s*)([^,]+)")
_FILE_OF_CLASS = re.compile(r"(?:\w+|[^:]+\.py)(?=:[A-Za-z_]\w*(?::|$))")
"""Module or file of a class of the user's: ``my_policies:Patient:k=3``."""
_PACKAGE = Path(__file__).resolve().parents[1]


def _roots(folder: str) -> list[Path]:
    here = working_folder()
    candidates = [_PACKAGE.parent / folder, _PACKAGE / "_shipped" / folder]
    if here is not None:
        candidates.insert(0, here / folder)
    return [root for root in dict.fromkeys(candidates) if root.is_dir()]


def find_resource(folder: str, name: str) -> Path | None:
    """Return the path of a shipped file in ``profiles`` or ``traces``, or None."""
    found = (root / name for root in _roots(folder))
    return next((path for path in found if path.is_file()), None)


def resource_names(folder: str, pattern: str) -> list[str]:
    """Return the shipped files that match a pattern, without suffix, sorted."""
    names: set[str] = set()
    for root in _roots(folder):
        # The time of a folder says when a file in it came or went, but not in a folder below.
        version = None if "/" in pattern else root.stat().st_mtime_ns
        names |= _names_in(root, pattern) if version is None else _listed(root, pattern, version)
    return sorted(names)


def _names_in(root: Path, pattern: str) -> frozenset[str]:
    begin = len(root.as_posix()) + 1
    return frozenset(path.as_posix()[begin : -len(path.suffix)] for path in root.glob(pattern))


@lru_cache(maxsize=32)  # which models are known is asked some forty times for a plan
def _listed(root: Path, pattern: str, version: int) -> frozenset[str]:
    return _names_in(root, pattern)


def locate(path: Path) -> Path:
    """Return a path as given if that exists, else the shipped file of that name, if any."""
    if path.exists() or path.is_absolute() or len(path.parts) < 2:
        return path
    folder, *rest = path.parts
    return find_resource(folder, "/".join(rest)) or path


def following(settings: Any, folder: Path, field: str = "") -> Any:
    """Return settings whose relative paths follow the folder of the file that they stand in.

    Those that lead nowhere from there name something that is shipped, or follow the working
    directory. A dotted `field`, whose value the settings are, counts by its last part.
    """
    if isinstance(settings, dict):
        return {name: following(value, folder, str(name)) for name, value in settings.items()}
    if isinstance(settings, list):
        return [following(value, folder, field) for value in settings]
    if not isinstance(settings, str):
        return settings
    name = field.rpartition(".")[2]
    if name in _PATH_FIELDS or settings.endswith(_FILE_SUFFIXES.get(name, ())):
        return _beside(settings, folder)
    if (found := _FILE_OF_CLASS.match(settings)) is not None:
        settings = _class_beside(found[0], folder) + settings[found.end() :]
    return _PATH_IN_SHORT_FORM.sub(lambda found: found[1] + _beside(found[2], folder), settings)


def within(settings: Any, folder: Path) -> Any:
    """Return settings whose paths into a folder start there, so that it may be moved with a file.

    What `following` reads in that file.
    """
    if isinstance(settings, dict):
        return {name: within(value, folder) for name, value in settings.items()}
    if isinstance(settings, list):
        return [within(value, folder) for value in settings]
    is_path = isinstance(settings, str) and settings.startswith(os.sep)
    if not is_path or not Path(settings).is_relative_to(folder.resolve()):
        return settings
    return str(Path(settings).relative_to(folder.resolve()))


def _class_beside(module: str, folder: Path) -> str:
    file = module if module.endswith(".py") else f"{module}.py"
    found = _beside(file, folder)
    return found if found != file else module


def _beside(path: str, folder: Path) -> str:
    is_elsewhere = folder.resolve() != working_folder()
    return str(folder / path) if path and is_elsewhere and os.path.exists(folder / path) else path
