"""Queues of sequences that wait for admission (vLLM ``v1/core/sched/request_queue.py``)."""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappush

from oracle.sequence import Sequence

__all__ = ["FcfsQueue", "PriorityQueue", "WaitingQueue"]


class FcfsQueue:
    """First come, first served; a preempted sequence goes to the front."""

    def __init__(self) -> None:
        self._queue: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def add(self, sequence: Sequence) -> None:
        """Append a new sequence."""
        self._queue.append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Put a preempted sequence before all others."""
        self._queue.appendleft(sequence)

    def peek(self) -> Sequence:
        """Return the next sequence."""
        return self._queue[0]

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, wherever it stands."""
        self._queue.remove(sequence)


class PriorityQueue:
    """Smallest (priority, arrival time, id) first; a preempted sequence has no privilege."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, str, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[-1] for entry in sorted(self._heap))

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence."""
        request = sequence.request
        key = (request.priority, sequence.arrived_at, request.id, request.index)
        heappush(self._heap, (*key, sequence))

    put_back = add

    def peek(self) -> Sequence:
        """Return the next sequence."""
        return self._heap[0][-1]

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, wherever it stands."""
        self._heap = [entry for entry in self._heap if entry[-1] is not sequence]
        heapify(self._heap)


WaitingQueue = FcfsQueue | PriorityQueue
