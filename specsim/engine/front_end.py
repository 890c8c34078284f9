"""The front end: what a request passes on its way from a client to the engine."""

from collections.abc import Iterable, Iterator

import numpy as np

from specsim.results.records import FrontTimes


class FrontEnd:
    """Tokenizes one prompt after the other; all else delays a request and occupies nothing.

    Args:
        latency: Of each request, seconds.
        token_time: That a prompt occupies it, seconds per token.
        num_requests: That will pass.
    """

    def __init__(self, latency: float, token_time: float = 0.0, num_requests: int = 0) -> None:
        self.latency, self._token_time = latency, token_time
        self.times: FrontTimes = np.full(num_requests, latency) if token_time else latency
        self._free_at = 0.0

    @property
    def has_queue(self) -> bool:
        """Whether a request may wait for the one before it."""
        return self._token_time > 0

    def passed(self, request: int, prompt_len: int, at: float) -> float:
        """Return when a request reaches the engine; told in the order in which they are sent."""
        if not self.has_queue:
            return at + self.latency
        self._free_at = max(at, self._free_at) + self._token_time * prompt_len
        instant = self._free_at + self.latency
        assert isinstance(self.times, np.ndarray)
        self.times[request] = instant - at
        return instant


def instants(reached_at: Iterable[float]) -> Iterator[float]:
    """Yield when the clock lets each request reach the engine; seconds, rising."""
    now = 0.0
    for instant in reached_at:
        if instant > now:
            now += instant - now  # as the clock counts; it need not be that very instant
        yield now
