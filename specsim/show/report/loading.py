"""Reading whatever folder a report is asked for."""

from collections.abc import Callable
from pathlib import Path

from specsim.core.errors import ConfigError
from specsim.show.report.capacity_folder import load_capacity
from specsim.show.report.run_folder import load_comparison, load_run
from specsim.show.report.study import Study
from specsim.show.report.sweep_folder import load_sweep

__all__ = ["load_study"]

_READERS: dict[str, Callable[[Path], Study]] = {
    "sweep.yaml": load_sweep,
    "comparison.json": load_comparison,
    "capacity.json": load_capacity,
    "summary.json": load_run,
}
"""By the file that tells what a folder is."""


def load_study(folder: Path) -> Study:
    """Return what a results folder holds.

    Args:
        folder: As ``specsim sweep``, or ``run``, ``compare`` or ``capacity`` with ``--out``, wrote
            it; a sweep need not be finished.

    Raises:
        ConfigError: It is none of these, of another version, or damaged.
    """
    for name, read in _READERS.items():
        if (folder / name).is_file():
            return read(folder)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder}: {what}; give the folder of a sweep, a comparison or a run")
    raise ConfigError(
        f"{folder}: holds none of {', '.join(_READERS)}, so it is no results folder; give one that "
        "`specsim sweep`, or `run`, `compare` or `capacity` with --out, wrote"
    )
