"""DraftLuck: what the survival tables of a run leave open about its drafts.

A survival table says how long a chain of drafts survives. Trees need the luck of every candidate,
and policies that look at confidences need to know how sure the drafter was. Both are indexed by
request and output position like everything else, so that no policy can shift them.
"""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from specsim.request import Request
from specsim.rng import Luck

__all__ = ["DraftLuck"]

_LEVELS = 64  # of a request's mean acceptance
_STEPS = 256  # of a quantile, and of a confidence


class DraftLuck:
    """The luck of candidates and the confidences of one run.

    Parameters
    ----------
    candidate_luck : list of array of float
        By request index, the uniform number of each output position; empty if no policy drafts
        trees. It is the number that the survival tables were made from.
    rates : sequence of float
        P(a candidate for position j of a draft is accepted | a candidate was at all before it).
    accepted, rejected : list of bytes
        By request index and output position, the confidence of the token drafted there if it is
        accepted and if it is not, in steps of 1/255; empty if no policy asks.
    """

    def __init__(
        self,
        *,
        candidate_luck: "list[array[float]] | None" = None,
        rates: Sequence[float] = (),
        accepted: list[bytes] | None = None,
        rejected: list[bytes] | None = None,
    ) -> None:
        self._candidate_luck = candidate_luck or []
        self._misses = [1.0 - rate for rate in rates]
        self._accepted = accepted or []
        self._rejected = rejected or []

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
            middle = min(position + survival_len, end)
            row = self._accepted[request][position:middle] + self._rejected[request][middle:end]
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
    ) -> tuple[list[bytes], list[bytes]]:
        """Return the confidences of some requests, of accepted and of rejected tokens.

        The drafter is calibrated: a token of confidence c is accepted with probability c. If the
        confidences of a request follow Beta(s m, s (1 - m)), with m the share of its positions at
        which the first draft token is accepted, Bayes' rule gives Beta(s m + 1, s (1 - m)) for the
        accepted ones and Beta(s m, s (1 - m) + 1) for the rejected: the two distributions of
        SmartSpec's fig. 17 (Liu et al. 2024).

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
        tuple of two lists of bytes, one per request, of length output_len + max_draft_len
        """
        counts = [request.output_len + max_draft_len for request in requests]
        uniforms = luck.uniforms([request.index for request in requests], counts)
        quantiles = (uniforms * _STEPS).astype(np.intp)
        means = [1.0 - table.count(0) / max(1, len(table)) for table in survival_tables]
        levels = np.clip((np.array(means) * _LEVELS).astype(np.intp), 0, _LEVELS - 1)
        rows = np.repeat(levels, counts)
        ends = np.cumsum(counts).tolist()
        tables: list[list[bytes]] = []
        for a_extra, b_extra in ((1.0, 0.0), (0.0, 1.0)):
            flat = _quantile_grid(concentration, a_extra, b_extra)[rows, quantiles].tobytes()
            tables.append([flat[end - n : end] for end, n in zip(ends, counts, strict=True)])
        return tables[0], tables[1]


def _quantile_grid(concentration: float, a_extra: float, b_extra: float) -> NDArray[np.uint8]:
    """Return the quantiles of a Beta distribution by level of its mean, shape (levels, steps)."""
    means = (np.arange(_LEVELS) + 0.5)[:, np.newaxis] / _LEVELS
    shares = (np.arange(_STEPS) + 0.5)[np.newaxis, :] / _STEPS
    values = betaincinv(
        concentration * means + a_extra, concentration * (1 - means) + b_extra, shares
    )
    return np.rint(values * (_STEPS - 1)).astype(np.uint8)
