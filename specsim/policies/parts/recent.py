"""What the last steps say: numbers in rings, shares of drafts accepted, and gates on a mean."""

from math import nan
from typing import Protocol

from specsim.core.compiled import inner
from specsim.core.desk import FloatRows, Floats, Ints
from specsim.decisions.loops import View
from specsim.policies.parts.estimate import longest_of


class Gate(Protocol):
    """Shuts for good once the mean of the last numbers is too low."""

    window: int  # numbers that a mean is taken over; 0: it stays open
    threshold: float
    num: int  # all that have been counted
    total: float  # of those in the window
    is_shut: int


@inner
def count(gate: Gate, ring: Floats, number: float) -> None:
    """Take in a number, unless it is shut; shut it where the mean of a whole window is too low.

    Args:
        ring: The last numbers; one place more than the window, so that it has one.
    """
    if gate.is_shut or not gate.window:
        return
    place = gate.num % gate.window
    gate.total = gate.total + number - ring[place]
    ring[place] = number
    gate.num += 1
    if gate.num >= gate.window:
        gate.is_shut = gate.total / gate.window < gate.threshold


_FADING = 0.85
"""What a number weighs by that after it."""


@inner
def keep(rings: FloatRows, counts: Ints, row: int, number: float) -> None:
    """Put a number into one of some rings, of which it is known how many they have had."""
    rings[row, counts[row] % rings.shape[1]] = number
    counts[row] += 1


@inner
def change_of_variance(ring: Floats, count: int) -> float:
    """Return the variance of the last third of `count` numbers over that of all in the ring.

    Each weighs less than the next. Of fewer than two numbers 0; 20 where there is none over all.

    Args:
        ring: The last ones, the newest at (count - 1) % its size.
    """
    weight, total, first, second, late = 1.0, 0.0, 0.0, 0.0, 0.0
    num, place = min(count, len(ring)), (count - 1) % len(ring)
    if num < 2:
        return 0.0
    for age in range(num):
        number = ring[place]
        place = place - 1 if place else len(ring) - 1
        total, first = total + weight, first + weight * number
        second += weight * number * number
        weight *= _FADING
        if age < max(num // 3, 1):
            late = second / total - (first / total) ** 2
    steady = second / total - (first / total) ** 2
    return max(late, 0.0) / steady if steady >= 1e-6 else 20.0


@inner
def note_shares(view: View, rings: FloatRows, counts: Ints) -> bool:
    """Take a step into the rings, one for each position; return whether it had drafts."""
    longest, num = longest_of(view), 0
    for row in range(view.step[0].num_rows):
        num += view.draft_lens[row] > 0
    for place in range(longest):
        accepted = 0
        for row in range(view.step[0].num_rows):
            accepted += view.accepted_lens[row] > place
        keep(rings, counts, place, accepted / num)
    return longest > 0


@inner
def mean_share(rings: FloatRows, counts: Ints, place: int, first: float, last: float) -> float:
    """Return the mean share of a position over its ring.

    Where that is empty, `last`, of the position before, times the mean ratio of those before it, of
    which `first` is the share of the first; NaN at the first.
    """
    window = rings.shape[1]
    known: int = min(counts[place], window)
    total = 0.0
    for age in range(known, 0, -1):
        total += rings[place, (counts[place] - age) % window]
    if known:
        return total / known
    if place <= 1:
        return last if place else nan
    if first <= 0.0:
        return 0.0
    ratio: float = (last / first) ** (1.0 / (place - 1))
    return last * min(1.0, ratio)


@inner
def smooth_shares(view: View, shares: Floats, weight: float) -> None:
    """Move shares towards those of a step, where drafts reach a position; none exceeds the last."""
    step = view.step[0]
    for place in range(step.max_draft_len):
        drafted, accepted = 0, 0
        for row in range(step.num_rows):
            drafted += view.draft_lens[row] > place
            accepted += view.draft_lens[row] > place and view.accepted_lens[row] > place
        if drafted:
            fresh = weight * (accepted / drafted)
            shares[place] = (1.0 - weight) * shares[place] + fresh
    for place in range(1, step.max_draft_len):
        shares[place] = min(shares[place], shares[place - 1])
