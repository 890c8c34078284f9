"""Arrivals without memory."""

from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from specsim.workload.arrivals import RenewalArrivals


@final
class Poisson(RenewalArrivals):
    """A Poisson process: independent exponential gaps."""

    kind: Literal["poisson"] = "poisson"
    examples = ({"rate": 8.0},)

    def gaps(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return exponential gaps."""
        return rng.exponential(1.0 / self.rate, count)
