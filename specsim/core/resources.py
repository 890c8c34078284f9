"""Where the files that specsim ships lie: profiles/ and traces/.

In a checkout they lie beside the package; in an installed wheel, inside it. A folder of the same
name in the working directory comes first, so that a user's own profile needs no installation.
"""

from pathlib import Path

__all__ = ["find_resource", "locate", "resource_names"]

_PACKAGE = Path(__file__).resolve().parents[1]


def _roots(folder: str) -> list[Path]:
    candidates = [Path.cwd() / folder, _PACKAGE.parent / folder, _PACKAGE / "_shipped" / folder]
    return [root for root in dict.fromkeys(candidates) if root.is_dir()]


def find_resource(folder: str, name: str) -> Path | None:
    """Return the path of a shipped file in ``profiles`` or ``traces``, or None."""
    found = (root / name for root in _roots(folder))
    return next((path for path in found if path.is_file()), None)


def resource_names(folder: str, pattern: str) -> list[str]:
    """Return the shipped files that match a pattern, without suffix, sorted."""
    names = {
        path.relative_to(root).with_suffix("").as_posix()
        for root in _roots(folder)
        for path in root.glob(pattern)
    }
    return sorted(names)


def locate(path: Path) -> Path:
    """Return a path such as ``traces/chat.parquet`` as given, or among the shipped files.

    As given if that exists or nothing does.
    """
    if path.exists() or path.is_absolute() or len(path.parts) < 2:
        return path
    folder, *rest = path.parts
    return find_resource(folder, "/".join(rest)) or path
