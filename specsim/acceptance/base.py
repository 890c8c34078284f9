"""Base classes of acceptance models: accepted lengths, and the random numbers behind them."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from hashlib import sha256
from itertools import accumulate
from threading import Lock
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.blame import held_to
from specsim.core.errors import ConfigError
from specsim.core.families import Member
from specsim.core.request import Columns, Request
from specsim.core.rng import Luck, normals

MAX_DRAFT_LEN = 254
"""Longest draft: with the bonus token it still fits into a byte, as in every table of a run."""

_LEAST = 0.01  # chance of a draft token that was moved
_FEW = 16  # positions that are faster looked at one by one, in bytes, than counted in integers

Floats = NDArray[np.float64]
_MEANS = 16  # levels of a request's mean acceptance
_MOST = 16  # ages, and places of a draft, that are told apart
_PRIOR = 4.0  # drafts that the rate over all requests counts as, in a state


class TokenLuck(NamedTuple):
    """The random numbers that decide on tokens, by place in the draft and output position.

    A token is accepted, given that all before it were, if its own luck is below its score. Requests
    lie end to end; the last row holds for all later places.
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
    """Return `second` where `is_second` is true, else `first`, position by position."""
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
    """Return the share of the variance in acceptance explained by age, at equal mean acceptance."""
    means = survived.sum(axis=1) / np.maximum(tried.sum(axis=1), 1.0)
    rates = survived / np.maximum(tried, 1.0)
    explained = np.sum(tried * (rates - means[:, np.newaxis]) ** 2)
    total = np.sum(tried.sum(axis=1) * means * (1.0 - means))
    return float(explained / max(total, 1e-300))


Rates = Callable[[NDArray[np.int64], NDArray[np.int64]], tuple[Floats, Floats]]
"""P(draft token j is accepted | all before it were), by request index and output tokens known.

Shape (n, longest draft), given the model and its state at the last known token, but not the random
numbers of later tokens. The second array is the mean square of that chance given the state at the
token itself.
"""

TokenLucks = Callable[[Sequence[Request], Sequence[bytes]], TokenLuck]
"""Return the luck of the tokens of some requests, of which the survival tables are given."""


class Acceptance(Member):
    """Decides the accepted length of drafts.

    It is asked once for each request, before the run: how many tokens of a draft are accepted that
    starts at each output position. Luck therefore belongs to positions, and no policy can change it
    by asking differently.
    """

    kind: str
    verifies_tokens: ClassVar[bool] = False
    """Whether drafts are compared with recorded answers, so that survival is found out online."""
    confidence_concentration: float = Field(default=1.0, gt=0)
    """How little the drafter's confidence in a token says about its acceptance, for policies that
    use it: confidence explains 1 / (1 + this) of the variance in the acceptance of a request's
    tokens, but no less than the state of the model does (docs/explanation/luck.md)."""
    rank_factors: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = None
    """How likely the drafter's second, third, ... candidate is right where the better ones are not,
    as a share of the first one's chance there, for trees; 0 beyond the last. By default all are 1
    (Liu et al. 2024, "SmartSpec", section 4.4), which flatters wide trees. A model that holds
    others has its own."""
    rejection: Literal["block", "typical", "fly"] | None = None
    """By which rule drafts are rejected, if not token by token (Leviathan, Kalman, Matias 2023):
    whole blocks at a time (Sun et al. 2024, arXiv 2403.10444; vLLM's ``rejection_sample_method:
    block``), with which answers stay the target's own; or one with which they do not, Medusa's
    typical acceptance (Cai et al. 2024, arXiv 2401.10774) or FLy (arXiv 2511.22972). It changes no
    number here: the chances of a model are those that were measured under its rule."""

    @abstractmethod
    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        """Return the survival table of each request, shape (output_len,).

        Element `p` is the accepted length of a draft of `max_draft_len` tokens, at most
        `MAX_DRAFT_LEN`, made when `p` output tokens are known; a shorter draft of `k` tokens
        survives ``min(k, element)`` long. A TraceError if a request carries no record of what the
        model needs.
        """

    def of_drafter(self, name: str) -> "Acceptance":
        """Return the acceptance model of a drafter, one of ``speculative_config.models``."""
        return self

    def token_lucks(
        self, luck: Luck, max_draft_len: int, survival_tables: Sequence[bytes]
    ) -> TokenLucks:
        """Return the function that gives the luck behind each token, for confidences.

        By default chances are counted in the survival tables of the whole run.
        """
        return CountedLuck(luck, max_draft_len, survival_tables)

    @property
    def counts_chances(self) -> bool:
        """Whether `token_lucks` counts in the tables of all requests of a run."""
        if self.inner:
            return any(model.counts_chances for model in self.inner)
        return type(self).token_lucks is Acceptance.token_lucks

    def known_rates(self, requests: Sequence[Request], luck: Luck, max_draft_len: int) -> Rates:
        """Return the chances of draft tokens, given the model and its state but not the luck.

        A ConfigError if acceptance was recorded, so that there is no model.
        """
        raise ConfigError(
            f"acceptance '{self.kind}' has no model whose state could be known; use a model, or "
            "leave policy 'bayes' out"
        )

    @property
    def state_share(self) -> float:
        """Share of the variance in a request's acceptance that the model's state explains."""
        return 0.0

    @property
    def inner(self) -> "tuple[Acceptance, ...]":
        """The acceptance models inside this one."""
        return ()

    def doubts(self, requests: Sequence[Request], draft_len: int) -> list[str]:
        """Return a line for each reason to doubt the acceptance of drafts up to `draft_len`."""
        return [line for model in self.inner for line in model.doubts(requests, draft_len)]

    @property
    def rules(self) -> frozenset[str | None]:
        """The rejection rules for which the chances hold; None is token by token."""
        inner = frozenset[str | None]().union(*(model.rules for model in self.inner))
        if self.rejection is None:
            return inner or frozenset([None])
        return inner - {None} | {self.rejection}

    @property
    def is_lossless(self) -> bool:
        """Whether the output follows the target's distribution, whatever is drafted."""
        return self.rules <= {None, "block"}

    @property
    def has_model(self) -> bool:
        """Whether `known_rates` returns chances instead of raising."""
        return type(self).known_rates is not Acceptance.known_rates

    def shifted(self, change: float) -> "Acceptance | None":
        """Return the model with P(token accepted | all before it were) raised by `change`.

        Chances stay within 0.01 to 0.99. None if the model replays records, without chances.
        """
        return None


