"""Alarm: something is done at an instant, to a fraction of a millisecond.

asyncio's own timers on Linux are those of epoll, which are up to a millisecond late.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from math import inf
from typing import Any

_LIBC: Any = ctypes.CDLL(None, use_errno=True)
_MONOTONIC, _NONBLOCK, _ABSOLUTE = 1, 0o4000, 1


class Alarm:
    """Calls a function at an instant of the loop's clock; by asyncio where there is no timerfd."""

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
        """Ring at an instant, unless it is to ring before; infinite: let it be."""
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
                return  # it has been set anew since
        self._handle, self._at = None, inf
        self._action()

    def close(self) -> None:
        """Ring no more."""
        if self._handle is not None:
            self._handle.cancel()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
        self._file, self._at = -1, -inf
