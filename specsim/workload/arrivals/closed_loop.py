"""Clients that wait for their answer."""

from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.workload.arrivals import Arrivals


@final
class ClosedLoop(Arrivals):
    """A fixed number of clients; each sends its next request when the last is answered.

    ``vllm bench serve --max-concurrency`` with a rate of infinity, when there is no think time.
    """

    kind: Literal["closed_loop"] = "closed_loop"
    examples = ({"concurrency": 16, "think_time": 1.0},)
    concurrency: int = Field(gt=0)
    """Clients, and so the largest number of requests in the system."""
    think_time: float = Field(default=0.0, ge=0)
    """Mean time between an answer and the next request of that client, seconds."""
    think_time_shape: Literal["constant", "exponential"] = "constant"

    def think_times(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return how long a client waits before each request of the run, seconds, shape (count,).

        0 for the first request of each client.
        """
        if self.think_time_shape == "exponential":
            times = rng.exponential(self.think_time, count)
        else:
            times = np.full(count, self.think_time)
        times[: self.concurrency] = 0.0
        return times
