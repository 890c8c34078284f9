"""Clocks of a measured run: the plain one, and one for a CPU that its host takes away now and then.

What a virtual CPU runs cannot see that its host has taken the CPU away for some tenths of a second,
but Linux counts that time (`steal` in ``/proc/stat``).
"""

import ctypes
import os
import time
from pathlib import Path

STALL = 0.02  # seconds; what is taken in smaller pieces makes a machine slow, which probes see
_PAID_BACK = 0.9  # share of the time that passes; the rest of a stall is taken out of later steps
_STAT = Path("/proc/stat")
_STEAL = 8  # column, counted from the CPU's name


class Clock:
    """Seconds since some instant."""

    def now(self) -> float:
        return time.monotonic()


class MachineClock(Clock):
    """Stands still while the host has taken the CPU away, and can be set back."""

    def __init__(self) -> None:
        self._seen = time.monotonic()
        self._stood_still = 0.0
        self._owed = 0.0
        self._cpu, self._stolen = _stolen()

    def now(self) -> float:
        cpu, stolen = _stolen()
        instant = time.monotonic()
        # On which of the two it was, if it has moved meanwhile, is not known.
        newly = max(
            stolen.get(each, 0.0) - self._stolen.get(each, 0.0) for each in (cpu, self._cpu)
        )
        if newly >= STALL:
            self._owed += newly if cpu == self._cpu else min(newly, instant - self._seen)
        self._cpu, self._stolen = cpu, stolen
        # Never all of it, also if a stall is counted late: every step takes time.
        lost = min(self._owed, _PAID_BACK * (instant - self._seen))
        self._owed -= lost
        self._stood_still += lost
        self._seen = instant
        return instant - self._stood_still

    def resume(self, at: float) -> None:
        """Go on from an instant of before, by this clock, as if nothing had happened since."""
        self._cpu, self._stolen = _stolen()
        self._seen = time.monotonic()
        self._stood_still = self._seen - at


def _stolen() -> tuple[int, dict[int, float]]:
    """Return the CPU that this runs on, and of each for how long it has been taken away."""
    if _libc is None:
        return 0, {}
    found = {}
    for line in _STAT.read_bytes().splitlines()[1:]:
        fields = line.split()
        if not fields[0].startswith(b"cpu"):
            break
        found[int(fields[0][3:])] = int(fields[_STEAL]) / _TICKS
    return int(_libc.sched_getcpu()), found


_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_libc = ctypes.CDLL(None) if _STAT.exists() else None