def shifted_rate(rate: float, change: float) -> float:
    """Return `rate` + `change`, within the limits of `Acceptance.shifted`."""
    return min(max(rate + change, _LEAST), 1.0 - _LEAST)


def model_of(acceptance: Acceptance, drafter: str) -> Acceptance:
    """Return the model of one drafter; a PluginError if a class of the user's gives none."""
    model = acceptance.of_drafter(drafter)
    rule = "an acceptance model"
    held_to(acceptance, "of_drafter", model, isinstance(model, Acceptance), rule)
    return model


class _Latest:
    """The latest results, up to so many bytes in all."""

    def __init__(self, most_bytes: int) -> None:
        self._free = most_bytes
        self._found: dict[Hashable, bytes] = {}
        self._lock = Lock()

    def found_or_made(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        with self._lock:
            found = self._found.get(key)
        if found is None:
            found = make()
            with self._lock:
                if self._found.setdefault(key, found) is found:
                    self._free -= len(found)
                while self._free < 0:
                    self._free += len(self._found.pop(next(iter(self._found))))
        return found


_kept = _Latest(most_bytes=2**25)


class DrawnAcceptance(Acceptance):
    """Base of the models that draw accepted lengths from the luck of each output position."""

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        """Return the tables, drawn for all requests at once.

        The latest are kept: a study runs the same requests, with the same luck, at many loads.
        """
        indices, counts = drawn_positions(requests, max_draft_len)
        drawn = _kept.found_or_made(
            (
                type(self),
                sha256(repr((self, luck, max_draft_len, indices, counts)).encode()).digest(),
            ),
            lambda: self.drawn_lens(luck, indices, counts, max_draft_len).tobytes(),
        )
        return [row[: len(row) - max_draft_len] for row in split_rows(drawn, counts)]

    def token_lucks(
        self, luck: Luck, max_draft_len: int, survival_tables: Sequence[bytes]
    ) -> TokenLucks:
        def drawn(requests: Sequence[Request], tables: Sequence[bytes]) -> TokenLuck:
            indices, counts = drawn_positions(requests, max_draft_len)
            own = self.own_luck(luck, indices, counts)
            scores = np.asarray(self.scores(luck, indices, counts, max_draft_len))
            return TokenLuck(own, scores, self.state_share)

        return drawn

    def own_luck(self, luck: Luck, indices: list[int], counts: list[int]) -> Floats:
        """Return each position's own luck, standard normal; a token is accepted if it is low."""
        return normals(luck.uniforms(indices, counts))

    @abstractmethod
    def scores(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.float64]:
        """Return below which of its own luck each token is accepted, given that all before it were.

        That is the normal quantile of its chance, by place in the draft and position; the last row
        holds for all later places. Shape (places, positions), or (places, 1). Given as for
        `drawn_lens`, and in the same number of places for all requests.
        """

    @abstractmethod
    def drawn_lens(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.uint8]:
        """Return how long drafts survive from each position on, end to end.

        Args:
            indices: Of the requests.
            counts: Positions of each request: its output, and `max_draft_len` more that no draft
                starts from, so that what is returned for them does not matter.
        """


def drawn_positions(requests: Sequence[Request], max_draft_len: int) -> tuple[list[int], list[int]]:
    """Return the index of each request and its positions: its last drafts reach beyond its end."""
    columns = Columns.of(requests)
    return columns.indices.tolist(), (columns.output_lens + max_draft_len).tolist()


class Oracle:
    """The future: the accepted length of a draft at each output position.

    Only an `OraclePolicy` receives it.

    Args:
        survival_lens: Survival tables of all requests, end to end. Where drafts are real tokens
            they are filled in as the drafts are made, always before a policy is asked about them.
        starts: Where the table of each request begins, by its index; its end is where the next
            begins. Shape (requests + 1,).
    """

    def __init__(self, survival_lens: NDArray[np.uint8], starts: NDArray[np.int64]) -> None:
        self._survival_lens = survival_lens
        self._starts = starts

    @classmethod
    def of(cls, tables: Sequence[bytes]) -> "Oracle":
        """Return the oracle that knows these tables, one per request."""
        starts = np.cumsum([0, *map(len, tables)])
        return cls(np.frombuffer(b"".join(tables), dtype=np.uint8), starts)

    def survival_lens(
        self, requests: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the accepted length of a draft of full length made now; 0 beyond the output.

        Args:
            requests: Index of each request, shape (n,).
            positions: Output tokens known when the draft is made, shape (n,).
        """
        places = self._starts[requests] + positions
        is_within = places < self._starts[requests + 1]
        lens: NDArray[np.int64] = np.zeros(len(requests), dtype=np.int64)
        lens[is_within] = self._survival_lens[places[is_within]]
        return lens

    def useful_lens(
        self, requests: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return how many draft tokens are useful, for arguments as of `survival_lens`.

        That is the accepted length, cut so that the last output token comes as the bonus token.
        """
        left_lens = self._starts[requests + 1] - self._starts[requests] - positions - 1
        useful: NDArray[np.int64] = np.minimum(self.survival_lens(requests, positions), left_lens)
        return np.maximum(useful, 0, out=useful)


def run_lengths(successes: NDArray[np.bool_], limit: int) -> NDArray[np.uint8]:
    """Return, for each position, the number of successes in a row from there on, up to a limit."""
    if limit <= _FEW:
        lens = np.zeros(len(successes), dtype=np.uint8)
        alive = np.ones(len(successes), dtype=bool)
        for offset in range(min(limit, len(successes))):
            alive[: len(successes) - offset] &= successes[offset:]
            alive[len(successes) - offset :] = False
            lens += alive
        return lens
    positions = np.arange(len(successes))
    failures = np.where(successes, len(successes), positions)
    next_failure = np.minimum.accumulate(failures[::-1])[::-1]
    return np.minimum(next_failure - positions, limit).astype(np.uint8)


def runs_below(values: NDArray[np.float64], limits: Sequence[float]) -> NDArray[np.uint8]:
    """Return, for each position, how many values in a row from there on stay below their limits.

    Args:
        values: Shape (n,), as is the result.
        limits: The first for the value at the position itself, the next for the one after it, ...
            At the last positions, from which they reach too far, the result is 0.
    """
    starts = max(len(values) - len(limits), 0)
    alive = np.ones(starts, dtype=bool)
    lens = np.zeros(len(values), dtype=np.uint8)
    for offset, limit in enumerate(limits):
        alive &= values[offset : offset + starts] < limit
        lens[:starts] += alive
    return lens


def split_rows(data: bytes, counts: Sequence[int]) -> list[bytes]:
    """Cut bytes that lie end to end into rows of the given lengths."""
    ends = accumulate(counts)
    return [data[end - count : end] for end, count in zip(ends, counts, strict=True)]
