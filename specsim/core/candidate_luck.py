"""CandidateLuck: which of the drafter's candidates is the target's token, wherever it drafts.

At every output position one number decides which rank of the candidates is right, or that none is:
a tree is accepted as far as it holds that rank at each depth. It is the number that decides on
chains, so a chain and a tree of any shape meet the same luck.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.draft_luck import Bytes
from specsim.core.trees import Ints

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
    from scipy.special import log_ndtr, ndtr  # noqa: PLC0415 - scipy takes 0.2 s

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
    from scipy.special import ndtr, ndtri  # noqa: PLC0415 - scipy takes 0.2 s

    chances, missed, found = ndtr(scores), ndtr(-scores), [scores]
    given = [1.0] * num_candidates if factors is None else [*factors, *[0.0] * num_candidates]
    for factor in given[: num_candidates - 1]:
        missed = missed * (1.0 - factor * chances)
        found.append(-np.asarray(ndtri(missed)))
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
