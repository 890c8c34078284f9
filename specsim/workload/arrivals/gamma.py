"""Arrivals that are burstier, or smoother, than Poisson."""

from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.workload.arrivals import RenewalArrivals


@final
class Gamma(RenewalArrivals):
    """Gamma-distributed gaps, with the meaning of burstiness that ``vllm bench serve`` has.

    `burstiness` is the shape of the gamma distribution: 1 is Poisson, below 1 is burstier, above 1
    more regular. The squared coefficient of variation of the gaps is its inverse.
    """

    kind: Literal["gamma"] = "gamma"
    examples = ({"rate": 8.0, "burstiness": 0.5},)
    burstiness: float = Field(gt=0)

    def gaps(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return gamma-distributed gaps."""
        return rng.gamma(self.burstiness, 1.0 / (self.rate * self.burstiness), count)
