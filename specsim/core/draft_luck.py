"""DraftLuck: what the survival tables of a run leave open about its drafts.

A survival table says how long a chain of drafts survives. Trees need the luck of every candidate,
and policies that look at confidences need to know how sure the drafter was. Both are indexed by
request and output position like everything else, so that no policy can shift them.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import inner
from specsim.core.desk import ByteRows, Ints, LocalDesk, Singles, loop_on
from specsim.core.request import Request
from specsim.core.rng import Luck

_LEVELS = 64  # of a request's mean acceptance
_STEPS = 256  # of a quantile, and of a confidence

CONFIDENCES = np.arange(_STEPS, dtype=np.float32) / np.float32(_STEPS - 1)
"""The confidence of each level."""

Bytes = NDArray[np.uint8]


class Confidences(NamedTuple):
    """How sure the drafter is of each token, by request and output position, in steps of 1/255.

    The tables of all requests lie end to end.
    """

    accepted: Bytes  # if the token is accepted
    rejected: Bytes  # if it is the first of its draft to be rejected
    beyond: Bytes  # if it comes after that one
    starts: Ints
    """Shape (requests + 1,): where the table of each request begins; the last is where all end."""

    @classmethod
    def joined(cls, parts: "Sequence[Confidences]") -> "Confidences":
        """Return the confidences of some requests and then of others as those of all of them."""
        ends = np.cumsum([0, *(part.starts[-1] for part in parts)])
        starts = [part.starts[:-1] + end for part, end in zip(parts, ends, strict=False)]
        accepted, rejected, beyond = (
            np.concatenate([part[number] for part in parts]) for number in range(3)
        )
        return cls(accepted, rejected, beyond, np.concatenate([*starts, ends[-1:]]))


class Stating(NamedTuple):
    """Drafts, and how sure the drafter is of each of their tokens."""

    levels: ByteRows  # by what becomes of a token: rows of `Confidences`
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
    kind = (1 if place >= failed_at else 0) + (1 if place > failed_at else 0)
    return int(levels[kind, first + place])


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
    """The luck of candidates and the confidences of one run.

    Args:
        candidate_luck: The uniform number of each output position of each request, end to end;
            empty if no policy drafts trees. It is the number that the survival tables were made
            from.
        candidate_starts: Where the numbers of each request begin, by its index; the last is where
            all end. Of shape (requests + 1,).
        rates: P(a candidate for position j of a draft is accepted | a candidate was at all before
            it).
        confidences: None if no policy asks.
    """

    def __init__(
        self,
        *,
        candidate_luck: NDArray[np.float64] | None = None,
        candidate_starts: Ints | None = None,
        rates: Sequence[float] = (),
        confidences: Confidences | None = None,
    ) -> None:
        self._candidate_luck = np.zeros(0) if candidate_luck is None else candidate_luck
        self._candidate_starts = candidate_starts
        self._misses = [1.0 - rate for rate in rates]
        self._starts: Ints = np.zeros(1, dtype=np.int64)
        self._levels: Bytes = np.zeros((3, 0), dtype=np.uint8)
        """By what becomes of the token: rows of `Confidences`."""
        self._desk: LocalDesk[Stating] | None = None
        if confidences is not None:
            self._starts, self._levels = confidences.starts, np.stack(confidences[:3])

    def make_room(self, starts: Ints) -> None:
        """Make room for the confidences of requests that come one by one; `starts` as theirs."""
        self._starts = starts
        self._levels = np.zeros((3, starts[-1]), dtype=np.uint8)
        self._desk = None

    @property
    def stated(self) -> tuple[Bytes, Ints]:
        """`Stating.levels`, and where those of each request begin."""
        return self._levels, self._starts

    def put(self, request: int, confidences: Confidences) -> None:
        """Enter those of one request."""
        first, length = self._starts[request], confidences.starts[-1]
        for row, values in zip(self._levels, confidences[:3], strict=True):
            row[first : first + length] = values

    def path_len(self, request: int, position: int, widths: tuple[int, ...]) -> int:
        """Return the accepted length of a tree with so many candidates per position, tokens.

        Candidates of a position are accepted independently and with one probability, so one of w
        is with 1 - (1 - alpha)^w (Liu et al. 2024, "SmartSpec", section 4.4).

        Args:
            position: Output tokens known.
        """
        assert self._candidate_starts is not None
        start, end = self._candidate_starts[request : request + 2].tolist()
        first = start + position
        luck = self._candidate_luck[first : min(first + len(widths), end)].tolist()
        length = 0
        for width, miss, number in zip(widths, self._misses, luck, strict=False):
            if number >= 1.0 - miss**width:
                break
            length += 1
        return length

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
    def stated_mean(survival_table: bytes) -> float:
        """Return the mean confidence of a request's drafts: its acceptance, in few levels."""
        mean = 1.0 - survival_table.count(0) / max(1, len(survival_table))
        return (min(max(int(mean * _LEVELS), 0), _LEVELS - 1) + 0.5) / _LEVELS

    @staticmethod
    def confidence_tables(
        requests: Sequence[Request],
        survival_tables: Sequence[bytes],
        luck: Luck,
        concentration: float,
        max_draft_len: int,
    ) -> Confidences:
        """Return the confidences of some requests, of which the survival tables are given.

        The drafter is calibrated: a token of confidence c is accepted with probability c, given
        that all before it were. If the confidences of a request follow Beta(s m, s (1 - m)), with
        m the share of its positions at which the first draft token is accepted, Bayes' rule gives
        Beta(s m + 1, s (1 - m)) for the accepted ones and Beta(s m, s (1 - m) + 1) for the
        rejected: the two distributions of SmartSpec's fig. 17 (Liu et al. 2024). What is drafted
        after a rejected token continues a text that the drafter believes in, so its confidences
        are as they always are.

        Args:
            luck: Of a stream of its own.
            concentration: s; small: the drafter mostly knows whether it is right; large: it never
                does.
        """
        counts = [request.output_len + max_draft_len for request in requests]
        uniforms = luck.uniforms([request.index for request in requests], counts)
        quantiles = (uniforms * _STEPS).astype(np.intp)
        means = [DraftLuck.stated_mean(table) for table in survival_tables]
        levels = (np.array(means) * _LEVELS).astype(np.intp)
        rows = np.repeat(levels, counts)
        accepted, rejected, beyond = (
            _quantile_grid(concentration, a_extra, b_extra)[rows, quantiles]
            for a_extra, b_extra in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0))
        )
        return Confidences(accepted, rejected, beyond, np.cumsum([0, *counts]))


@cache
def _quantile_grid(concentration: float, a_extra: float, b_extra: float) -> NDArray[np.uint8]:
    """Return the quantiles of a Beta distribution by level of its mean, shape (levels, steps)."""
    from scipy.special import betaincinv  # noqa: PLC0415 - slow to import, and rarely needed

    means = (np.arange(_LEVELS) + 0.5)[:, np.newaxis] / _LEVELS
    shares = (np.arange(_STEPS) + 0.5)[np.newaxis, :] / _STEPS
    values = betaincinv(
        concentration * means + a_extra, concentration * (1 - means) + b_extra, shares
    )
    grid: NDArray[np.uint8] = np.rint(values * (_STEPS - 1)).astype(np.uint8)
    grid.flags.writeable = False  # it is everybody's
    return grid
