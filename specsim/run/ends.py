"""Ends: which requests of a run have ended."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import InvariantError
from specsim.core.step import Ints


class Ends:
    """Counts the requests that have ended, each once, and passes it on.

    Args:
        on_progress: Told how many have ended, each time one does.
    """

    def __init__(self, num_requests: int, on_progress: Callable[[int], None] | None) -> None:
        self._has_ended = bytearray(num_requests)
        self._num_ended = 0
        self._on_progress = on_progress
        self.listener: Callable[[int, float], None] | None = None

    def tell(self, requests: Ints, at: NDArray[np.float64]) -> None:
        """Note requests that have ended, in this order, and when."""
        for request, instant in zip(requests.tolist(), at.tolist(), strict=True):
            if self._has_ended[request]:
                raise InvariantError(f"request {request} has ended twice")
            self._has_ended[request] = True
            self._num_ended += 1
            if self.listener is not None:
                self.listener(request, instant)
            if self._on_progress is not None:
                self._on_progress(self._num_ended)

    def is_over(self) -> bool:
        """Tell whether every request has ended, as far as it has been told."""
        return self._num_ended == len(self._has_ended)

    def check(self) -> None:
        """Raise unless every request ended."""
        left = len(self._has_ended) - self._num_ended
        if left:
            raise InvariantError(f"{left} of {len(self._has_ended)} requests never ended")
