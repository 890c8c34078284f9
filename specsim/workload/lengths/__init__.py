"""Lengths: how long prompts and outputs are."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from specsim.core.blame import held_to, is_shipped
from specsim.core.families import Family, Member
from specsim.workload.trace import Trace

__all__ = ["LENGTHS", "LONGEST", "Lengths", "drawn", "drawn_sessions", "to_tokens"]

LONGEST = 2**31 - 1  # tokens of a prompt or an answer; far beyond any model's context


class Lengths(Member):
    """How long prompts and outputs are; some sources also know the tokens themselves."""

    kind: str

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return `count` requests without arrivals."""

    def draw_sessions(self, rng: np.random.Generator, count: int) -> Trace:
        """Return the requests of `count` sessions; by default each session is one request."""
        return self.draw(rng, count)

    @property
    def in_sessions(self) -> bool:
        """Whether the requests are turns of sessions."""
        return False

    @property
    def mean_turns(self) -> float:
        """Mean number of requests in a session."""
        return 1.0

    @property
    def mean_len(self) -> float:
        """Mean tokens of prompt and output together; 0 if a file determines them."""
        return 0.0

    @property
    def num_rows(self) -> int | None:
        """Number of requests in the source; None if it is unlimited."""
        return None


LENGTHS = Family("workload.lengths", Lengths)


def drawn(lengths: Lengths, rng: np.random.Generator, count: int) -> Trace:
    """Return `Lengths.draw`; a PluginError if a user's class breaks its rules."""
    trace = lengths.draw(rng, count)
    is_right = is_shipped(lengths) or (_is_whole(trace) and len(trace) == count)
    held_to(lengths, "draw", trace, is_right, f"a Trace of {count} requests, {_WHOLE}")
    return trace


def drawn_sessions(lengths: Lengths, rng: np.random.Generator, count: int) -> Trace:
    """Return `Lengths.draw_sessions`; a PluginError if a user's class breaks its rules."""
    trace = lengths.draw_sessions(rng, count)
    is_right = is_shipped(lengths) or (_is_whole(trace) and trace.num_sessions == count)
    rule = f"a Trace of {count} sessions, or requests, {_WHOLE}"
    has_sessions = type(lengths).draw_sessions is not Lengths.draw_sessions
    held_to(lengths, "draw_sessions" if has_sessions else "draw", trace, is_right, rule)
    return trace


_WHOLE = "whose lengths are arrays of whole numbers of at least 1"


def _is_whole(trace: Trace) -> bool:
    if not isinstance(trace, Trace):
        return False
    columns = (trace.prompt_lens, trace.output_lens)
    if not all(isinstance(each, np.ndarray) and each.dtype.kind in "iu" for each in columns):
        return False
    same = columns[0].shape == columns[1].shape == (len(trace),)
    return same and all(bool(np.all(each >= 1)) for each in columns)


def to_tokens(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the values rounded to whole tokens, from 1 to 2**31 - 1."""
    return np.clip(np.rint(values), 1, LONGEST).astype(np.int64)
