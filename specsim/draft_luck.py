"""DraftLuck: what the survival tables of a run leave open about its drafts.

A survival table says how long a chain of drafts survives. Trees need the luck of every candidate,
and policies that look at confidences need to know how sure the drafter was. Both are indexed by
request and output position like everything else, so that no policy can shift them.
"""

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from specsim.request import Request
from specsim.rng import Luck

__all__ = ["Confidences", "DraftLuck"]

_LEVELS = 64  # of a request's mean acceptance
_STEPS = 256  # of a quantile, and of a confidence


class Confidences(NamedTuple):
    """How sure the drafter is of a token, by its output position, in steps of 1/255."""

    accepted: bytes
    """If the token is accepted."""
    rejected: bytes
    """If it is the first of its draft to be rejected."""
    beyond: bytes
    """If it comes after that one."""


class DraftLuck:
    """The luck of candidates and the confidences of one run.

    Parameters
    ----------
    candidate_luck : list of array of float
        By request index, the uniform number of each output position; empty if no policy drafts
        trees. It is the number that the survival tables were made from.
    rates : sequence of float
        P(a candidate for position j of a draft is accepted | a candidate was at all before it).
    confidences : list of Confidences
        By request index; empty if no policy asks.
    """

    def __init__(
        self,
        *,
        candidate_luck: "list[array[float]] | None" = None,
        rates: Sequence[float] = (),
        confidences: "list[Confidences] | None" = None,
    ) -> None:
        self._candidate_luck = candidate_luck or []
        self._misses = [1.0 - rate for rate in rates]
        self._confidences = confidences or []

    def path_len(self, request: int, position: int, widths: tuple[int, ...]) -> int:
        """Return the accepted length of a tree.

        Candidates of a position are accepted independently and with one probability, so one of w
        is with 1 - (1 - alpha)^w (Liu et al. 2024, "SmartSpec", section 4.4).

        Parameters
        ----------
        request : int
            Index of the request.
        position : int
            Output tokens known.
        widths : tuple of int
            Candidates per position.

        Returns
        -------
        int, tokens
        """
        luck = self._candidate_luck[request]
        length = 0
        for width, miss in zip(widths, self._misses, strict=False):
            if position + length >= len(luck) or luck[position + length] >= 1.0 - miss**width:
                break
            length += 1
        return length

    def confidences(
        self,
        requests: Sequence[int],
        positions: Sequence[int],
        draft_lens: Sequence[int],
        survival_lens: Sequence[int],
    ) -> NDArray[np.float32]:
        """Return how sure the drafter is of each token of some drafts.

        Parameters
        ----------
        requests : sequence of int, length n
            Index of each request.
        positions : sequence of int, length n
            Output tokens known.
        draft_lens : sequence of int, length n
        survival_lens : sequence of int, length n
            How long a longest draft would survive there.

        Returns
        -------
        ndarray of float, shape (n, max(draft_lens))
            0 beyond the end of a draft.
        """
        width = max(draft_lens, default=0)
        rows = []
        for request, position, draft_len, survival_len in zip(
            requests, positions, draft_lens, survival_lens, strict=True
        ):
            end = position + draft_len
            failed_at = min(position + survival_len, end)
            tables = self._confidences[request]
            row = (
                tables.accepted[position:failed_at]
                + tables.rejected[failed_at : min(failed_at + 1, end)]
                + tables.beyond[failed_at + 1 : end]
            )
            rows.append(row.ljust(width, b"\0"))
        levels = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), width)
        return levels.astype(np.float32) / np.float32(_STEPS - 1)

    @staticmethod
    def confidence_tables(
        requests: Sequence[Request],
        survival_tables: Sequence[bytes],
        luck: Luck,
        concentration: float,
        max_draft_len: int,
    ) -> "list[Confidences]":
        """Return the confidences of some requests.

        The drafter is calibrated: a token of confidence c is accepted with probability c, given
        that all before it were. If the confidences of a request follow Beta(s m, s (1 - m)), with
        m the share of its positions at which the first draft token is accepted, Bayes' rule gives
        Beta(s m + 1, s (1 - m)) for the accepted ones and Beta(s m, s (1 - m) + 1) for the
        rejected: the two distributions of SmartSpec's fig. 17 (Liu et al. 2024). What is drafted
        after a rejected token continues a text that the drafter believes in, so its confidences
        are as they always are.

        Parameters
        ----------
        requests : sequence of Request
        survival_tables : sequence of bytes
            Of these requests.
        luck : Luck
            Of a stream of its own.
        concentration : float
            s; small: the drafter mostly knows whether it is right; large: it never does.
        max_draft_len : int, tokens

        Returns
        -------
        list of Confidences, one per request
        """
        counts = [request.output_len + max_draft_len for request in requests]
        uniforms = luck.uniforms([request.index for request in requests], counts)
        quantiles = (uniforms * _STEPS).astype(np.intp)
        means = [1.0 - table.count(0) / max(1, len(table)) for table in survival_tables]
        levels = np.clip((np.array(means) * _LEVELS).astype(np.intp), 0, _LEVELS - 1)
        rows = np.repeat(levels, counts)
        starts = np.cumsum([0, *counts]).tolist()
        grids = [
            _quantile_grid(concentration, a_extra, b_extra)[rows, quantiles].tobytes()
            for a_extra, b_extra in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0))
        ]
        return [
            Confidences(*(grid[start:end] for grid in grids)) for start, end in pairwise(starts)
        ]


def _quantile_grid(concentration: float, a_extra: float, b_extra: float) -> NDArray[np.uint8]:
    """Return the quantiles of a Beta distribution by level of its mean, shape (levels, steps)."""
    means = (np.arange(_LEVELS) + 0.5)[:, np.newaxis] / _LEVELS
    shares = (np.arange(_STEPS) + 0.5)[np.newaxis, :] / _STEPS
    values = betaincinv(
        concentration * means + a_extra, concentration * (1 - means) + b_extra, shares
    )
    return np.rint(values * (_STEPS - 1)).astype(np.uint8)
