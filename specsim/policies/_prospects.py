"""What a draft that is yet to be made may come to, by how drafts fared lately."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import inner
from specsim.core.desk import Desk, FloatRows, Floats, Ints, PerRequest, loop_on
from specsim.core.step import StepOutcome
from specsim.policies.draft_goodput import KINDS

_RECENT = 0.9  # share of a request's trials that the next draft leaves
_LEVELS = 32  # of survival, equally wide
_REMEMBERED = 2048.0  # drafts after which one has faded to 1/e in the prospects
_FIRSTS = 64  # last first tokens, by which drafts are continued that ended early
_PRIOR_DRAFTS = 4.0
_ALIKE_DRAFTS = 64.0  # that those of all classes count for in the prospects of one


class Recent(NamedTuple):
    """Counts of each request that fade with every draft of it."""

    counts: FloatRows
    """Accepted tokens and trials, shape (requests, 2)."""
    requests: Ints
    draft_lens: Ints
    accepted_lens: Ints
    classes: Ints
    """Filled in."""
    sizes: Ints
    """n."""


@loop_on(Recent)
def add_recent(desk: Recent) -> int:
    """Take in what became of a step's drafts, and find the class of each request."""
    counts = desk.counts
    for row in range(desk.sizes[0]):
        request, accepted, drafted = (
            desk.requests[row],
            desk.accepted_lens[row],
            desk.draft_lens[row],
        )
        if drafted > 0:
            trials = accepted + (1 if accepted < drafted else 0)
            counts[request, 0] = _RECENT * counts[request, 0] + accepted
            counts[request, 1] = _RECENT * counts[request, 1] + trials
        # One trial in two halves is all that is known at first.
        share = (counts[request, 0] + 0.5) / (counts[request, 1] + 1.0)
        desk.classes[row] = int(share * (KINDS - 1e-9))
    return 0


