"""What surrounds a program: signals that ask it to end, its working directory, switches."""

import os
import signal
import sys
from pathlib import Path

OF_TERMINAL = (signal.SIGINT, *([signal.SIGHUP] if sys.platform != "win32" else []))
"""Of Ctrl-C, and of a terminal that is closed: all processes of the terminal get them."""

ENDS = (signal.SIGTERM, *OF_TERMINAL)
"""These, and that of a supervisor."""

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
