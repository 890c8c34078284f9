"""What a draft that is yet to be made may come to, by how drafts fared lately."""

from typing import NamedTuple, Protocol

import numpy as np

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Desk, FloatRows, Floats, Ints
from specsim.decisions.loops import row_of
from specsim.policies.draft_goodput import KINDS

LEVELS = 32
"""Of survival, equally wide."""
_REMEMBERED = 2048.0  # drafts after which one has faded to 1/e in the prospects
_FIRSTS = 64  # last first tokens, by which drafts are continued that ended early
STALE_DRAFTS = 32.0
"""That all before count for at most, where other traffic may have come."""
_COMMON = 8.0  # requests that the last drafts are of, at least
_PRIOR_DRAFTS = 4.0
_ALIKE_DRAFTS = 64.0  # that those of all classes count for in the prospects of one


class Course(Protocol):
    """Whether first tokens survived as was foretold; means over the last drafts, fading."""

    foretold: float  # of those of a step that is decided about
    error: float  # what they survived, less that;
    misses: float  # its square,
    misses_left: float  # and the square of what differs from the mean of those before


class Seen(NamedTuple):
    """Drafts and what they survived; tables of places and levels, one row after the other."""

    counts: FloatRows
    """Drafts of each class, by place and level, then their survival; shape (KINDS, 2 x longest x
    levels)."""
    prior: Floats  # of one row
    tokens: Floats
    """That are verified down to each level, the surest first, of drafts of 1, 2, ... tokens, shape
    (longest, levels), if what is likeliest is;"""
    gained: Floats
    """and those of them that are accepted."""
    nums: Floats  # drafts of each class, fading
    firsts: Floats  # survival of the last first tokens
    decline: FloatRows
    """Survival at each place, and what it would be if all places were alike; sums, fading; shape
    (2, longest)."""
    ahead: FloatRows  # drafts of a step by place and level, known or expected; and their survival
    weights: Floats  # drafts of a batch or a step, by class; then what one of that class counts for
    classes: Ints  # of the drafts of a batch, or of those that are taken in
    taken_lens: Ints  # of those that are taken in, and
    survival: Floats  # shape (n, longest): of their tokens, continued where they end early
    course: Rows[Course]  # how far off that was
    sizes: Ints  # n, longest, first tokens that are known


@inner
def _count_classes(desk: Seen) -> None:
    """Count the drafts of each class."""
    for kind in range(KINDS):
        desk.weights[kind] = 0.0
    for row in range(desk.sizes[0]):
        desk.weights[desk.classes[row]] += 1.0


@inner
def foresee(desk: Seen) -> None:
    """Add up what all drafts of a batch of such classes may come to, the surest tokens first."""
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
        tokens, accepted = 0.0, 0.0  # side by side: each sum waits for its last term
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
    """Put the first tokens of drafts before those that are known, and note how drafts decline."""
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
    """Forget most if more than half of what was foretold wrongly is common to the last drafts.

    Requests differ: so many steps of one, its `life`, say no more than a step of so many requests.
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
    """Have all drafts so far count for so many at most: since they were made much may differ."""
    keep = most / max(desk.nums.sum(), most)
    for kind in range(KINDS):
        desk.nums[kind] *= keep
        for index in range(desk.counts.shape[1]):
            desk.counts[kind, index] *= keep


@inner
def clear(desk: Seen, place: int) -> None:
    """Forget what the drafts of a step survive at a place."""
    for at in range(place * LEVELS, (place + 1) * LEVELS):
        desk.ahead[0, at] = desk.ahead[1, at] = 0.0


@inner
def put_survival(desk: Seen, place: int, num: float, survival: float) -> None:
    """Note that so many of them survive with this probability there."""
    at = place * LEVELS + min(int(survival * LEVELS), LEVELS - 1)
    desk.ahead[0, at] += num
    desk.ahead[1, at] += num * survival


@inner
def foretell(desk: Seen, place: int) -> None:
    """Work out the same of a token to come, by the place before it and by other first tokens."""
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
    """Add up what all drafts come to down to a place, the surest tokens first."""
    tokens, accepted = 0.0, 0.0
    for below in range(LEVELS):
        choice = place * LEVELS + below
        at = place * LEVELS + LEVELS - 1 - below
        tokens += desk.ahead[0, at]
        accepted += desk.ahead[1, at]
        desk.tokens[choice] = tokens + (desk.tokens[choice - LEVELS] if place else 0.0)
        desk.gained[choice] = accepted + (desk.gained[choice - LEVELS] if place else 0.0)


def prospects(longest: int, prior: float) -> Desk[Seen]:
    """Return how likely the first, second, ... token of a draft survives: the distribution.

    What is drafted is trimmed when its confidences are known, so that a j-th token is worth
    E[max(S_j - price, 0)], for which all of the distribution of S_j counts, not its mean. It is
    known for each class of recent success, with that of all classes as the prior; `prior` is alpha
    before any draft. Drafts that end early are continued by others' first tokens and the usual
    decline.
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
