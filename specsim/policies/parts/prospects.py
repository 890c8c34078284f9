"""Prospects: the expected survival of drafts not made yet, learned from recent drafts."""

from typing import NamedTuple, Protocol

import numpy as np

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Desk, FloatRows, Floats, Ints
from specsim.decisions.loops import row_of
from specsim.policies.draft_goodput import KINDS

LEVELS = 32
"""Number of levels, of equal width, into which survival from 0 to 1 is divided."""
_REMEMBERED = 2048.0  # drafts after which an observation has faded to 1/e
_FIRSTS = 64  # number of last first tokens kept, by which short drafts are continued
STALE_DRAFTS = 32.0
"""Most weight, in drafts, of all earlier drafts once the traffic may have changed."""
_COMMON = 8.0  # least number of requests over which an error counts as common
_PRIOR_DRAFTS = 4.0
_ALIKE_DRAFTS = 64.0  # weight, in drafts, of all classes in the prospects of one


class Course(Protocol):
    """How well the survival of first tokens was predicted; fading means over the last drafts."""

    foretold: float  # mean survival of first tokens predicted for the next step
    error: float  # mean error: survival less prediction
    misses: float  # mean squared error
    misses_left: float  # mean squared error after subtracting the mean error before


class Seen(NamedTuple):
    """Observed survival of draft tokens by class of request, place in the draft and level."""

    counts: FloatRows
    """Drafts by place and level, then the sum of their survival; shape (KINDS, 2 x longest x
    levels)."""
    prior: Floats  # one row of `counts`, before any draft
    tokens: Floats
    """Output, shape (longest, levels): tokens verified of drafts of 1, 2, ... tokens if all those
    down to a level of survival are, the likeliest first."""
    gained: Floats
    """Output: tokens accepted of these, in the same shape."""
    nums: Floats  # drafts of each class, fading
    firsts: Floats  # survival of the last first tokens, the newest first
    decline: FloatRows
    """Fading sums, shape (2, longest): survival at each place, and what it would be if each token
    were as likely as a first one."""
    ahead: FloatRows  # drafts of a step by place and level, known or expected; sum of survival
    weights: Floats  # scratch: drafts of each class; then the weight of that class
    classes: Ints  # class of each draft of the batch, or of each observed draft
    taken_lens: Ints  # lengths of observed drafts, tokens
    survival: Floats  # shape (n, longest): their survival, continued where a draft ends early
    course: Rows[Course]
    sizes: Ints  # n, longest, number of `firsts` that are known


@inner
def _count_classes(desk: Seen) -> None:
    """Count the drafts of each class."""
    for kind in range(KINDS):
        desk.weights[kind] = 0.0
    for row in range(desk.sizes[0]):
        desk.weights[desk.classes[row]] += 1.0


@inner
def foresee(desk: Seen) -> None:
    """Set `tokens` and `gained` for a batch with drafts of the given classes."""
    counts, tokens_of, gained_of = desk.counts, desk.tokens, desk.gained
    weights = desk.weights
    size = desk.sizes[1] * LEVELS
    _count_classes(desk)
    alike = 0.0
    all_nums = _PRIOR_DRAFTS
    for kind in range(KINDS):
        weights[kind] /= desk.nums[kind] + _ALIKE_DRAFTS
        alike += weights[kind]
        all_nums += desk.nums[kind]
    alike = alike * _ALIKE_DRAFTS / all_nums
    for place in range(desk.sizes[1]):
        tokens, accepted = 0.0, 0.0  # two sums in one loop: faster than one after the other
        for below in range(LEVELS):
            choice = place * LEVELS + below
            at = place * LEVELS + LEVELS - 1 - below
            tokens += alike * desk.prior[at]
            accepted += alike * desk.prior[size + at]
            for kind in range(KINDS):
                tokens += (weights[kind] + alike) * counts[kind, at]
                accepted += (weights[kind] + alike) * counts[kind, size + at]
            tokens_of[choice] = tokens + (tokens_of[choice - LEVELS] if place else 0.0)
            gained_of[choice] = accepted + (gained_of[choice - LEVELS] if place else 0.0)


@inner
def note_firsts(desk: Seen) -> None:
    """Add the survival of first tokens to `firsts`, and how it falls along drafts to `decline`."""
    firsts, decline, survival = desk.firsts, desk.decline, desk.survival
    num, longest, known = desk.sizes[0], desk.sizes[1], desk.sizes[2]
    known = min(known + num, _FIRSTS)
    for index in range(known - 1, -1, -1):
        firsts[index] = firsts[index - num] if index >= num else survival[index * longest]
    desk.sizes[2] = known
    shortest = longest
    for row in range(num):
        shortest = min(shortest, desk.taken_lens[row])
    keep = max(1.0 - num / _REMEMBERED, 0.2)
    for place in range(longest if shortest > 1 else 0):
        decline[0, place] *= keep
        decline[1, place] *= keep
        for row in range(num if 0 < place < shortest else 0):
            at = row * longest + place
            decline[0, place] += survival[at]
            decline[1, place] += survival[at - 1] * firsts[(row + 7 * place) % known]


