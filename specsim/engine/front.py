"""The front end of engines, which takes requests in; and lanes, servers that are alike.

Tokenizers are lanes, and so are the transfers that a link makes at once.
"""

from heapq import heapreplace

import numpy as np

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


class Front:
    """HTTP and handing over, which only delay, and tokenization, one prompt after the other.

    Each engine has one tokenizer, and whichever is free first takes the next prompt (vLLM 0.32
    ``renderers/base.py``: one executor per API server).

    Args:
        front_time: What each request takes, seconds.
        token_time: What each token of a prompt takes, seconds.
        num_requests: Of the run.
    """

    def __init__(
        self, front_time: float, token_time: float, num_engines: int, num_requests: int
    ) -> None:
        self.front_time = front_time
        self.has_queue = token_time > 0
        self.delays = np.full(num_requests, front_time)
        """By the index of the request: what it has taken to reach the engine, seconds."""
        self._token_time = token_time
        self._tokenizers = Lanes(num_engines)

    def reaches_at(self, sent_at: float, index: int, prompt_len: int) -> float:
        """Return when a request reaches the engine; to be asked in the order of sending."""
        if not self.has_queue:
            return sent_at + self.front_time
        ready_at = self._tokenizers.book(sent_at, self._token_time * prompt_len)
        self.delays[index] = ready_at + self.front_time - sent_at
        return ready_at + self.front_time
