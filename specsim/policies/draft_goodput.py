"""Goodput by what the drafter itself says of each token."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.compiled import Loop, inner
from specsim.core.desk import Desk, FloatRows, Floats, Ints, PerRequest, ShortRows, loop_on
from specsim.core.step import BatchView, DraftView, StepLoad, StepOutcome
from specsim.decisions.policy import Policy, ServerView
from specsim.policies.parts.budget import best_lens, best_of_drafts
from specsim.policies.parts.times import Lens

Gains = NDArray[np.float64]

_STATED = 20  # bins of equal width
_LEN_CLASSES = (2, 3, 5, 9, 17)  # tokens, the least of each class but the first
_DEPTH_CLASSES = (2, 3, 5, 9)
LEN_KINDS = np.digitize(np.arange(256), _LEN_CLASSES)
"""Class of a draft by its length, below"""
KINDS, DEPTHS = len(_LEN_CLASSES) + 1, len(_DEPTH_CLASSES) + 1
"""this; and as many classes of places in it."""
_DEPTH_KINDS = np.digitize(np.arange(1, 257), _DEPTH_CLASSES)


class Calibrating(NamedTuple):
    """Stated probabilities, and what came of their like."""

    bins: ShortRows
    """Of each token of each request's last draft, shape (requests, at least longest)."""
    row_kinds: Ints
    """Of each draft; a token is of the sum of this"""
    place_kinds: Ints
    """and this, by its place in it."""
    rates: Floats
    """What was observed of each bin: all kinds of the lowest stated probability, and so on; filled
    in."""
    counts: FloatRows
    """Accepted tokens and verified ones, fading, shape (2, bins)."""
    constants: Floats
    """Share of the counts that stays; trials that a bin's prior counts for."""
    seen: FloatRows
    """Accepted tokens and verified ones of a step, shape (2, bins)."""
    requests: Ints
    draft_lens: Ints
    accepted_lens: Ints
    confidences: Floats
    """Shape (n, longest): of each token, if all before it were accepted."""
    gains: Floats
    """Shape (longest, n); filled in."""
    sizes: Ints
    """n, longest, whether the drafts are new; kinds."""


@inner
def _observe_rates(desk: Calibrating) -> None:
    """Work out the rate of each bin, shrunk to that of its level, shrunk to what was stated."""
    counts, rates, weight = desk.counts, desk.rates, desk.constants[1]
    num_kinds = desk.sizes[3]
    num_levels = len(rates) // num_kinds
    for level in range(num_levels):
        first = level * num_kinds
        accepted, trials = 0.0, 0.0
        for kind in range(num_kinds):
            accepted += counts[0, first + kind]
            trials += counts[1, first + kind]
        alike = (accepted + weight * ((level + 0.5) / num_levels)) / (trials + weight)
        for kind in range(num_kinds):
            trials = counts[1, first + kind] + weight
            rates[first + kind] = (counts[0, first + kind] + weight * alike) / trials


@inner
def gains_of(desk: Calibrating) -> None:
    """Work out how likely each token of some drafts is accepted, by what was observed of its like.

    Bins of new tokens are noted. Gains do not rise along a draft, and are 0 beyond its end.
    """
    _observe_rates(desk)
    bins, rates, gains = desk.bins, desk.rates, desk.gains
    num, longest, are_new = desk.sizes[0], desk.sizes[1], desk.sizes[2]
    num_kinds = desk.sizes[3]
    num_levels = len(rates) // num_kinds
    for row in range(num):
        request, draft_len, row_kind = desk.requests[row], desk.draft_lens[row], desk.row_kinds[row]
        stated = 1.0
        lowest = 2.0
        for place in range(longest):
            if are_new:
                stated = stated * desk.confidences[row * longest + place]
                level = int(min(stated * num_levels, num_levels - 1.0))
                bin_ = level * num_kinds + (row_kind + desk.place_kinds[place])
                bins[request, place] = bin_
            else:
                bin_ = bins[request, place]
            lowest = min(lowest, rates[bin_])  # branch-free
            gains[place * num + row] = lowest if place < draft_len else 0.0


