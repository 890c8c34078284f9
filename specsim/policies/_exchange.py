"""What a second is worth in tokens, and what to verify at that price."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import Ints, StepLoad, StepOutcome
from specsim.policies._times import TimesOf

_LEAST_GAIN = 2.0**-10  # tokens; what gains less is worth no place in a batch


class Exchange:
    """The long-run rate of tokens per second, for batches of any size.

    A policy that maximises tokens - rate x time in every step, where rate is the ratio of the two
    that it arrives at, maximises that ratio over all steps (Dinkelbach 1967); the best ratio within
    each step does not. Prompts are to be read whatever is drafted, so steps with prefills are left
    out. Time per step and tokens per sequence change slowly; batches do not, so that the rate is
    made of the former for a given batch.

    Args:
        window: Steps after which one has faded to 1/e.
    """

    def __init__(self, window: float) -> None:
        self._keep = 1.0 - 1.0 / window
        self._tokens = self._sequences = self._time = self._steps = 0.0

    def add(self, outcome: StepOutcome) -> None:
        """Take a step in."""
        time = outcome.target_time + outcome.draft_time + outcome.overhead_time
        if outcome.load.prefill_tokens or not len(outcome.requests) or time <= 0.0:
            return
        keep = self._keep
        self._tokens = keep * self._tokens + outcome.output_tokens
        self._sequences = keep * self._sequences + len(outcome.requests)
        self._time = keep * self._time + time
        self._steps = keep * self._steps + 1.0

    def rate(self, num: int) -> float:
        """Return tokens per second of a batch of so many sequences; 0 while it is not known."""
        if not self._time:
            return 0.0
        return num * self._tokens / self._sequences * self._steps / self._time


class Spent(NamedTuple):
    """What is best verified."""

    lens: Ints
    """Of each sequence, tokens."""
    value: float
    """Tokens - rate x time; tokens per second where the rate is not known."""


def value_of(tokens: Any, time: Any, rate: float) -> Any:
    """Return what steps are worth that emit so many tokens in so many seconds."""
    return tokens - rate * time if rate else tokens / time


def spend(  # noqa: PLR0913 - all of it counts
    gains: NDArray[np.float64],
    load: StepLoad,
    step_times: TimesOf,
    rate: float,
    *,
    most: int,
    draft_time: float = 0.0,
    token_time: float = 0.0,
) -> Spent:
    """Return how much of each draft is best verified.

    The B largest gains are the best B tokens, since gains do not rise along a draft (proof:
    `goodput_exact`); so it is enough to try every B. Of equal gains all are taken or none.

    Args:
        gains: P(the first j tokens of draft i are accepted), shape (n, longest).
        load: Of the step that verifies nothing.
        rate: What a second is worth, tokens; 0: not known, and goodput is maximised.
        most: Tokens that may be verified.
        draft_time: Seconds that drafting takes, whatever is verified.
        token_time: Seconds that each verified token takes to draft.
    """
    falling = np.sort(gains[gains > _LEAST_GAIN])[: -most - 1 : -1] if most > 0 else gains[:0, 0]
    num = len(falling)
    emitted = np.full(num + 1, float(load.num_requests))
    emitted[1:] += np.add.accumulate(falling)
    times = step_times(load, np.arange(load.batched_tokens, load.batched_tokens + num + 1), 0)
    times += draft_time + token_time * np.arange(num + 1)
    values = value_of(emitted, times, rate)
    best = int(values.argmax())
    value = float(values[best])
    if not best:
        return Spent(np.zeros(len(gains), dtype=np.int64), value)
    lens: Ints = np.count_nonzero(gains >= falling[best - 1], axis=1)
    if (over := int(lens.sum()) - most) > 0:  # equal gains beyond what may be verified
        ends = np.cumsum(lens[::-1])
        lens[::-1] -= np.diff(np.minimum(ends, over), prepend=0)
    return Spent(lens, value)
