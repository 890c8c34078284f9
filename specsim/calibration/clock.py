"""Clocks of a measured run: the plain one, and one for a machine that is not there all the time.

What a virtual CPU runs cannot see that its host has taken the CPU away for some tenths of a second,
but Linux counts that time (`steal` in ``/proc/stat``).
"""

import ctypes
import os
import time
from pathlib import Path

__all__ = ["STALL", "Clock", "MachineClock"]

STALL = 0.02
"""Seconds; what is taken in smaller pieces makes a machine slow, which probes see."""
_STAT = Path("/proc/stat")
_STEAL = 8  # column, counted from the CPU's name


class Clock:
    """Seconds since some instant."""

    def now(self) -> float:
        """Return the time."""
        return time.monotonic()


class MachineClock(Clock):
    """Stands still while the host has taken the CPU away, and can be set back."""

    def __init__(self) -> None:
        self._seen = time.monotonic()
        self._stood_still = 0.0
        self._owed = 0.0
        self._cpu, self._stolen = _stolen()

    def now(self) -> float:
        """Return the time."""
        cpu, stolen = _stolen()
        instant = time.monotonic()
        if cpu == self._cpu and stolen - self._stolen >= STALL:
            self._owed += stolen - self._stolen
        self._cpu, self._stolen = cpu, stolen
        lost = min(self._owed, instant - self._seen)  # it does not run backwards
        self._owed -= lost
        self._stood_still += lost
        self._seen = instant
        return instant - self._stood_still

    def resume(self, at: float) -> None:
        """Go on from an instant of before, as if nothing had happened since.

        Parameters
        ----------
        at : float
            By this clock.
        """
        self._cpu, self._stolen = _stolen()
        self._seen = time.monotonic()
        self._stood_still = self._seen - at


def _stolen() -> tuple[int, float]:
    """Return the CPU that this runs on and for how long it has been taken away; 0 if unknown."""
    if _libc is None:
        return 0, 0.0
    cpu = int(_libc.sched_getcpu())
    for line in _STAT.read_bytes().splitlines():
        fields = line.split()
        if fields[0] == b"cpu%d" % cpu:
            return cpu, int(fields[_STEAL]) / _TICKS
    return cpu, 0.0


_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_libc = ctypes.CDLL(None) if _STAT.exists() else None
