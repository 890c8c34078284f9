"""Clocks: the plain one, one without time that the host takes from a virtual CPU, and an alarm.

A virtual CPU cannot see that its host has taken the CPU away for some tenths of a second, but Linux
counts that time (`steal` in ``/proc/stat``).
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

STALL = 0.02  # seconds; shorter stalls only make a machine slow, which probes see
_PAID_BACK = 0.9  # of the passing time is removed at once; the rest of a stall later
STAT = Path("/proc/stat")
IS_LINUX = STAT.exists()
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_LIBC: Any = ctypes.CDLL(None, use_errno=True)
_MONOTONIC, _NONBLOCK, _ABSOLUTE = 1, 0o4000, 1  # of timerfd


class Clock:
    """Seconds since some instant."""

    def now(self) -> float:
        return time.monotonic()


class MachineClock(Clock):
    """A clock that stops while the host has taken the CPU away, and that can be set back."""

    def __init__(self) -> None:
        self._seen = time.monotonic()
        self._stood_still = 0.0
        self._owed = 0.0
        self._cpu, self._stolen = stolen_seconds()

    def now(self) -> float:
        cpu, stolen = stolen_seconds()
        instant = time.monotonic()
        # After a move between CPUs, it is not known on which of them the stall was.
        newly = max(
            stolen.get(each, 0.0) - self._stolen.get(each, 0.0) for each in (cpu, self._cpu)
        )
        if newly >= STALL:
            self._owed += newly if cpu == self._cpu else min(newly, instant - self._seen)
        self._cpu, self._stolen = cpu, stolen
        # Never all of it, even if a stall is counted late: every step takes time.
        lost = min(self._owed, _PAID_BACK * (instant - self._seen))
        self._owed -= lost
        self._stood_still += lost
        self._seen = instant
        return instant - self._stood_still

    def resume(self, at: float) -> None:
        """Continue from an earlier instant of this clock, as if nothing had happened since."""
        self._cpu, self._stolen = stolen_seconds()
        self._seen = time.monotonic()
        self._stood_still = self._seen - at


def stolen_seconds() -> tuple[int, dict[int, float]]:
    """Return the number of the current CPU, and the stolen seconds of every CPU."""
    if not IS_LINUX:
        return 0, {}
    found = {}
    for line in STAT.read_bytes().splitlines()[1:]:
        fields = line.split()
        if not fields[0].startswith(b"cpu"):
            break
        found[int(fields[0][3:])] = int(fields[8]) / _TICKS  # column, counted from the CPU's name
    return int(_LIBC.sched_getcpu()), found


class Alarm:
    """Calls a function at an instant of the loop's clock, to a fraction of a millisecond.

    It uses timerfd if there is one, else asyncio's timers, which on Linux are those of epoll and up
    to a millisecond late.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._loop, self._action = asyncio.get_running_loop(), action
        self._at = inf
        self._handle: asyncio.Handle | None = None
        self._file = -1
        if hasattr(_LIBC, "timerfd_create"):
            self._file = _LIBC.timerfd_create(_MONOTONIC, _NONBLOCK | os.O_CLOEXEC)
        if self._file >= 0:
            self._loop.add_reader(self._file, self._ring)

    def set(self, instant: float) -> None:
        """Ring at an instant, unless an earlier one is set; infinity changes nothing."""
        if instant >= self._at:
            return
        self._at = instant
        if self._handle is not None:
            self._handle.cancel()
        if instant <= self._loop.time():
            self._handle = self._loop.call_soon(self._ring)
        elif self._file < 0:
            self._handle = self._loop.call_at(instant, self._ring)
        else:
            self._handle = None
            seconds = int(instant)
            when = (ctypes.c_long * 4)(0, 0, seconds, max(1, int((instant - seconds) * 1e9)))
            _LIBC.timerfd_settime(self._file, _ABSOLUTE, when, None)

    def _ring(self) -> None:
        if self._handle is None:
            try:
                os.read(self._file, 8)
            except BlockingIOError:
                return  # set to another instant since
        self._handle, self._at = None, inf
        self._action()

    def close(self) -> None:
        """Cancel the alarm and release its file."""
        if self._handle is not None:
            self._handle.cancel()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
        self._file, self._at = -1, -inf
