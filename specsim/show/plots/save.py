"""What all plots have in common: no window, and no time stamp in what is saved."""

from pathlib import Path

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from specsim.core.atomic import new_file
from specsim.core.errors import ConfigError

__all__ = ["check_suffix", "save"]

matplotlib.use("Agg")

# The same data give the same bytes.
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


def check_suffix(path: Path) -> None:
    """Refuse a path that no plot can be saved to, before the work that would be lost.

    Args:
        path: Of a plot to come.

    Raises:
        ConfigError: It ends in none of ``.png``, ``.svg`` and ``.pdf``.
    """
    if path.suffix not in _METADATA:
        raise ConfigError(
            f"{path}: a plot must end in {', '.join(_METADATA)}, not '{path.suffix}'; rename it"
        )


def save(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all, and close it.

    Args:
        path: ``.png``, ``.svg`` or ``.pdf``; replaced if it exists.

    Raises:
        ConfigError: The path ends in something else, or cannot be written to.
    """
    check_suffix(path)
    # The ids of an SVG would be random otherwise.
    with new_file(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "specsim"}):
        figure.savefig(temporary, format=path.suffix[1:], dpi=120, metadata=_METADATA[path.suffix])
    plt.close(figure)
