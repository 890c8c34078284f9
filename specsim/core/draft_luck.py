"""Draft luck: what the survival tables of a run leave open about its drafts.

A survival table says how long a chain of drafts survives. Policies that look at confidences need to
know how sure the drafter was as well, and those that draft trees which of its candidates is the
target's token, wherever it drafts. All of that is indexed by request and output position, so that
no policy can shift it.

Of a tree one number decides at every position which rank of the candidates is right, or that none
is: it is accepted as far as it holds that rank at each depth. It is the number that decides on
chains, so a chain and a tree of any shape meet the same luck.
"""

from collections.abc import Sequence
from functools import cache
from math import pi, sin, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import inner
from specsim.core.desk import ByteRows, Ints, LocalDesk, Singles, loop_on
from specsim.core.request import Request
from specsim.core.rng import Luck, normals

_STEPS = 256  # of a confidence
_WIDEST, _FINE = 4, 512  # normal quantiles that are told apart: how far out, and per unit

CONFIDENCES = np.arange(_STEPS, dtype=np.float32) / np.float32(_STEPS - 1)
"""The confidence of each level."""

Bytes = NDArray[np.uint8]


class Confidences(NamedTuple):
    """How sure the drafter is of each token, by request and output position, in steps of 1/255.

    The tables of all requests lie end to end.
    """

    levels: Bytes
    """Shape (2 x places, positions): of each place in a draft, what the drafter says of the token
    there if all before it are accepted, and if it comes after one that is not. The last two rows
    hold for all later places."""
    starts: Ints
    """Shape (requests + 1,): where the table of each request begins; the last is where all end."""

    @classmethod
    def joined(cls, parts: "Sequence[Confidences]") -> "Confidences":
        """Return the confidences of some requests and then of others as those of all of them."""
        ends = np.cumsum([0, *(part.starts[-1] for part in parts)])
        starts = [part.starts[:-1] + end for part, end in zip(parts, ends, strict=False)]
        levels = np.concatenate([part.levels for part in parts], axis=1)
        return cls(levels, np.concatenate([*starts, ends[-1:]]))


class Stating(NamedTuple):
    """Drafts, and how sure the drafter is of each of their tokens."""

    levels: ByteRows  # as in `Confidences`
    starts: Ints
    steps: Singles  # the confidence of each level
    requests: Ints
    positions: Ints
    draft_lens: Ints
    survival_lens: Ints
    stated: Singles  # shape (n, longest); filled in
    sizes: Ints  # n, longest


@inner
def level_of(levels: ByteRows, first: int, place: int, failed_at: int) -> int:
    """Return the level of a token of a draft whose table begins at `first`, by what survives."""
    row = min(2 * place, len(levels) - 2) + (1 if place > failed_at else 0)
    return int(levels[row, first + place])


@loop_on(Stating)
def state(desk: Stating) -> int:
    """Look up how sure the drafter is of each token; 0 beyond the end of a draft or answer."""
    starts, stated, longest = desk.starts, desk.stated, desk.sizes[1]
    for row in range(desk.sizes[0]):
        request, failed_at = desk.requests[row], desk.survival_lens[row]
        first = starts[request] + desk.positions[row]
        draft_len = min(desk.draft_lens[row], starts[request + 1] - first)
        for place in range(longest):
            level = 0
            if place < draft_len:
                level = level_of(desk.levels, first, place, failed_at)
            stated[row * longest + place] = desk.steps[level]
    return 0


