"""The draft length that recent acceptance and recent step times make best."""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from pydantic import Field

from specsim.core.step import BatchView, Ints, StepOutcome
from specsim.decisions.policy import ServerView
from specsim.policies.parts.estimate import (
    AlphaPerRequest,
    EstimatesAlpha,
    Estimating,
    best_windows,
)


@dataclass(slots=True)
class _Memory(Estimating[AlphaPerRequest]):
    draft_pass_time: float = 0.0
    """a: seconds per drafted token, last seen."""
    verify_time: float = 0.0
    """b: seconds per step without drafting, last seen."""


@final
class WindowOpt(EstimatesAlpha[_Memory]):
    """Per request, the k that maximises l(alpha, k) / (k a + b), all three observed online.

    alpha: maximum likelihood over the request's last drafts, accepted / (accepted + drafts with a
    rejection), capped at `alpha_max`; a and b: the most recent drafting time per token and
    verification time, of steps that read no prompt, which says nothing of what verifying takes. "A
    Drop-in Solution for On-the-fly Adaptation of Speculative Decoding", section 4.1, eq. 1 and 2.
    There is no profile and no term for the batch: b is what the last step happened to take.
    """

    kind: Literal["window_opt"] = "window_opt"
    window: int = Field(default=16, ge=1)
    """h, drafts of a request over which its past fades."""
    alpha_max: float = Field(default=0.98, gt=0, lt=1)
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before anything has been seen."""

    def start(self, server: ServerView) -> _Memory:
        """Return the prior, and no time seen."""
        return _Memory(server, AlphaPerRequest(self.window, self.prior, 1.0))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int | Ints:
        """Return the best length of each request; the longest until times have been seen."""
        if memory.draft_pass_time == 0.0 or memory.verify_time == 0.0:
            return memory.server.max_draft_len
        alphas = np.minimum(memory.alphas.alphas(batch.requests), self.alpha_max)
        longest = memory.server.max_draft_len
        return best_windows(alphas, longest, memory.draft_pass_time, memory.verify_time)

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Learn alpha from the drafts, a and b from the clock."""
        super().observe(outcome, memory)
        if outcome.load.prefill_tokens:
            return
        memory.verify_time = outcome.target_time + outcome.overhead_time
        longest = int(outcome.draft_lens.max(initial=0))
        if longest:
            memory.draft_pass_time = outcome.draft_time / longest