@inner
def tally(desk: Calibrating) -> None:
    """Count the tokens of a step that were verified and accepted, by their bins."""
    bins, seen, counts = desk.bins, desk.seen, desk.counts
    longest, num_bins, keep = bins.shape[1], seen.shape[1], desk.constants[0]
    for kind in range(2):
        for index in range(num_bins):
            seen[kind, index] = 0.0
    for row in range(desk.sizes[0]):
        request = desk.requests[row]
        for place in range(min(desk.draft_lens[row], longest)):
            bin_ = bins[request, place]
            seen[1, bin_] += 1.0
            seen[0, bin_] += 1.0 if place < desk.accepted_lens[row] else 0.0
    for kind in range(2):
        for index in range(num_bins):
            counts[kind, index] = keep * counts[kind, index] + seen[kind, index]


@loop_on(Calibrating)
def calibrated_gains(desk: Calibrating) -> int:
    """Do what `gains_of` does."""
    gains_of(desk)
    return 0


@loop_on(Calibrating)
def learn_rates(desk: Calibrating) -> int:
    """Do what `tally` does."""
    tally(desk)
    return 0


def bins_of(longest: int) -> PerRequest:
    """Return the bin of each token of each request's last draft."""
    return PerRequest(0, longest, dtype=np.int16)


def calibrating_desk(bins: PerRequest, window: int, *loops: Loop) -> Desk[Calibrating]:
    """Return a desk of `ConfidenceCalibration`, before anything was observed."""
    num_bins = _STATED * KINDS * DEPTHS
    return Desk(
        Calibrating,
        *loops,
        bins=bins,
        place_kinds=_DEPTH_KINDS,
        rates=num_bins,
        counts=np.zeros((2, num_bins)),
        constants=np.array([1.0 - 1.0 / window, 20.0]),  # that a bin's prior counts for
        seen=(2, num_bins),
    )


class ConfidenceCalibration:
    """What came of the tokens that the drafter gave a probability of 0-5 %, 5-10 %, ...

    Among equal probabilities it tells drafts of different length apart, and first tokens from later
    ones. Frequencies say little: whatever stood in a text once before goes on as it did with the
    same stated probability, 0.5, after a match of one token or of twenty. How long a draft the
    lookup dares to make is how long its match is.
    """

    def __init__(self, window: int, longest: int) -> None:
        self.bins = bins_of(longest)
        self._desk = calibrating_desk(self.bins, window, calibrated_gains, learn_rates)

    def gains(self, requests: Ints, drafts: DraftView, kinds: Ints, *, are_new: bool) -> Gains:
        """Return the observed rates of the like of some drafts, until it is asked again.

        Kinds tell drafts apart of which equal statements mean different things: a number below
        `KINDS` for each.
        """
        num, longest = drafts.confidences.shape
        size = num * longest
        desk = self._desk.fit(max(num, size), requests)
        desk.draft_lens[:num] = drafts.draft_lens
        if are_new:
            desk.confidences[:size] = drafts.confidences.ravel()
            np.multiply(kinds, DEPTHS, out=desk.row_kinds[:num])
        sizes = desk.sizes
        sizes[0], sizes[1], sizes[2], sizes[3] = num, longest, are_new, KINDS * DEPTHS
        self._desk.runs[0]()
        return desk.gains[:size].reshape(longest, num).T

    def add(self, outcome: StepOutcome) -> None:
        """Take in the fate of the tokens of a step."""
        self._desk.put(outcome)
        self._desk.runs[1]()


@dataclass(slots=True)
class _Memory:
    server: ServerView
    calibration: ConfidenceCalibration | None
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
        kinds = LEN_KINDS[draft_lens]
        return self.calibration.gains(requests, drafts, kinds, are_new=are_new)


@final
class DraftGoodput(Policy[_Memory]):
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
    uses_confidences: ClassVar[Literal[False, True, "if known"]] = True
    needs_sync: ClassVar[bool] = True
    calibrate: bool = True
    """Correct stated probabilities by what was observed."""
    window: int = Field(default=1000, ge=1)
    """Steps after which an observation has faded to 1/e."""

    def start(self, server: ServerView) -> _Memory:
        """Return a drafter that is taken at its word."""
        longest = server.max_draft_len
        return _Memory(
            server, ConfidenceCalibration(self.window, longest) if self.calibrate else None
        )

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
        return best_of_drafts(batch, draft_lens, gains, server.step_times)

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Note what came of what was stated."""
        if memory.calibration is not None and np.count_nonzero(outcome.draft_lens):
            memory.calibration.add(outcome)
