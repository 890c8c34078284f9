"""Bandits: the arm that a step has played, its reward, and the arm to play next."""

from math import inf, log, sqrt
from typing import Protocol

from specsim.core.compiled import inner
from specsim.core.desk import Floats
from specsim.decisions.loops import View


class Bins(Protocol):
    """Steps in bins that play one arm each; bins in blocks, each twice as long as the last."""

    arm: int  # played in the bin
    steps_left: int  # of the bin
    number: int  # number of the bin in its block, from 1
    bin_len: int  # steps
    block_len: int  # steps


@inner
def played_k(view: View) -> int:
    """Return the common length of all drafts of a step; -1 if the step cannot be used.

    That is so where lengths differ, since sequences that joined since had no drafts, and in steps
    that read prompts, whose time is not due to k.
    """
    step = view.step[0]
    if not step.num_rows or step.prefill_tokens:
        return -1
    k = view.draft_lens[0]
    for row in range(step.num_rows):
        if view.draft_lens[row] != k:
            return -1
    return int(k)


@inner
def rate_of(view: View) -> float:
    """Return the tokens per second of a step that has ended."""
    step = view.step[0]
    rate: float = step.output_tokens / (step.target_time + step.draft_time + step.overhead_time)
    return rate


@inner
def note_reward(means: Floats, plays: Floats, arm: int, reward: float) -> None:
    """Update an arm's mean reward and number of plays."""
    total = means[arm] * plays[arm] + reward
    plays[arm] += 1.0
    means[arm] = total / plays[arm]


@inner
def ucb1(means: Floats, plays: Floats) -> int:
    """Return the arm of highest upper bound (Auer et al. 2002); each is played once first."""
    total, best, highest = 0.0, 0, -inf
    for arm in range(len(plays)):
        total += plays[arm]
    for arm in range(len(plays)):
        if plays[arm] == 0.0:
            return arm
        bound = means[arm] + sqrt(2.0 * log(total) / plays[arm])
        if bound > highest:
            best, highest = arm, bound
    return best


@inner
def next_draw(draws: Floats) -> float:
    """Return the next uniform number of `draws`, cyclically; `draws[0]` holds the place."""
    place = int(draws[0]) % (len(draws) - 1) + 1
    draws[0] = place
    return float(draws[place])


@inner
def begin_bin(bins: Bins) -> None:
    """Begin the next bin, of the next block if this block has no steps left.

    A bin has the square root of its block's steps. Before the first bin, both lengths are 1.
    """
    if bins.number * bins.bin_len >= bins.block_len:
        bins.number, bins.block_len = 0, 2 * bins.block_len
        bins.bin_len = int(sqrt(float(bins.block_len)))
    bins.number, bins.steps_left = bins.number + 1, bins.bin_len
