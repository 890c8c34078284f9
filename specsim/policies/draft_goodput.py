"""Goodput by what the drafter itself says of each token."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.policies._budget import best_lens
from specsim.policies._estimate import PerRequest
from specsim.policies.base import Policy, ServerView
from specsim.step import BatchView, DraftView, StepLoad, StepOutcome

__all__ = ["DraftGoodput"]

_BINS = 20
_PRIOR_TRIALS = 20.0  # that a bin's own stated probability counts for


class _Calibration:
    """What came of the tokens that the drafter gave a probability of 0-5 %, 5-10 %, ..."""

    def __init__(self, window: int) -> None:
        self._keep = 1.0 - 1.0 / window
        self._accepted = np.zeros(_BINS)
        self._trials = np.zeros(_BINS)
        self._stated = (np.arange(_BINS) + 0.5) / _BINS

    def add(self, stated: NDArray[np.float64], accepted: NDArray[np.bool_]) -> None:
        bins = _bins(stated)
        self._trials *= self._keep
        self._accepted *= self._keep
        self._trials += np.bincount(bins, minlength=_BINS)
        self._accepted += np.bincount(bins, weights=accepted, minlength=_BINS)

    def rates(self, stated: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the observed rate of each stated probability; rows must not rise, and do not."""
        rates = (self._accepted + _PRIOR_TRIALS * self._stated) / (self._trials + _PRIOR_TRIALS)
        lowered: NDArray[np.float64] = np.minimum.accumulate(rates[_bins(stated)], axis=1)
        return lowered


def _bins(stated: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.minimum(stated * _BINS, _BINS - 1).astype(np.intp)


@dataclass(frozen=True, slots=True)
class _Memory:
    server: ServerView
    stated: PerRequest
    """Survival that the drafter stated for each request's last draft."""
    calibration: _Calibration | None


@final
class DraftGoodput(Policy):
    """Draft at full length, and verify the tokens that raise goodput most.

    The drafter states a probability for every token. Their products along a draft, S_ij, estimate
    that its first j tokens are accepted, and the lengths k_i that maximise

        (n + sum_i sum_{j <= k_i} S_ij) / T(n + sum_i k_i)

    are found as in `goodput_exact`. Over a suffix tree S_ij is the D(N) of its node: the
    combination of SuffixDecoding with TurboSpec's goodput that Oliaro et al. (2024), appendix C,
    leave as future work ("more speculation from sequences with higher marginal scores"). Unlike
    `adaptive_verification` it sizes the step by this step's drafts, and it does not take the
    drafter at its word: a frequency among few occurrences is overconfident, so stated
    probabilities are replaced by what came of tokens with about the same one.
    """

    kind: Literal["draft_goodput"] = "draft_goodput"
    examples: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"calibrate": False})
    uses_confidences: ClassVar[bool] = True
    needs_sync: ClassVar[bool] = True
    calibrate: bool = True
    """Correct stated probabilities by what was observed."""
    window: int = Field(default=1000, ge=1)
    """Steps after which an observation has faded to 1/e."""

    def start(self, server: ServerView) -> _Memory:
        """Return a drafter that is taken at its word."""
        calibration = _Calibration(self.window) if self.calibrate else None
        return _Memory(server, PerRequest(0.0, server.max_draft_len), calibration)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int:
        """Return the longest length: what is worth verifying shows when it has been drafted."""
        return memory.server.max_draft_len

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> list[int]:
        """Return the lengths of highest goodput among what was drafted."""
        server, longest = memory.server, drafts.confidences.shape[1]
        stated = np.cumprod(drafts.confidences, axis=1, dtype=np.float64)
        rows = memory.stated.rows(batch.requests)
        last = memory.stated[rows]
        last[:, :longest] = stated
        memory.stated[rows] = last
        gains = stated if memory.calibration is None else memory.calibration.rates(stated)
        draft_lens = np.array(drafts.draft_lens, dtype=np.intp)
        gains = np.where(np.arange(longest) < draft_lens[:, np.newaxis], gains, 0.0)
        load = batch.load._replace(
            batched_tokens=batch.load.batched_tokens - int(draft_lens.sum()),
            num_requests=batch.size - sum(batch.in_prefill),
        )

        def step_times(
            load: StepLoad, tokens: NDArray[np.int64], draft_len: int
        ) -> NDArray[np.float64]:
            return server.step_times(load, tokens, longest)  # the drafts are made already

        best = best_lens(gains, load, step_times)
        lens: list[int] = np.minimum(best, draft_lens).tolist()
        return lens

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Compare what was stated with what came of it."""
        if memory.calibration is None or not any(outcome.draft_lens):
            return
        stated = memory.stated[memory.stated.rows(outcome.requests)]
        places = np.arange(stated.shape[1])
        was_verified = places < np.array(outcome.draft_lens)[:, np.newaxis]
        was_accepted = places < np.array(outcome.accepted_lens)[:, np.newaxis]
        memory.calibration.add(stated[was_verified], was_accepted[was_verified])
