"""What a step of a server takes, learned while it serves."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.desk import Desk, Floats, loop_on
from specsim.core.desk import Ints as Numbers
from specsim.core.step import Ints, StepLoad
from specsim.profile.step_time import PRICING_SIZES, Pricing

_BELIEVED = np.array([0.02, 2e-5, 1e-8, 1e-4, 1e-3])
"""Seconds until something has been measured: of a step, per batched token, per context token, of a
step that drafts, per token of its drafts."""
_UNSURE = 10.0  # times what is believed, as a standard deviation
_NOISE = 0.1  # of a measured time, as a share of it
_KEPT = 0.999  # share of what earlier steps say that a step leaves: machines change
_SHORTEST = 1e-6  # seconds


class _Known(NamedTuple):
    """What is known of step times."""

    seconds: Floats  # as `_BELIEVED`
    spread: Floats  # covariance of what is believed, row after row
    most: Floats  # variances that it never exceeds: what is never tried must not grow without end
    row: Floats  # as `LearnedTimes.row`
    gain: Floats  # scratch


@loop_on(_Known)
def learn(known: _Known) -> int:
    """Learn from a step, by recursive least squares that forget."""
    seconds, spread, row, gain = known.seconds, known.spread, known.row, known.gain
    measured, num = row[5], len(seconds)
    error, variance = measured, (_NOISE * measured) * (_NOISE * measured)
    for i in range(num):
        gain[i] = 0.0
        for j in range(num):
            spread[num * i + j] /= _KEPT
            gain[i] += spread[num * i + j] * row[j]
        error -= row[i] * seconds[i]
        variance += row[i] * gain[i]
    for i in range(num):
        seconds[i] += gain[i] / variance * error
        for j in range(num):
            spread[num * i + j] -= gain[i] / variance * gain[j]
    for i in range(num):
        own = spread[num * i + i]
        if own > known.most[i]:
            scale = (known.most[i] / own) ** 0.5
            for j in range(num):
                spread[num * i + j] *= scale
                spread[num * j + i] *= scale
    return 0


class _Answering(NamedTuple):
    """A step that loops ask for, of `Pricing`."""

    load: Numbers
    asked: Numbers
    answer: Floats
    seconds: Floats


@loop_on(_Answering)
def answer(asking: _Answering) -> int:
    """Answer what the step takes; as `LearnedTimes.step_time`."""
    load, asked, seconds = asking.load, asking.asked, asking.seconds
    longest = 0 if asked[2] else load[4]
    time = seconds[0] + seconds[1] * asked[1] + seconds[2] * load[0]
    time = time + seconds[3] * (longest > 0) + seconds[4] * longest
    asking.answer[0] = max(time, _SHORTEST)
    return 0


class LearnedTimes:
    """Step times, linear in what a step holds.

    References:
        Haykin, "Adaptive Filter Theory", chapter 10 (exponentially weighted RLS).
    """

    def __init__(self) -> None:
        most = (_UNSURE * _BELIEVED) ** 2
        self.seconds: NDArray[np.float64] = _BELIEVED.copy()
        self.row: NDArray[np.float64] = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        """Of a step that `learn` is to learn from: 1, batched tokens, context tokens, whether it
        drafts, and how much; then the seconds it took."""
        known = _Known(self.seconds, np.diag(most).ravel(), most, self.row, np.zeros(5))
        self.learn = learn.bind(known)
        load, asked = np.zeros(PRICING_SIZES["load"], np.int64), np.array([1, 0, 0, 0])
        found = np.zeros(1)
        ask = answer.bind(_Answering(load, asked, found, self.seconds))
        self.answers: Desk[Pricing] = Desk(
            Pricing, rows=256, costs=8, load=load, asked=asked, answer=found, ask=ask
        )
        """For loops, which ask it without Python."""

    def step_time(self, load: StepLoad, draft_len: int | list[int] | Ints) -> float:
        """Return the seconds of a step that then drafts so many tokens, at most, per sequence."""
        longest = draft_len if isinstance(draft_len, int) else int(np.max(draft_len))
        return float(self.step_times(load, load.batched_tokens, longest))

    def step_times(
        self, load: StepLoad, batched_tokens: int | Ints, draft_len: int | list[int] | Ints
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
