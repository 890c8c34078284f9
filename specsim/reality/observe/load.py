"""The load: requests sent at their times, whatever comes back."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from time import monotonic
from typing import Any

from specsim.reality.observe.client import INTERRUPTED, Answer, Client
from specsim.reality.observe.workload import Workload

__all__ = ["Sent", "send_all"]

_LEAD = 0.2  # seconds from now to the first arrival, so that it is not late

Send = Callable[[int, float], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Sent:
    """A request that was sent."""

    index: int
    """Number in the workload."""
    due_at: float
    """When it was to be sent, seconds on the monotonic clock."""
    answer: Answer

    @property
    def lateness(self) -> float:
        """By how much the client sent it later than that, seconds."""
        return self.answer.sent_at - self.due_at


async def send_all(
    client: Client, workload: Workload, bodies: list[bytes], on_end: Callable[[Sent], None]
) -> None:
    """Send every request of a workload and wait for all answers.

    If it is cancelled, nothing more is sent, answers on their way are broken off, and each of them
    still ends with what had come of it.

    Args:
        bodies: One per request.
        on_end: Given each request when it has ended, well or not.
    """

    async def send(index: int, due_at: float) -> None:
        sent = Sent(index, due_at, await client.ask(bodies[index]))
        on_end(sent)
        if sent.answer.error == INTERRUPTED:
            raise asyncio.CancelledError

    try:
        if workload.concurrency is None:
            await _open_loop(workload, send)
        else:
            await _closed_loop(workload, workload.concurrency, send)
    except BaseExceptionGroup as group:  # of on_end: the disk is full, say
        raise group.exceptions[0] from None


async def _open_loop(workload: Workload, send: Send) -> None:
    start = monotonic() + _LEAD
    async with asyncio.TaskGroup() as group:
        for request in workload.requests:
            due_at = start + request.arrived_at
            if (delay := due_at - monotonic()) > 0:  # what is late goes before what comes in
                await asyncio.sleep(delay)
            group.create_task(send(request.index, due_at))


async def _closed_loop(workload: Workload, concurrency: int, send: Send) -> None:
    unsent = iter(zip(workload.requests, workload.think_times, strict=True))

    async def be_client() -> None:
        for request, think_time in unsent:
            due_at = monotonic() + think_time
            await asyncio.sleep(think_time)
            await send(request.index, due_at)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(workload.requests))):
            group.create_task(be_client())
