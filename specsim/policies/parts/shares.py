"""Which share of drafts is accepted up to each position, over the last steps or smoothed."""

from math import nan

from specsim.core.compiled import inner
from specsim.core.desk import FloatRows, Floats, Ints
from specsim.decisions.loops import View
from specsim.policies.parts.estimate import longest_of
from specsim.policies.parts.fading import keep


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