class DraftLuck:
    """The confidences of one run.

    Args:
        confidences: None if no policy asks.
    """

    def __init__(self, confidences: Confidences | None = None) -> None:
        self._starts: Ints = np.zeros(1, dtype=np.int64)
        self._levels: Bytes = np.zeros((2, 0), dtype=np.uint8)
        self._desk: LocalDesk[Stating] | None = None
        if confidences is not None:
            self._starts, self._levels = confidences.starts, confidences.levels

    def make_room(self, rows: int, starts: Ints) -> None:
        """Make room for the confidences of requests that come one by one; `starts` as theirs."""
        self._starts = starts
        self._levels = np.zeros((rows, starts[-1]), dtype=np.uint8)
        self._desk = None

    @property
    def stated(self) -> tuple[Bytes, Ints]:
        """`Stating.levels`, and where those of each request begin."""
        return self._levels, self._starts

    def put(self, request: int, confidences: Confidences) -> None:
        first, length = self._starts[request], confidences.starts[-1]
        self._levels[:, first : first + length] = confidences.levels

    def confidences(
        self, requests: Ints, positions: Ints, draft_lens: Ints, survival_lens: Ints
    ) -> NDArray[np.float32]:
        """Return how sure the drafter is of each token, shape (n, longest); 0 beyond the end.

        All columns have shape (n,); `positions` are output tokens known, `survival_lens` how long a
        longest draft would survive there.
        """
        num, longest = len(requests), int(draft_lens.max(initial=0))
        size = num * longest
        if self._desk is None:
            self._desk = LocalDesk(
                Stating, state, levels=self._levels, starts=self._starts, steps=CONFIDENCES
            )
        desk = self._desk.fit(max(num, size))
        desk.requests[:num], desk.positions[:num] = requests, positions
        desk.draft_lens[:num], desk.survival_lens[:num] = draft_lens, survival_lens
        desk.sizes[:2] = num, longest
        self._desk.runs[0]()
        return desk.stated[:size].reshape(num, longest).copy()

    @staticmethod
    def confidence_tables(
        requests: Sequence[Request],
        own: NDArray[np.float64],
        scores: NDArray[np.float64],
        luck: Luck,
        share: float,
        max_draft_len: int,
    ) -> Confidences:
        """Return the confidences of some requests.

        A token is accepted if its own luck, standard normal, is below its score. The drafter knows
        the score and a part of the luck, so that it is calibrated whatever else one knows
        (docs/explanation/luck.md). What is drafted after a rejected token continues a text that
        it believes in: there it knows a part of a luck that decides nothing.

        Args:
            own: Shape (positions,) or (places, positions), as in `Confidences`.
            scores: Shape (places, positions or 1).
            luck: Of a stream of its own.
            share: `known_share`.
        """
        counts = [request.output_len + max_draft_len for request in requests]
        indices = [request.index for request in requests]
        # So that confidences of chances of 1/2 explain just this share (the arcsine law).
        known = min(sin(share * pi / 2.0), 1.0 - 1e-9)  # whoever knows all rounds to the same
        part, rest = sqrt(known), sqrt(1.0 - known)
        seen = part * (part * own + rest * normals(luck.uniforms(indices, counts))) / rest
        apart = part * normals(luck.child("beyond").uniforms(indices, counts)) / rest
        levels = np.empty((len(scores), 2, sum(counts)), dtype=np.uint8)
        for place, score in enumerate(scores):
            levels[place, 0] = _levels(score / rest, seen if seen.ndim == 1 else seen[place])
            levels[place, 1] = _levels(score / rest, apart)
        return Confidences(levels.reshape(2 * len(scores), -1), np.cumsum([0, *counts]))


def known_share(concentration: float, state_share: float) -> float:
    """Return the share of the variance left by the state that a drafter's confidences explain.

    With what the state says they are to explain 1 / (1 + concentration) of the variance of what
    becomes of a request's tokens, but cannot explain less than the state does.
    """
    left = 1.0 / (1.0 + concentration) - state_share
    return max(left, 0.0) / max(1.0 - state_share, 1e-9)


def _levels(scores: NDArray[np.float64], luck: NDArray[np.float64]) -> Bytes:
    """Return the levels of the confidences of which the differences are the normal quantiles."""
    places = scores - luck
    places *= _FINE
    places += _FINE * _WIDEST
    np.clip(places, 0, 2 * _FINE * _WIDEST - 1, out=places)
    return _level_grid().take(places.astype(np.int16))


@cache
def _level_grid() -> Bytes:
    from scipy.special import ndtr

    middles = (np.arange(2 * _FINE * _WIDEST) + 0.5) / _FINE - _WIDEST
    return np.rint(ndtr(middles) * (_STEPS - 1)).astype(np.uint8)


_STRIDE = 7919  # positions from one path that is wrong to the next whose luck is taken instead
_MOST = 255

Floats = NDArray[np.float64]