@inner
def take_in(desk: Seen) -> None:
    """Count drafts by class, place and level, as if all had been drafted to the end."""
    counts, decline, survival = desk.counts, desk.decline, desk.survival
    num, longest, known = desk.sizes[0], desk.sizes[1], desk.sizes[2]
    size = longest * LEVELS
    _count_classes(desk)
    for kind in range(KINDS):
        keep = max(1.0 - desk.weights[kind] / _REMEMBERED, 0.2)
        desk.nums[kind] = keep * desk.nums[kind] + desk.weights[kind]
        for index in range(2 * size if keep < 1.0 else 0):
            counts[kind, index] *= keep
    for row in range(num):
        for place in range(longest):
            at = row * longest + place
            if place >= desk.taken_lens[row]:
                other = desk.firsts[(row + 7 * place) % known]
                other *= decline[0, place] / decline[1, place]
                survival[at] = survival[at - 1] * min(other, 1.0)
            level = place * LEVELS + min(int(survival[at] * LEVELS), LEVELS - 1)
            counts[desk.classes[row], level] += 1.0
            counts[desk.classes[row], size + level] += survival[at]


@inner
def note_course(desk: Seen, life: float) -> None:
    """Forget most drafts if over half of the squared prediction error is common to the last ones.

    With few requests a common error may be due to these requests, so that it must last longer:
    `life` is the number of steps in which a request decodes.
    """
    course, num, mean = desk.course[0], desk.sizes[0], 0.0
    for row in range(num):
        mean += desk.survival[row * desk.sizes[1]] / num
    error, last = mean - course.foretold, max(STALE_DRAFTS, (_COMMON - num) * life)
    new = num / (num + last)
    course.misses += new * (error**2 - course.misses)
    course.misses_left += new * ((error - course.error) ** 2 - course.misses_left)
    course.error += new * (error - course.error)
    if course.misses_left < course.misses / 2.0:
        age(desk, STALE_DRAFTS)


@inner
def age(desk: Seen, most: float) -> None:
    """Scale all observed drafts down to a weight of at most `most`, since traffic may differ."""
    keep = most / max(desk.nums.sum(), most)
    for kind in range(KINDS):
        desk.nums[kind] *= keep
        for index in range(desk.counts.shape[1]):
            desk.counts[kind, index] *= keep


@inner
def clear(desk: Seen, place: int) -> None:
    """Empty `ahead` at a place."""
    for at in range(place * LEVELS, (place + 1) * LEVELS):
        desk.ahead[0, at] = desk.ahead[1, at] = 0.0


@inner
def put_survival(desk: Seen, place: int, num: float, survival: float) -> None:
    """Add `num` drafts of this survival to `ahead` at a place."""
    at = place * LEVELS + min(int(survival * LEVELS), LEVELS - 1)
    desk.ahead[0, at] += num
    desk.ahead[1, at] += num * survival


@inner
def foretell(desk: Seen, place: int) -> None:
    """Predict `ahead` at a place from the place before and the survival of first tokens."""
    ahead, known, share = desk.ahead, desk.sizes[2], desk.decline[0, place] / desk.decline[1, place]
    clear(desk, place)
    for before in range((place - 1) * LEVELS, place * LEVELS):
        num = ahead[0, before]
        if num > 0.0:
            for index in range(known):
                rate = min(share * desk.firsts[index], 1.0)
                put_survival(desk, place, num / known, rate * ahead[1, before] / num)


@inner
def add_surest(desk: Seen, place: int) -> None:
    """Set `tokens` and `gained` of drafts that end at a place, from `ahead`."""
    tokens, accepted = 0.0, 0.0
    for below in range(LEVELS):
        choice = place * LEVELS + below
        at = place * LEVELS + LEVELS - 1 - below
        tokens += desk.ahead[0, at]
        accepted += desk.ahead[1, at]
        desk.tokens[choice] = tokens + (desk.tokens[choice - LEVELS] if place else 0.0)
        desk.gained[choice] = accepted + (desk.gained[choice - LEVELS] if place else 0.0)


def prospects(longest: int, prior: float) -> Desk[Seen]:
    """Return a desk for the distribution of the survival S_j of the j-th token of a draft.

    Drafts are trimmed once their confidences are known, so that a j-th token is worth
    E[max(S_j - price, 0)], which depends on the whole distribution of S_j. There is one for each
    class of recent acceptance, shrunk to that of all classes; `prior` is alpha before any draft. A
    draft that ends early is continued with other drafts' first tokens and the usual decline.
    """
    survival = prior ** np.arange(1, longest + 1)
    levels = np.arange(longest) * LEVELS + (survival * (LEVELS - 1e-9)).astype(np.intp)
    counts = np.zeros((2, longest * LEVELS))
    counts[0, levels], counts[1, levels] = _PRIOR_DRAFTS, _PRIOR_DRAFTS * survival
    return Desk(
        Seen,
        counts=np.zeros((KINDS, counts.size)),
        prior=counts.ravel(),
        nums=np.zeros(KINDS),
        ahead=np.zeros((2, longest * LEVELS)),
        weights=KINDS,
        firsts=np.full(_FIRSTS, prior),
        decline=np.full((2, longest), 16.0),
        course=row_of(Course),
        sizes=np.array([0, longest, 1]),
    )
