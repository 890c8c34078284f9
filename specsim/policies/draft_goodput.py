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

Gains = NDArray[np.float64]

_STATED = 20  # bins of equal width
_LEN_CLASSES = (2, 3, 5, 9, 17)  # tokens, the least of each class but the first
_DEPTH_CLASSES = (2, 3, 5, 9)
_KINDS = (len(_LEN_CLASSES) + 1) * (len(_DEPTH_CLASSES) + 1)
_PRIOR_TRIALS = 20.0  # that a bin's prior counts for


class _Calibration:
    """What came of the tokens that the drafter gave a probability of 0-5 %, 5-10 %, ...

    Among equal probabilities it tells drafts of different length apart, and first tokens from later
    ones. Frequencies say little: whatever stood in a text once before goes on as it did with the
    same stated probability, 0.5, after a match of one token or of twenty. How long a draft the
    lookup dares to make is how long its match is.
    """

    def __init__(self, window: int) -> None:
        self._keep = 1.0 - 1.0 / window
        self._accepted = np.zeros((_STATED, _KINDS))
        self._trials = np.zeros((_STATED, _KINDS))
        self._stated = (np.arange(_STATED) + 0.5) / _STATED

    @staticmethod
    def bins(stated: NDArray[np.float64], draft_lens: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the bin of each token, of drafts in rows."""
        depths = np.digitize(np.arange(1, stated.shape[1] + 1), _DEPTH_CLASSES)
        lens = np.digitize(draft_lens, _LEN_CLASSES)[:, np.newaxis]
        kinds = lens * (len(_DEPTH_CLASSES) + 1) + depths
        rows = np.minimum(stated * _STATED, _STATED - 1).astype(np.intp)
        places: NDArray[np.intp] = rows * _KINDS + kinds
        return places

    def add(self, bins: NDArray[np.intp], accepted: NDArray[np.bool_]) -> None:
        """Take in the fate of some tokens."""
        shape = self._trials.shape
        self._trials *= self._keep
        self._accepted *= self._keep
        self._trials += np.bincount(bins, minlength=_STATED * _KINDS).reshape(shape)
        self._accepted += np.bincount(bins, accepted, minlength=_STATED * _KINDS).reshape(shape)

    def rates(self, bins: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the observed rate of each token; rows must not rise, and do not."""
        alike = _shrunk(self._accepted.sum(axis=1), self._trials.sum(axis=1), self._stated)
        rates = _shrunk(self._accepted, self._trials, alike[:, np.newaxis]).ravel()[bins]
        lowered: NDArray[np.float64] = np.minimum.accumulate(rates, axis=1)
        return lowered


def _shrunk(
    accepted: NDArray[np.float64], trials: NDArray[np.float64], prior: NDArray[np.float64]
) -> NDArray[np.float64]:
    return (accepted + _PRIOR_TRIALS * prior) / (trials + _PRIOR_TRIALS)


@dataclass(slots=True)
class _Memory:
    server: ServerView
    bins: PerRequest
    """Of the calibration, of each token of each request's last draft."""
    calibration: _Calibration | None
    has_seen_drafts: bool = False
    """Whether drafts were looked at as they were made, and what is verified are parts of them."""

    def gains(self, requests: list[int], drafts: DraftView, *, are_new: bool) -> Gains:
        """Return the probability that each token of some drafts is accepted; 0 beyond their ends.

        Parameters
        ----------
        requests : list of int
        drafts : DraftView
        are_new : bool
            Whether they have just been made, so that their bins have to be noted.
        """
        longest, draft_lens = drafts.confidences.shape[1], np.array(drafts.draft_lens)
        gains = np.cumprod(drafts.confidences, axis=1, dtype=np.float64)
        if self.calibration is not None:
            rows = self.bins.rows(requests)
            bins = self.bins[rows]
            if are_new:
                bins[:, :longest] = self.calibration.bins(gains, draft_lens)
                self.bins[rows] = bins
            gains = self.calibration.rates(bins[:, :longest].astype(np.intp))
        return np.where(np.arange(longest) < draft_lens[:, np.newaxis], gains, 0.0)


@final
class DraftGoodput(Policy):
    """Draft and verify the tokens that raise goodput most, by what the drafter says of each.

    The drafter states a probability for every token. Their products along a draft, S_ij, estimate
    that its first j tokens are accepted, and the lengths k_i that maximise

        (n + sum_i sum_{j <= k_i} S_ij) / T(n + sum_i k_i)

    are found as in `goodput_exact`. A model drafts at full length, and what is not worth verifying
    is dropped; a lookup states its probabilities as it drafts, and stops where more would not pay
    for drafting and verification. Over a suffix tree S_ij is the D(N) of its node: the
    combination of SuffixDecoding with TurboSpec's goodput that Oliaro et al. (2024), appendix C,
    leave as future work ("more speculation from sequences with higher marginal scores"). Unlike
    `adaptive_verification` it sizes the step by this step's drafts, and it does not take the
    drafter at its word: a frequency among few occurrences is overconfident, so stated
    probabilities are replaced by what came of tokens with about the same one, in drafts of about
    the same length and at about the same place in them.
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

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int | list[int]:
        """Return what is worth drafting; where that shows only afterwards, the longest length."""
        server, drafts, load = memory.server, batch.drafts, batch.decode_load()
        if drafts is None:
            return server.max_draft_len
        memory.has_seen_drafts = True
        if not any(drafts.draft_lens) or not load.num_requests:
            return 0
        gains = memory.gains(batch.requests, drafts, are_new=True)
        per_token = (server.step_time(load, 1) - server.step_time(load, 0)) / load.num_requests

        def step_times(load: StepLoad, tokens: NDArray[np.int64], draft_len: int) -> Gains:
            drafted = tokens - load.batched_tokens
            return server.step_times(load, tokens, 0) + per_token * drafted

        lens: list[int] = best_lens(gains, load, step_times, free_slots=batch.free_slots).tolist()
        return lens

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> list[int]:
        """Return the lengths of highest goodput among what was drafted."""
        server, draft_lens = memory.server, drafts.draft_lens
        gains = memory.gains(batch.requests, drafts, are_new=not memory.has_seen_drafts)
        load = batch.load._replace(
            batched_tokens=batch.load.batched_tokens - sum(draft_lens),
            num_requests=batch.size - sum(batch.in_prefill),
        )

        def step_times(load: StepLoad, tokens: NDArray[np.int64], draft_len: int) -> Gains:
            # The drafts are made already; the next ones will take about as long. Many sequences
            # have short ones or none, so that is not as long as the longest one for each.
            return server.step_times(load, tokens, draft_lens)

        best = best_lens(gains, load, step_times)
        lens: list[int] = np.minimum(best, draft_lens).tolist()
        return lens

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Note what came of what was stated."""
        if memory.calibration is None or not any(outcome.draft_lens):
            return
        bins = memory.bins[memory.bins.rows(outcome.requests)].astype(np.intp)
        places = np.arange(bins.shape[1])
        was_verified = places < np.array(outcome.draft_lens)[:, np.newaxis]
        was_accepted = places < np.array(outcome.accepted_lens)[:, np.newaxis]
        memory.calibration.add(bins[was_verified], was_accepted[was_verified])
