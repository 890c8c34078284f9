"""Draft while the drafter is sure, then verify by goodput."""

from typing import Literal, NamedTuple, final

import numpy as np
from pydantic import Field

from specsim.core.desk import Ints, LocalDesk, Singles, loop_on
from specsim.core.step import BatchView, DraftView
from specsim.decisions.policy import Policy, ServerView


class Stated(NamedTuple):
    """Scratch arrays for `cut_to_size`."""

    draft_lens: Ints
    survival: Singles
    """Shape (n, longest), flattened: confidences, which the loop replaces by their products."""
    budgets: Ints  # output: tokens of all drafts when cut to 0, 1, ..., longest
    sizes: Ints  # n, longest


@loop_on(Stated)
def cut_to_size(desk: Stated) -> int:
    """Replace confidences by survival, and count the tokens of all drafts cut to each length."""
    survival, budgets, num, longest = desk.survival, desk.budgets, desk.sizes[0], desk.sizes[1]
    for place in range(longest + 1):
        budgets[place] = 0
    for row in range(num):
        budgets[desk.draft_lens[row]] += 1
        first = row * longest
        for index in range(first + 1, first + longest):
            survival[index] = survival[index - 1] * survival[index]
    longer = num
    tokens = 0
    for place in range(longest + 1):
        ending = budgets[place]
        budgets[place] = tokens
        longer -= ending
        tokens += longer
    return 0


_DESK = LocalDesk(Stated, cut_to_size)


@final
class Confidence(Policy[ServerView]):
    """Each request drafts until the drafter's confidence in a token falls to the threshold.

    Then the verification length v of highest goodput is chosen for the batch: the expected number
    of accepted tokens is the sum over all requests of the products of their confidences. Liu et
    al. (2024), "SmartSpec", appendix, algorithm 3. At least one token is always drafted (in line 4
    the confidence starts at 1), which costs time under load.
    """

    kind: Literal["confidence"] = "confidence"
    uses_confidences = True
    needs_sync = True
    threshold: float = Field(default=0.3, ge=0, le=1)
    """Confidence at or below which a request stops drafting."""

    def draft_lens(self, batch: BatchView, memory: ServerView) -> int:
        """Return the longest draft: the drafter stops by itself."""
        return memory.max_draft_len

    def stop_len(self, batch: BatchView, drafts: DraftView, memory: ServerView) -> Ints:
        """Return each draft up to the first token that the drafter is not sure enough of."""
        is_unsure = drafts.confidences <= self.threshold
        is_unsure[:, -1:] = True  # nothing is drafted beyond
        drafted: Ints = np.minimum(is_unsure.argmax(axis=1) + 1, drafts.draft_lens)
        return drafted

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: ServerView) -> Ints:
        """Return each draft's length, cut to the common verification length of highest goodput."""
        draft_lens, confidences = drafts.draft_lens, drafts.confidences
        (num, longest), size = confidences.shape, confidences.size
        desk = _DESK.fit(max(num, size))
        desk.draft_lens[:num] = draft_lens
        desk.survival[:size] = confidences.ravel()
        desk.sizes[:2] = num, longest
        _DESK.runs[0]()
        budgets, emitted = desk.budgets[: longest + 1], np.zeros(longest + 1)
        gains = np.add.reduce(desk.survival[:size].reshape(num, longest), axis=0)
        np.add.accumulate(gains, out=emitted[1:])
        emitted += batch.size - np.count_nonzero(batch.in_prefill)
        tokens = budgets + (batch.load.batched_tokens - budgets[longest])
        times = memory.step_times(batch.load, tokens, longest)
        verified: Ints = np.minimum(draft_lens, int((emitted / times).argmax()))
        return verified
