"""Arrivals at equal distances."""

from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.workload.arrivals import OpenArrivals


@final
class Constant(OpenArrivals):
    """One request every 1 / rate seconds, the first at 0."""

    kind: Literal["constant"] = "constant"
    examples = ({"rate": 8.0},)
    rate: float = Field(gt=0)
    """Requests per second."""

    def times(
        self, rng: np.random.Generator, *, count: int | None, duration: float | None
    ) -> NDArray[np.float64]:
        """Return the multiples of 1 / rate; divided, not summed, so that they do not drift."""
        if count is None:
            assert duration is not None
            count = int(np.ceil(duration * self.rate))
        times = np.arange(count) / self.rate
        return times if duration is None else times[times < duration]
