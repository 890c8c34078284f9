"""All requests at once."""

from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError
from specsim.workload.arrivals import OpenArrivals


@final
class Burst(OpenArrivals):
    """Every request at time 0: offline batch inference, or ``vllm bench serve`` at rate inf."""

    kind: Literal["burst"] = "burst"

    def times(
        self, rng: np.random.Generator, *, count: int | None, duration: float | None
    ) -> NDArray[np.float64]:
        """Return zeros; a ConfigError if only a duration is given."""
        if count is None:
            raise ConfigError("workload.duration: a burst has none; give num_requests")
        return np.zeros(count)
