"""TokenLuck: what decides on each token of a draft, for a drafter that says how sure it is."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.request import Request
from specsim.core.rng import Luck, normals

Floats = NDArray[np.float64]
_MEANS = 16  # levels of a request's mean acceptance
_MOST = 16  # ages, and places of a draft, that are told apart
_PRIOR = 4.0  # drafts that the rate over all requests counts as, in a state


class TokenLuck(NamedTuple):
    """What decides on tokens, by place in the draft and position, those of requests end to end.

    A token is accepted, given that all before it were, if its own luck is below its score. The last
    row holds for all later places.
    """

    own: Floats
    """Standard normal and independent of all else; shape (positions,) or (places, positions)."""
    scores: Floats
    """Normal quantile of the chance in the model's state at the token; (places, positions or 1)."""
    state_share: float  # share of the variance of a request's fates that this state explains

    def at(self, place: int) -> tuple[Floats, Floats]:
        """Return own luck and scores of a place."""
        own = self.own if self.own.ndim == 1 else self.own[min(place, len(self.own) - 1)]
        return own, self.scores[min(place, len(self.scores) - 1)]


def chosen(is_second: NDArray[np.bool_], first: TokenLuck, second: TokenLuck) -> TokenLuck:
    """Return the luck of the first or of the second, position by position."""
    places = range(max(len(first.scores), len(second.scores)))
    pairs = [(first.at(place), second.at(place)) for place in places]
    own, scores = (
        np.stack([np.where(is_second, late[part], early[part]) for early, late in pairs])
        for part in (0, 1)
    )
    return TokenLuck(own, scores, (first.state_share + second.state_share) / 2.0)


class CountedLuck:
    """Luck that agrees with tables of any origin, by chances that are counted in them.

    Counted is how often drafts survived their next token, by what had become of those before.
    The state at a position is the mean acceptance of its request, and its age: for how many tokens
    the oldest draft has survived that would have been right so far. Wherever drafts begin by what
    became of those before, their chances depend on it (after a rejection it is low).
    """

    def __init__(self, luck: Luck, max_draft_len: int, tables: Iterable[bytes]) -> None:
        self._luck, self._longest = luck, max_draft_len
        places = min(max_draft_len, _MOST)
        tried, survived = np.zeros((2, _MEANS, _MOST + 1, places))
        for table in tables:
            lens = np.frombuffer(table, dtype=np.uint8)
            mean, ages = self._states(lens)
            for place in range(places):
                for counts, is_counted in ((tried, lens >= place), (survived, lens > place)):
                    counts[mean, :, place] += np.bincount(ages, is_counted, _MOST + 1)
        overall = (survived.sum(axis=0) + 0.5) / (tried.sum(axis=0) + 1.0)
        self._chances = (survived + _PRIOR * overall) / (tried + _PRIOR)
        self._state_share = _share(tried[..., 0], survived[..., 0])

    def _states(self, lens: NDArray[np.uint8]) -> tuple[int, NDArray[np.intp]]:
        ages = np.zeros(len(lens), dtype=np.intp)
        for age in range(1, min(self._longest, _MOST, len(lens) - 1) + 1):
            ages[age:][lens[:-age] >= age] = age
        return min(int((lens > 0).mean() * _MEANS), _MEANS - 1), ages

    def _chances_at(self, lens: NDArray[np.uint8]) -> Floats:
        """Return the chance of each place of the drafts from each position, (places, positions)."""
        chances: Floats = self._chances[self._states(lens)].T
        return chances[np.minimum(np.arange(self._longest), len(chances) - 1)]

    def __call__(self, requests: Sequence[Request], tables: Sequence[bytes]) -> TokenLuck:
        """Return the luck of the tokens of some requests, of which the tables are given."""
        longest = self._longest
        ends = np.cumsum([len(table) + longest for table in tables])
        own, chances = np.zeros((2, longest, ends[-1]))
        for request, table, end in zip(requests, tables, ends.tolist(), strict=True):
            lens, first = np.frombuffer(table, dtype=np.uint8), end - len(table) - longest
            uniforms = self._luck.child("own").uniforms([request.index], [len(table) + longest])
            for place, row in enumerate(self._chances_at(lens)):
                here = slice(first + place, first + place + len(table))
                drawn = uniforms[place : place + len(table)]
                chances[place, here] = row
                known = np.where(lens > place, row * drawn, row + (1.0 - row) * drawn)
                # What no draft has reached is open: only trees come there, past a better candidate.
                own[place, here] = np.where(lens >= place, known, drawn)
        return TokenLuck(normals(own), normals(chances), self._state_share)


def _share(tried: Floats, survived: Floats) -> float:
    """Return how much of the variance of fates ages explain within a mean acceptance."""
    means = survived.sum(axis=1) / np.maximum(tried.sum(axis=1), 1.0)
    rates = survived / np.maximum(tried, 1.0)
    explained = np.sum(tried * (rates - means[:, np.newaxis]) ** 2)
    total = np.sum(tried.sum(axis=1) * means * (1.0 - means))
    return float(explained / max(total, 1e-300))
