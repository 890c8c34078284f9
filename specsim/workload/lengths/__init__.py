"""Lengths: how long prompts and outputs are."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from specsim.core.families import Family, Member
from specsim.workload.trace import Trace

__all__ = ["LENGTHS", "Lengths", "to_tokens"]


class Lengths(Member):
    """How long prompts and outputs are; some sources also know the tokens themselves."""

    kind: str

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return so many requests, without arrivals."""

    @property
    def num_rows(self) -> int | None:
        """How many requests the source holds; None if it never runs out."""
        return None


LENGTHS = Family("workload.lengths", Lengths)


def to_tokens(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the values rounded to whole tokens, at least 1."""
    return np.maximum(1, np.rint(values)).astype(np.int64)
