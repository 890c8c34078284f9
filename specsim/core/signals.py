"""Signals that ask a program to end."""

import signal
import sys

OF_TERMINAL = (signal.SIGINT, *([signal.SIGHUP] if sys.platform != "win32" else []))
"""Of Ctrl-C, and of a terminal that is closed: all processes of the terminal get them."""

ENDS = (signal.SIGTERM, *OF_TERMINAL)
"""These, and that of a supervisor."""
