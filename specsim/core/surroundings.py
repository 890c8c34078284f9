"""What surrounds a program: signals that ask it to end, its working directory, switches."""

import os
import signal
import sys
from pathlib import Path

OF_TERMINAL = (signal.SIGINT, *([signal.SIGHUP] if sys.platform != "win32" else []))
"""Of Ctrl-C, and of a terminal that is closed: all processes of the terminal get them."""

ENDS = (signal.SIGTERM, *OF_TERMINAL)
"""These, and that of a supervisor."""

_LIBRARIES = {
    "click", "numba", "numpy", "pyarrow", "pydantic", "rich", "scipy", "simpy", "typer", "yaml",
}  # fmt: skip

WORKING_FOLDER_GONE = "the working directory has been removed; change to another one"


def working_folder() -> Path | None:
    """Return the working directory; None if it has been removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def is_on(variable: str) -> bool:
    """Return whether an environment variable that is a switch is set, and neither empty nor 0."""
    return os.environ.get(variable, "") not in ("", "0")


def taken_here() -> str | None:
    """Return what to tell if a file of the working directory was imported for a library.

    `python -m` looks there first, and a user's `trace.py` or `numpy.py` is found before the real
    one; the program `specsim` does not.
    """
    here = working_folder()
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "")
        is_here = here is not None and file in (here / f"{name}.py", here / name / "__init__.py")
        if is_here and (name in _LIBRARIES or name in sys.stdlib_module_names):
            return (
                f"{file}: takes the place of the library '{name}'; rename it, or start specsim "
                "by its own name, not with python -m"
            )
    return None
