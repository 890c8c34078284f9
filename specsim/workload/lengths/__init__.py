"""Lengths: how long prompts and outputs are."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from specsim.core.families import Family, Member
from specsim.workload.trace import Trace

__all__ = ["LENGTHS", "LONGEST", "Lengths", "to_tokens"]

LONGEST = 2**31 - 1  # tokens of a prompt or an answer; no model's context comes near it


class Lengths(Member):
    """How long prompts and outputs are; some sources also know the tokens themselves."""

    kind: str

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return so many requests, without arrivals."""

    def draw_sessions(self, rng: np.random.Generator, count: int) -> Trace:
        """Return the requests of so many sessions; by default each is one request."""
        return self.draw(rng, count)

    @property
    def in_sessions(self) -> bool:
        """Whether what is drawn are turns of sessions."""
        return False

    @property
    def mean_turns(self) -> float:
        """About how many requests a session has."""
        return 1.0

    @property
    def mean_len(self) -> float:
        """About how many tokens prompt and output have together; 0 where a file says it."""
        return 0.0

    @property
    def num_rows(self) -> int | None:
        """How many requests the source holds; None if it never runs out."""
        return None


LENGTHS = Family("workload.lengths", Lengths)


def to_tokens(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the values rounded to whole tokens, from 1 to 2**31 - 1."""
    return np.clip(np.rint(values), 1, LONGEST).astype(np.int64)
