"""SpecServe: draft on while it pays for the batch, then verify its surest tokens in time."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.step import BatchView, DraftView, Ints, StepLoad
from specsim.decisions.policy import ServerView
from specsim.policies.parts.budget import best_common_len, best_lens, times_by_len
from specsim.policies.parts.estimate import AlphaWindow, EstimatesAlpha, Estimating
from specsim.policies.parts.times import Lens


@dataclass(slots=True)
class _Memory(Estimating[AlphaWindow]):
    tpot: float | None
    """Limit on a step, seconds."""

    def times_within(self, load: StepLoad, tokens: Ints, lens: Lens) -> NDArray[np.float64]:
        """Return what steps take; for ever if that is beyond the limit, which one could keep."""
        times = self.server.step_times(load, tokens, lens)
        if self.tpot is None or times[0] > self.tpot:
            return times
        return np.where(times > self.tpot, np.inf, times)


@final
class SpecServe(EstimatesAlpha[_Memory]):
    """The batch drafts while one more token of each raises efficiency; the surest are verified.

    Huang et al. (2025), "SpecServe: Efficient and SLO-Aware Large Language Model Serving with
    Adaptive Speculative Decoding", arXiv 2503.05096 (later "AdaSpec"): expected tokens of a step
    over the time of drafting and verification. After each pass the drafter goes on if with a token
    more for all, accepted as often as those of late, that is higher; of what is drafted the most
    probable tokens are verified, by products of confidences, as many as make it highest. Chosen
    here, where the paper was not at hand: that a step may not take longer than the limit on time
    per output token, so that a request whose drafts all fail is on time, unless it would without
    drafts; and, where confidences come too late (asynchronous scheduling), the best k for all
    by acceptance of late.
    """

    kind: Literal["spec_serve"] = "spec_serve"
    uses_confidences: ClassVar[Literal[False, True, "if known"]] = "if known"
    needs_sync: ClassVar[Literal[False, True, "by default"]] = "by default"
    tpot_ms: float | None = Field(default=None, gt=0)
    """Limit on time per output token; by default the experiment's ``slo.tpot_ms``, if any."""
    window: int = Field(default=50, ge=1)
    """Steps that the acceptance rate goes over."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """It before anything has been seen."""

    def start(self, server: ServerView) -> _Memory:
        """Return the prior and the limit."""
        tpot = server.tpot_slo if self.tpot_ms is None else self.tpot_ms * 1e-3
        return _Memory(server, AlphaWindow(self.window, self.prior), tpot)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int:
        """Return the longest draft, which is stopped; or what has been best of late."""
        if memory.server.has_confidences:
            return memory.server.max_draft_len
        load, alpha = batch.decode_load(), memory.alphas.alpha
        return best_common_len(memory.server, load, alpha, batch.free_slots)

    def stop_len(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> int:
        """Return the first length beyond which a token more would not pay."""
        load, alpha = batch.decode_load(), memory.alphas.alpha
        num, longest = load.num_requests, int(drafts.confidences.shape[1])
        if not num:
            return longest  # all are in mid-prefill
        survival = _survival(drafts)
        if np.count_nonzero(batch.in_prefill):
            survival = survival[:, ~batch.in_prefill]
        gains = np.add.accumulate(survival, axis=1)[:, -1]
        emitted = [num + gain for gain in np.cumsum(gains).tolist()]
        times = times_by_len(memory.server, load, longest + 1)
        for k in range(1, longest):
            longer = emitted[k - 1] + alpha * float(gains[k - 1])
            if longer / times[k + 1] <= emitted[k - 1] / times[k]:
                return k
        return longest

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> Ints:
        """Return how many tokens of each draft are among those that are worth verifying."""
        lens, server = drafts.draft_lens, memory.server
        if not server.has_confidences or not drafts.confidences.shape[1]:
            return lens
        load = batch.load._replace(
            batched_tokens=batch.load.batched_tokens - int(np.add.reduce(lens)),
            num_requests=batch.size - int(np.count_nonzero(batch.in_prefill)),
        )
        times = server.step_times if memory.tpot is None else memory.times_within
        best = best_lens(_survival(drafts).T, load, times, one_cost=True, drafts=lens)
        return np.minimum(best, lens)


def _survival(drafts: DraftView) -> NDArray[np.float64]:
    """Return how likely the first 1, 2, ... tokens of each draft are accepted, in rows of these."""
    longest = drafts.confidences.shape[1]
    survival = drafts.confidences.T.astype(np.float64, order="C")
    for place in range(1, longest):
        survival[place] *= survival[place - 1]
    survival *= np.arange(longest)[:, np.newaxis] < drafts.draft_lens
    return survival
