"""Goodput by what the drafter itself says of each token."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.step import BatchView, DraftView, Ints, StepLoad, StepOutcome
from specsim.policies._budget import best_lens
from specsim.policies._estimate import PerRequest
from specsim.policies._kernels import Calibrating, Desk, blank, calibrated_gains, tally
from specsim.policies._times import Lens
from specsim.policies.base import Policy, ServerView

__all__ = ["DraftGoodput"]

Gains = NDArray[np.float64]

_STATED = 20  # bins of equal width
_LEN_CLASSES = (2, 3, 5, 9, 17)  # tokens, the least of each class but the first
_DEPTH_CLASSES = (2, 3, 5, 9)
_KINDS = (len(_LEN_CLASSES) + 1) * (len(_DEPTH_CLASSES) + 1)
_LEN_KINDS = np.digitize(np.arange(256), _LEN_CLASSES) * (len(_DEPTH_CLASSES) + 1)
_DEPTH_KINDS = np.digitize(np.arange(1, 257), _DEPTH_CLASSES)
_PRIOR_TRIALS = 20.0  # that a bin's prior counts for


class _Calibration:
    """What came of the tokens that the drafter gave a probability of 0-5 %, 5-10 %, ...

    Among equal probabilities it tells drafts of different length apart, and first tokens from later
    ones. Frequencies say little: whatever stood in a text once before goes on as it did with the
    same stated probability, 0.5, after a match of one token or of twenty. How long a draft the
    lookup dares to make is how long its match is.
    """

    def __init__(self, window: int, longest: int) -> None:
        self._constants = np.array([1.0 - 1.0 / window, _PRIOR_TRIALS])
        self.bins = PerRequest(0, longest, dtype=np.int64)
        """Of each token of each request's last draft."""
        self._counts = np.zeros((2, _STATED * _KINDS))
        """Accepted tokens and trials."""
        self._desk = Desk(self._calibrating, calibrated_gains, tally)

    def gains(self, requests: Ints, drafts: DraftView, *, are_new: bool) -> Gains:
        """Return the observed rates of the like of some drafts; see `_Memory.gains`.

        They are good until it is asked again.
        """
        num, longest = drafts.confidences.shape
        size = num * longest
        desk = self._desk.fit(max(num, size), self.bins.up_to(requests))
        desk.requests[:num] = requests
        desk.draft_lens[:num] = drafts.draft_lens
        if are_new:
            desk.confidences[:size] = drafts.confidences.ravel()
        desk.sizes[0], desk.sizes[1], desk.sizes[2] = num, longest, are_new
        self._desk.runs[0]()
        return desk.gains[:size].reshape(longest, num).T

    def add(self, outcome: StepOutcome) -> None:
        """Take in the fate of the tokens of a step."""
        num = len(outcome.requests)
        desk = self._desk.fit(num, self.bins.up_to(outcome.requests))
        desk.requests[:num] = outcome.requests
        desk.draft_lens[:num] = outcome.draft_lens
        desk.accepted_lens[:num] = outcome.accepted_lens
        desk.sizes[0] = num
        self._desk.runs[1]()

    def _calibrating(self, room: int, bins: Ints) -> Calibrating:
        return blank(
            Calibrating,
            room,
            bins=bins,
            len_kinds=_LEN_KINDS,
            place_kinds=_DEPTH_KINDS,
            rates=np.zeros(_STATED * _KINDS),
            counts=self._counts,
            constants=self._constants,
            seen=np.zeros((2, _STATED * _KINDS)),
            sizes=np.array([0, 0, 0, _KINDS]),
        )


@dataclass(slots=True)
class _Memory:
    server: ServerView
    calibration: _Calibration | None
    has_seen_drafts: bool = False
    """Whether drafts were looked at as they were made, and what is verified are parts of them."""

    def gains(self, requests: Ints, drafts: DraftView, *, are_new: bool) -> Gains:
        """Return the probability that each token of some drafts is accepted; 0 beyond their ends.

        Of drafts that have just been made (`are_new`) the bins are noted.
        """
        draft_lens, longest = drafts.draft_lens, drafts.confidences.shape[1]
        if self.calibration is None:
            stated = np.cumprod(drafts.confidences, axis=1, dtype=np.float64)
            return np.where(np.arange(longest) < draft_lens[:, np.newaxis], stated, 0.0)
        return self.calibration.gains(requests, drafts, are_new=are_new)


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
        longest = server.max_draft_len
        return _Memory(server, _Calibration(self.window, longest) if self.calibrate else None)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int | Ints:
        """Return what is worth drafting; where that shows only afterwards, the longest length."""
        server, drafts, load = memory.server, batch.drafts, batch.decode_load()
        if drafts is None:
            return server.max_draft_len
        memory.has_seen_drafts = True
        if not drafts.draft_lens.any() or not load.num_requests:
            return 0
        gains = memory.gains(batch.requests, drafts, are_new=True)
        per_token = (server.step_time(load, 1) - server.step_time(load, 0)) / load.num_requests

        def step_times(load: StepLoad, tokens: NDArray[np.int64], draft_lens: Lens) -> Gains:
            drafted = tokens - load.batched_tokens
            return server.step_times(load, tokens, 0) + per_token * drafted

        return best_lens(gains, load, step_times, free_slots=batch.free_slots, one_cost=True)

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> Ints:
        """Return the lengths of highest goodput among what was drafted."""
        server, draft_lens = memory.server, drafts.draft_lens
        gains = memory.gains(batch.requests, drafts, are_new=not memory.has_seen_drafts)
        load = batch.load._replace(
            batched_tokens=batch.load.batched_tokens - int(np.add.reduce(draft_lens)),
            num_requests=batch.size - int(np.count_nonzero(batch.in_prefill)),
        )

        # The drafts are made already; the next ones will take about as long. Many sequences have
        # short ones or none, so that is not as long as the longest one for each.
        best = best_lens(gains, load, server.step_times, one_cost=True, drafts=draft_lens)
        lens: Ints = np.minimum(best, draft_lens)
        return lens

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Note what came of what was stated."""
        if memory.calibration is not None and np.count_nonzero(outcome.draft_lens):
            memory.calibration.add(outcome)
