"""Statistics of the last steps: rings of numbers, shares of drafts accepted, gates on a mean."""

from math import nan
from typing import Protocol

from specsim.core.compiled import inner
from specsim.core.desk import FloatRows, Floats, Ints
from specsim.decisions.loops import View
from specsim.policies.parts.estimate import longest_of


class Gate(Protocol):
    """A gate that shuts for good once the mean of the last numbers is below a threshold."""

    window: int  # numbers in the mean; 0: the gate never shuts
    threshold: float
    num: int  # numbers counted so far
    total: float  # sum of the window
    is_shut: int


@inner
def count(gate: Gate, ring: Floats, number: float) -> None:
    """Count a number while the gate is open; shut it if the mean of a full window is too low.

    Args:
        ring: The last numbers; has one place more than the window, so that it is never empty.
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
"""Weight of a number relative to the one after it."""


@inner
def keep(rings: FloatRows, counts: Ints, row: int, number: float) -> None:
    """Put a number into the ring of a row; `counts` are the numbers that each ring has had."""
    rings[row, counts[row] % rings.shape[1]] = number
    counts[row] += 1


@inner
def change_of_variance(ring: Floats, count: int) -> float:
    """Return the variance of the last third of `count` numbers over that of all in the ring.

    Newer numbers weigh more. 0 for fewer than two numbers; 20 if they have no variance.

    Args:
        ring: The last numbers, the newest at (count - 1) % its size.
        count: Numbers that the ring has had.
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
    """Note, in a ring per position, the share of drafts accepted there; return if it had any."""
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

    If the ring is empty: `last`, the share of the position before, times the mean ratio of
    neighbours up to there, with `first` the share of position 0; NaN at position 0.
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
    """Smooth the share accepted up to each position that a step's drafts reach; keep it falling."""
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
