"""Arrivals without memory."""

from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.workload.arrivals.base import RenewalArrivals

__all__ = ["Poisson"]


@final
class Poisson(RenewalArrivals):
    """A Poisson process: independent exponential gaps."""

    kind: Literal["poisson"] = "poisson"
    examples: ClassVar[tuple[dict[str, Any], ...]] = ({"rate": 8.0},)
    rate: float = Field(gt=0)
    """Requests per second."""

    @property
    def mean_rate(self) -> float:
        """The rate."""
        return self.rate

    def gaps(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return exponential gaps."""
        return rng.exponential(1.0 / self.rate, count)
