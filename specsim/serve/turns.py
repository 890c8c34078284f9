"""Turns: what is much work is done a few milliseconds at a time, so that the loop can go on.

All requests share them: while one has its turn the others wait in order, and what comes in between
(a health check, a step of the engine) does not wait for all of them.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from time import monotonic
from typing import TypeVar

SLICE = 0.005  # seconds

_Item = TypeVar("_Item")


class Turns:
    """Whose turn it is to work, and since when."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._since = 0.0

    async def turn(self) -> None:
        """Wait until it is the caller's turn, and the loop has done what else there was."""
        async with self._lock:
            if monotonic() - self._since > SLICE:
                await asyncio.sleep(0)
                self._since = monotonic()

    async def each(self, items: Iterable[_Item]) -> AsyncIterator[_Item]:
        """Yield items, and wait for a turn where those before have taken one."""
        for item in items:
            yield item
            if monotonic() - self._since > SLICE:
                await self.turn()