def drawn_ranks(own: Floats, scores: Floats, factors: Sequence[float] | None) -> Bytes:
    """Return the rank of the target's token among the candidates, 0 if it is none of them.

    Shape (places, positions). Given that the better ones are not, the candidates from the second on
    are right with these factors of the first one's chance, or all with that chance.

    Args:
        own: Luck of each token, standard normal; (positions,) or (places, positions).
        scores: Below which the first candidate is right; (places, positions or 1).
    """
    from scipy.special import log_ndtr, ndtr

    rows = np.atleast_2d(own)
    own = np.broadcast_to(rows, (max(len(rows), len(scores)), rows.shape[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        ranks: NDArray[Any]
        if factors is None:
            ranks = np.maximum(np.floor(1.0 + np.abs(log_ndtr(-own) / log_ndtr(-scores))), 2.0)
        else:
            left, missed = ndtr(-own) / ndtr(-scores), np.ones(1)
            ranks = np.full(own.shape, 2.0)
            for factor in factors:
                missed = missed * (1.0 - factor * ndtr(scores))
                ranks += left <= missed
            ranks[ranks > 1 + len(factors)] = 0.0
    ranks[own < scores] = 1.0
    ranks[~(ranks <= _MOST)] = 0.0
    return ranks.astype(np.uint8)


def scores_by_rank(
    scores: Floats, factors: Sequence[float] | None, num_candidates: int
) -> list[Floats]:
    """Return below which of its luck one of the first candidates is right, for 1, 2, ... of them.

    Each as `scores` of `drawn_ranks`.
    """
    from scipy.special import ndtr, ndtri

    chances, missed, found = ndtr(scores), ndtr(-scores), [scores]
    given = [1.0] * num_candidates if factors is None else [*factors, *[0.0] * num_candidates]
    for factor in given[: num_candidates - 1]:
        missed = missed * (1.0 - factor * chances)
        # A chance of 1e-16 rounds `missed` to 1; one candidate more is no less often right.
        found.append(np.maximum(found[-1], -np.asarray(ndtri(missed))))
    return found[:num_candidates]


class RankTables(NamedTuple):
    """Ranks of some requests by output position, end to end; the last row holds for later places.

    And how sure the drafter is that one of its first 1, 2, ... candidates is right, in steps of
    1/255, as `specsim.core.draft_luck.Confidences` has it; of none where no policy asks.
    """

    ranks: Bytes  # shape (places, positions)
    levels: Bytes  # shape (candidates, 2 x places, positions)


class CandidateLuck:
    """The luck of all candidates of a run.

    Args:
        parts: Tables of its requests, in their order.
        starts: Where those of each request begin, by its index; the last is where all end.
        max_depth: Most tokens along a path.
    """

    def __init__(self, parts: Sequence[RankTables], starts: Ints, max_depth: int) -> None:
        none = np.zeros((1, 0), dtype=np.uint8), np.zeros((0, 2, 0), dtype=np.uint8)
        parts = parts or [RankTables(*none)]
        self._ranks = np.concatenate([part.ranks for part in parts], axis=1)
        self._levels = np.concatenate([part.levels for part in parts], axis=2)
        self._starts, self._max_depth = starts, max_depth

    def ranks(self, requests: Ints, positions: Ints) -> Bytes:
        """Return the ranks of the target's next tokens, when so many output tokens are known.

        Shape (n, places); 0 beyond the tables' end.
        """
        places = np.arange(self._max_depth)
        rows = np.minimum(places, len(self._ranks) - 1)
        columns = (self._starts[requests] + positions)[:, np.newaxis] + places
        is_inside = columns < self._starts[requests + 1][:, np.newaxis]
        ranks: Bytes = self._ranks[rows, np.where(is_inside, columns, 0)] * is_inside
        return ranks

    def confidences(self, requests: Ints, positions: Ints, paths: Ints) -> NDArray[np.float32]:
        """Return P(each candidate is right, if all before it are), as the drafter sees it.

        Shape (n, candidates). A candidate that it prefers is never less likely to it than the next.

        Args:
            requests: Shape (n,), like `positions`, the output tokens known.
            paths: Ranks of the tokens before, shape (n, depth).
        """
        depth, last = paths.shape[1], len(self._ranks) - 1
        begin, size = self._starts[requests], np.diff(self._starts)[requests]
        at, is_right = begin + positions, np.ones(len(requests), dtype=bool)
        for place in range(depth):
            here = np.minimum(at + place, begin + size - 1)
            is_right &= self._ranks[min(place, last), here] == paths[:, place]
        # What follows wrong tokens differs from path to path: each takes another place's luck.
        number = np.zeros(len(requests), dtype=np.int64)
        for place in range(depth):
            number = (number * 31 + paths[:, place]) % _STRIDE
        moved = np.where(is_right, 0, number * _STRIDE)
        place, is_inside = positions + depth, positions + depth < size
        columns = begin + (place + moved) % size
        levels = self._levels[:, 2 * min(depth, last) + ~is_right, columns] * is_inside
        stated = np.diff(levels.astype(np.float32), axis=0, prepend=np.float32(0.0)) / 255.0
        confidences: NDArray[np.float32] = np.minimum.accumulate(stated, axis=0).T
        return confidences
