"""Goodput by what the drafter itself says of each token."""

from typing import Annotated, Any, Literal, NamedTuple, Protocol, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Desk, FloatRows, Floats, Ints, PerRequest, ShortRows
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.estimate import longest_of, put_decodes
from specsim.policies.parts.spending import (
    Spending,
    put_stated,
    spend,
    spend_on_drafts_made,
    spending_desk,
)
from specsim.profile.step_time import priced

_STATED = 20  # bins of equal width
_LEN_CLASSES = (2, 3, 5, 9, 17)  # tokens, the least of each class but the first
_DEPTH_CLASSES = (2, 3, 5, 9)
LEN_KINDS = np.digitize(np.arange(256), _LEN_CLASSES)
"""Class of a draft by its length, in 0 to KINDS - 1."""
KINDS, DEPTHS = len(_LEN_CLASSES) + 1, len(_DEPTH_CLASSES) + 1
"""Number of classes of draft lengths, and of token positions in a draft."""
_DEPTH_KINDS = np.digitize(np.arange(1, 257), _DEPTH_CLASSES)


class Calibrating(NamedTuple):
    """Acceptance observed for tokens by stated probability, draft length and position (bins)."""

    bins: ShortRows
    """Of each token of each request's last draft, shape (requests, at least longest)."""
    row_kinds: Ints  # DEPTHS x class of each draft; the kind of a token is this
    place_kinds: Ints  # plus this, the class of its position
    rates: Floats
    """Output: acceptance rate of each bin; bin = level of stated probability x kinds + kind."""
    counts: FloatRows  # accepted and verified tokens, fading, shape (2, bins)
    constants: Floats  # share of the counts kept per step; trials that a bin's prior counts for
    seen: FloatRows  # accepted and verified tokens of a step, shape (2, bins)
    requests: Ints
    draft_lens: Ints
    accepted_lens: Ints
    confidences: Floats  # shape (n, longest): stated P(accepted | all before it were)
    gains: Floats  # output: survival of each token, shape (longest, n)
    sizes: Ints  # n, longest, 1 if the drafts are new, number of kinds


@inner
def _observe_rates(desk: Calibrating) -> None:
    """Compute each bin's rate, shrunk to its level's rate, which is shrunk to the stated one."""
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
    """Set `gains`: how likely each draft token is accepted, by the observed rate of its bin.

    Stores the bins of new drafts. Gains do not rise along a draft, and are 0 beyond its end.
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


def bins_of(longest: int) -> PerRequest:
    """Return the bin of each token of each request's last draft."""
    return PerRequest(0, longest, dtype=np.int16)


def calibrating_desk(bins: PerRequest, window: int) -> Desk[Calibrating]:
    """Return a desk without observations, whose counts fade to 1/e in `window` steps."""
    num_bins = _STATED * KINDS * DEPTHS
    return Desk(
        Calibrating,
        bins=bins,
        place_kinds=_DEPTH_KINDS,
        rates=num_bins,
        counts=np.zeros((2, num_bins)),
        constants=np.array([1.0 - 1.0 / window, 20.0]),  # that a bin's prior counts for
        seen=(2, num_bins),
    )


class DraftState(Protocol):
    """What it stands for; flags are 0 or 1."""

    calibrates: int
    has_seen_drafts: int
    """Whether drafts were looked at as they were made, and what is verified are parts of them."""


class DraftMemory(NamedTuple):
    """What it remembers."""

    state: Rows[DraftState]  # one row
    gains: Floats  # as in `Spending`
    calibrating: Annotated[Any, Calibrating]
    len_kinds: Ints  # classes of drafts by their length
    spending: Annotated[Any, Spending]


@inner
def put_gains(view: View, memory: DraftMemory, are_new: bool) -> None:
    """Set `gains`: how likely each draft token is accepted; 0 beyond the end of a draft."""
    step, calibrating = view.step[0], memory.calibrating
    if memory.state[0].calibrates:
        for row in range(step.num_rows):
            calibrating.row_kinds[row] = DEPTHS * memory.len_kinds[view.draft_lens[row]]
        calibrating.sizes[0], calibrating.sizes[1] = step.num_rows, step.width
        calibrating.sizes[2], calibrating.sizes[3] = are_new, KINDS * DEPTHS
        gains_of(calibrating)
    else:
        put_stated(view, memory.gains)


def decide(view: View, memory: DraftMemory) -> None:
    """Ask for the worthwhile part of drafts that a lookup has found, else for the longest."""
    step, num, spending, k = view.step[0], view.step[0].num_decodes, memory.spending, 0
    if not step.has_found:
        k = int(step.max_draft_len)
    elif num and longest_of(view):
        put_gains(view, memory, True)
        put_decodes(view)
        drafting = priced(view.pricing, num, 1)
        drafting -= priced(view.pricing, num, 0)
        spending.extra[1] = drafting / num  # a lookup is paid by the token
        size = step.num_rows * step.width
        spending.sizes[0], spending.sizes[1] = size, min(size, step.free_slots) + 1
        spending.sizes[2], spending.found[0] = step.num_rows, num
        spend(spending)
        spending.extra[1], k = 0.0, -1
    memory.state[0].has_seen_drafts |= step.has_found
    for row in range(step.num_rows):
        view.lens[row] = spending.counts[row] if k < 0 else k


def verify(view: View, memory: DraftMemory) -> None:
    """Verify the lengths of highest goodput among what was drafted."""
    put_gains(view, memory, not memory.state[0].has_seen_drafts)
    spend_on_drafts_made(view, memory.spending)


def observe(view: View, memory: DraftMemory) -> None:
    """Count the accepted and verified tokens of each bin."""
    if memory.state[0].calibrates and longest_of(view):
        memory.calibrating.sizes[0] = view.step[0].num_rows
        tally(memory.calibrating)


@final
class DraftGoodput(LoopPolicy):
    """Draft and verify the tokens that raise goodput most, by what the drafter says of each.

    The drafter states a probability for every token. Their products along a draft, S_ij, estimate
    that its first j tokens are accepted, and the lengths k_i that maximise

        (n + sum_i sum_{j <= k_i} S_ij) / T(n + sum_i k_i)

    are found as in `goodput_exact`. A model drafts at full length, and what is not worth verifying
    is dropped; a lookup states its probabilities as it drafts, and stops where more would not pay
    for drafting and verification. Over a suffix tree S_ij is the D(N) of its node: the combination
    of SuffixDecoding with TurboSpec's goodput that Oliaro et al. (2024), appendix C, leave as
    future work ("more speculation from sequences with higher marginal scores").

    Unlike `adaptive_verification` it sizes the step by this step's drafts, and it does not take the
    drafter at its word. A frequency among few occurrences is overconfident, so stated probabilities
    are replaced by what came of tokens with about the same one, in drafts of about the same length
    and at about the same place in them.
    """

    kind: Literal["draft_goodput"] = "draft_goodput"
    examples = ({}, {"calibrate": False})
    uses_confidences = True
    needs_sync = True
    calibrate: bool = True
    """Replace stated probabilities by the acceptance observed at similar ones."""
    window: int = Field(default=1000, ge=1)
    """Steps after which an observation has faded to 1/e."""

    loops = Loops(DraftMemory, decide=decide, verify=verify, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        """Return a memory without observations: stated probabilities are believed at first."""
        return self.remember(
            server,
            state=row_of(DraftState, calibrates=self.calibrate),
            calibrating=calibrating_desk(bins_of(server.max_draft_len), self.window),
            len_kinds=LEN_KINDS,
            spending=spending_desk(),
        )
