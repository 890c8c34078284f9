"""What every source of lengths answers: how long prompts and outputs are."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from specsim.core.families import Member
from specsim.workload.trace import Trace

__all__ = ["Lengths", "lognormal_parameters", "to_tokens"]


class Lengths(Member):
    """How long prompts and outputs are; some sources also know the tokens themselves."""

    kind: str

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return the bodies of requests, without arrivals.

        Returns:
            Of `count` requests.
        """

    @property
    def num_rows(self) -> int | None:
        """How many requests the source holds; None if it never runs out."""
        return None


def to_tokens(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the values rounded to whole tokens, at least 1."""
    return np.maximum(1, np.rint(values)).astype(np.int64)


def lognormal_parameters(mean: float, std: float) -> tuple[float, float]:
    """Return mu and sigma of the lognormal distribution with this mean and standard deviation.

    Args:
        mean, std: Of the variable itself, not of its logarithm.

    Returns:
        Mean and standard deviation of the logarithm.
    """
    variance = float(np.log1p((std / mean) ** 2))
    return float(np.log(mean)) - variance / 2, float(np.sqrt(variance))