class Recents:
    """How the last drafts of each request fared, in classes from poor to good.

    Text is easy or hard to draft for a while, which confidences know nothing of.
    """

    def __init__(self) -> None:
        self._desk = Desk(Recent, add_recent, counts=PerRequest(0.0, 2))
        self._classes = PerRequest((KINDS - 1) // 2, dtype=np.int64)

    def classes(self, requests: Ints) -> Ints:
        """Return the class of each request, below `KINDS`; middling before it was drafted for."""
        return self._classes.of(requests)

    def add(self, outcome: StepOutcome) -> None:
        """Take in what became of a step's drafts."""
        requests = outcome.requests
        desk = self._desk.put(outcome)
        self._desk.runs[0]()
        self._classes.up_to(requests)[requests] = desk.classes[: len(requests)]


class Seen(NamedTuple):
    """Drafts and what they survived; tables of places and levels, one row after the other."""

    counts: FloatRows
    """Drafts of each class, by place and level, then their survival; shape (KINDS, 2 x longest x
    levels)."""
    prior: Floats
    """Of one row."""
    expected: FloatRows
    """Tokens verified and tokens accepted down to each level, the surest first, of drafts of 1, 2,
    ... tokens; shape (2, longest x levels)."""
    nums: Floats
    """Drafts of each class, fading."""
    firsts: Floats
    """Survival of the last first tokens."""
    decline: FloatRows
    """Survival at each place, and what it would be if all places were alike; sums, fading; shape
    (2, longest)."""
    weights: Floats
    """Drafts of a batch or a step, by class; then what one of that class counts for."""
    classes: Ints
    draft_lens: Ints
    survival: Floats
    """Shape (n, longest): of drafts that are taken in, and continued where they end early."""
    sizes: Ints
    """n, longest, first tokens that are known."""


@inner
def _count_classes(desk: Seen) -> None:
    """Count the drafts of each class."""
    for kind in range(KINDS):
        desk.weights[kind] = 0.0
    for row in range(desk.sizes[0]):
        desk.weights[desk.classes[row]] += 1.0


@loop_on(Seen)
def foresee(desk: Seen) -> int:
    """Add up what all drafts of a batch of such classes may come to, the surest tokens first."""
    counts, expected, weights = desk.counts, desk.expected, desk.weights
    size = desk.sizes[1] * _LEVELS
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
        for below in range(_LEVELS):
            choice = place * _LEVELS + below
            at = place * _LEVELS + _LEVELS - 1 - below
            tokens += alike * desk.prior[at]
            accepted += alike * desk.prior[size + at]
            for kind in range(KINDS):
                tokens += (weights[kind] + alike) * counts[kind, at]
                accepted += (weights[kind] + alike) * counts[kind, size + at]
            expected[0, choice] = tokens + (expected[0, choice - _LEVELS] if place else 0.0)
            expected[1, choice] = accepted + (expected[1, choice - _LEVELS] if place else 0.0)
    return 0


@loop_on(Seen)
def note_firsts(desk: Seen) -> int:
    """Put the first tokens of drafts before those that are known, and note how drafts decline."""
    firsts, decline, survival = desk.firsts, desk.decline, desk.survival
    num, longest, known = desk.sizes[0], desk.sizes[1], desk.sizes[2]
    known = min(known + num, _FIRSTS)
    for index in range(known - 1, -1, -1):
        firsts[index] = firsts[index - num] if index >= num else survival[index * longest]
    desk.sizes[2] = known
    shortest = longest
    for row in range(num):
        shortest = min(shortest, desk.draft_lens[row])
    keep = max(1.0 - num / _REMEMBERED, 0.2)
    for place in range(longest if shortest > 1 else 0):
        decline[0, place] *= keep
        decline[1, place] *= keep
        for row in range(num if 0 < place < shortest else 0):
            at = row * longest + place
            decline[0, place] += survival[at]
            decline[1, place] += survival[at - 1] * firsts[(row + 7 * place) % known]
    return 0


@loop_on(Seen)
def take_in(desk: Seen) -> int:
    """Count drafts by class, place and level, as if all had been drafted to the end."""
    counts, decline, survival = desk.counts, desk.decline, desk.survival
    num, longest, known = desk.sizes[0], desk.sizes[1], desk.sizes[2]
    size = longest * _LEVELS
    _count_classes(desk)
    for kind in range(KINDS):
        keep = max(1.0 - desk.weights[kind] / _REMEMBERED, 0.2)
        desk.nums[kind] = keep * desk.nums[kind] + desk.weights[kind]
        for index in range(2 * size if keep < 1.0 else 0):
            counts[kind, index] *= keep
    for row in range(num):
        for place in range(longest):
            at = row * longest + place
            if place >= desk.draft_lens[row]:
                other = desk.firsts[(row + 7 * place) % known]
                other *= decline[0, place] / decline[1, place]
                survival[at] = survival[at - 1] * min(other, 1.0)
            level = place * _LEVELS + min(int(survival[at] * _LEVELS), _LEVELS - 1)
            counts[desk.classes[row], level] += 1.0
            counts[desk.classes[row], size + level] += survival[at]
    return 0


class Prospects:
    """How likely the first, second, ... token of a draft survives: not the mean, the distribution.

    What is drafted is trimmed when its confidences are known, so that a j-th token is worth
    E[max(S_j - price, 0)], for which all of the distribution of S_j counts. It is known for each
    class of `Recents`, with that of all classes as the prior; `prior` is alpha before any draft.
    Drafts that end early are continued by others' first tokens and the usual decline.
    """

    def __init__(self, longest: int, prior: float) -> None:
        self._longest = longest
        survival = prior ** np.arange(1, longest + 1)
        levels = np.arange(longest) * _LEVELS + (survival * (_LEVELS - 1e-9)).astype(np.intp)
        counts = np.zeros((2, longest * _LEVELS))
        counts[0, levels], counts[1, levels] = _PRIOR_DRAFTS, _PRIOR_DRAFTS * survival
        self._desk = Desk(
            Seen,
            *(foresee, note_firsts, take_in),
            counts=np.zeros((KINDS, counts.size)),
            prior=counts.ravel(),
            expected=counts.shape,
            nums=np.zeros(KINDS),
            weights=KINDS,
            firsts=np.full(_FIRSTS, prior),
            decline=np.full((2, longest), 16.0),
            sizes=np.array([0, longest, 1]),
        )
        self.seen = 0
        """Drafts."""

    def add(self, gains: NDArray[np.float64], draft_lens: Ints, classes: Ints) -> None:
        """Take in the survival of drafts, shape (n, at most longest), all longer than 0."""
        num, width = gains.shape
        desk = self._desk.fit(num * self._longest)
        desk.survival[: num * self._longest].reshape(num, -1)[:, :width] = gains
        desk.draft_lens[:num], desk.classes[:num] = draft_lens, classes
        desk.sizes[0] = num
        self._desk.runs[1]()
        self._desk.runs[2]()
        self.seen += num

    def of_batch(self, classes: Ints) -> NDArray[np.float64]:
        """Return what drafts of 1, 2, ... tokens lead to if what is likeliest is verified.

        Tokens verified and tokens accepted, by the level down to which they are, shape (2, longest,
        levels), the surest level first; until it is asked again.
        """
        num = len(classes)
        desk = self._desk.fit(num)
        desk.classes[:num] = classes
        desk.sizes[0] = num
        self._desk.runs[0]()
        return desk.expected.reshape(2, self._longest, _LEVELS)
