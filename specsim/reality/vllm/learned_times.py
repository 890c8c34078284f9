"""What a step of a server takes, learned while it serves."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import Ints, StepLoad

_BELIEVED = np.array([0.02, 2e-5, 1e-8, 1e-4, 1e-3])
"""Seconds until something has been measured: of a step, per batched token, per context token, of a
step that drafts, per token of its drafts."""
_UNSURE = 10.0  # times what is believed, as a standard deviation
_NOISE = 0.1  # of a measured time, as a share of it
_KEPT = 0.999  # share of what earlier steps say that a step leaves: machines change
_SHORTEST = 1e-6  # seconds


@dataclass(eq=False)
class LearnedTimes:
    """Step times, linear in what a step holds, by recursive least squares that forgets.

    References:
        Haykin, "Adaptive Filter Theory", chapter 10 (exponentially weighted RLS).
    """

    seconds: NDArray[np.float64] = field(default_factory=_BELIEVED.copy)
    """Shape (5,): as `_BELIEVED`."""
    spread: NDArray[np.float64] = field(default_factory=lambda: np.diag((_UNSURE * _BELIEVED) ** 2))
    """Shape (5, 5): covariance of what is believed."""

    def observe(self, load: StepLoad, draft_len: int, measured: float) -> None:
        """Learn from a step that took so many seconds and drafted so much per sequence."""
        row = _row(load, draft_len)
        spread = self.spread / _KEPT
        gain = spread @ row / (row @ spread @ row + (_NOISE * measured) ** 2)
        self.seconds = self.seconds + gain * (measured - row @ self.seconds)
        self.spread = spread - np.outer(gain, row @ spread)
        most = (_UNSURE * _BELIEVED) ** 2  # what is never tried must not grow without end
        scale = np.sqrt(np.minimum(most / np.maximum(np.diag(self.spread), 1e-300), 1.0))
        self.spread *= np.outer(scale, scale)

    def step_time(self, load: StepLoad, draft_len: int | list[int] | Ints) -> float:
        """Return the seconds of a step that then drafts so many tokens, at most, per sequence."""
        longest = draft_len if isinstance(draft_len, int) else int(np.max(draft_len))
        start, per_token, per_context, drafting, per_draft = self.seconds.tolist()
        time = start + per_token * load.batched_tokens + per_context * load.context_tokens
        return max(float(time + drafting * (longest > 0) + per_draft * longest), _SHORTEST)

    def step_times(
        self, load: StepLoad, batched_tokens: Ints, draft_len: int | list[int] | Ints
    ) -> NDArray[np.float64]:
        """Return the same for many numbers of batched tokens, shape of those."""
        start, per_token, per_context, drafting, per_draft = self.seconds.tolist()
        lens = np.asarray(draft_len)
        times = start + per_token * batched_tokens + per_context * load.context_tokens
        times = times + drafting * (lens > 0) + per_draft * lens
        found: NDArray[np.float64] = np.maximum(times, _SHORTEST)
        return found

    def draft_time(self, draft_len: int) -> float:
        """Return how much of that is drafting, seconds; never below 0."""
        return max(float(self.seconds[3] * (draft_len > 0) + self.seconds[4] * draft_len), 0.0)


def _row(load: StepLoad, draft_len: int) -> NDArray[np.float64]:
    return np.array(
        [1.0, load.batched_tokens, load.context_tokens, draft_len > 0, draft_len], dtype=np.float64
    )
