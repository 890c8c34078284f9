"""Lanes: servers that are alike, such as tokenizers or the transfers that a link makes at once."""

from heapq import heapreplace

from specsim.core.errors import InvariantError


class Lanes:
    """Servers of which the first that is free takes the next piece of work, in order of arrival.

    Work has to be booked in the order in which it comes: a lane that is booked for what is yet to
    come would stand still while other work waits for it.
    """

    def __init__(self, count: int) -> None:
        self._free_at = [0.0] * count
        self._booked_at = 0.0

    def book(
        self, now: float, time: float, *, ready_at: float | None = None, not_before: float = 0.0
    ) -> float:
        """Return when a piece of work ends that comes now and takes some time, seconds.

        Args:
            ready_at: When a lane may have begun with it; before now, if it came piece by piece.
            not_before: When it can end at the earliest.

        Raises:
            InvariantError: Something that comes later has been booked before.
        """
        if now < self._booked_at:
            raise InvariantError(
                f"work comes at {now} and waits for a lane that has been booked for other work, "
                f"which comes only at {self._booked_at}"
            )
        self._booked_at = now
        begins_at = max(self._free_at[0], now if ready_at is None else ready_at)
        ends_at = max(begins_at + time, not_before)
        heapreplace(self._free_at, ends_at)
        return ends_at
