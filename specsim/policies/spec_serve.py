"""SpecServe: draft on while it pays for the batch, then verify its surest tokens in time."""

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.step import BatchView, DraftView, Ints, StepLoad
from specsim.decisions.policy import ServerView
from specsim.policies.parts.budget import best_common_len, best_of_drafts, times_by_len
from specsim.policies.parts.estimate import PRIOR_TRIALS, AlphaWindow, EstimatesAlpha, Estimating
from specsim.policies.parts.times import Lens


@dataclass(slots=True)
class _Memory(Estimating[AlphaWindow]):
    tpot: float
    """Limit on a step, seconds."""
    expected: float
    """Confidence of a token that is not drafted yet: the mean of so many before."""
    num_drafted: float = PRIOR_TRIALS

    def times_within(self, load: StepLoad, tokens: Ints, lens: Lens) -> NDArray[np.float64]:
        """Return what steps take; for ever if that is beyond the limit, which one could keep."""
        times = self.server.step_times(load, tokens, lens)
        return times if times[0] > self.tpot else np.where(times > self.tpot, inf, times)


@final
class SpecServe(EstimatesAlpha[_Memory]):
    """The batch drafts while one more token of each raises efficiency; the surest are verified.

    Huang et al. (2025), "SpecServe: Efficient and SLO-Aware Large Language Model Serving with
    Adaptive Speculative Decoding", arXiv 2503.05096 (later "AdaSpec"): expected tokens of a step
    over the time of drafting and verification. Drafting is as in their released code
    (``vllm/spec_decode/draft_model_runner.py`` at 80d6c4f): a token that is not drafted yet counts
    as sure as the mean of all before; a step drafts if a first token is expected to raise
    efficiency, and on until the next is expected to lower it, or one has, which is kept. Of what
    is drafted the surest tokens are verified, by products of confidences, as many as make
    efficiency highest; the code only rounds their number down to the next CUDA graph. Chosen here:
    that a step may not verify beyond the limit on time per output token, unless it would take
    longer without drafts (the code has a limit, not in use); that the first confidence counts for
    some tokens, lest one draft ends all; and, where confidences come too late (asynchronous
    scheduling), the best k for all by acceptance of late.
    """

    kind: Literal["spec_serve"] = "spec_serve"
    uses_confidences: ClassVar[Literal[False, True, "if known"]] = "if known"
    needs_sync: ClassVar[Literal[False, True, "by default"]] = "by default"
    tpot_ms: float | None = Field(default=None, gt=0)
    """Limit on time per output token; by default the experiment's ``slo.tpot_ms``, if any."""
    first_confidence: float = Field(default=0.6, ge=0, le=1)
    """Of a token before any has been drafted; it counts for five."""
    window: int = Field(default=50, ge=1)
    """Steps that the acceptance rate goes over, asynchronously."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """It before anything has been seen."""

    def start(self, server: ServerView) -> _Memory:
        """Return the prior and the limit."""
        tpot = (server.tpot_slo or inf) if self.tpot_ms is None else self.tpot_ms * 1e-3
        return _Memory(server, AlphaWindow(self.window, self.prior), tpot, self.first_confidence)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int:
        """Return the longest draft, which is stopped, or none; or what has been best of late."""
        load, server = batch.decode_load(), memory.server
        if not server.has_confidences:
            return best_common_len(server, load, memory.alphas.alpha, batch.free_slots)
        if load.num_requests:
            none, one = times_by_len(server, load, 2)
            if (1.0 + memory.expected) / one <= 1.0 / none:
                return 0
        return server.max_draft_len

    def stop_len(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> int:
        """Return the length that has lowered efficiency, or beyond which it is expected to."""
        load, longest = batch.decode_load(), int(drafts.confidences.shape[1])
        if not load.num_requests:
            return longest  # all are in mid-prefill
        survival, stated = _survival(drafts), drafts.confidences
        if np.count_nonzero(batch.in_prefill):
            survival, stated = survival[:, ~batch.in_prefill], stated[~batch.in_prefill]
        gains = np.add.accumulate(survival, axis=1)[:, -1].tolist()
        nums = np.count_nonzero(survival, axis=1).tolist()
        sums = np.add.reduce(stated, axis=0, dtype=np.float64).tolist()
        times = times_by_len(memory.server, load, longest + 1)
        emitted, rate = float(load.num_requests), load.num_requests / times[0]
        for k, (gain, num) in enumerate(zip(gains, nums, strict=True), start=1):
            emitted += gain
            before, rate = rate, emitted / times[k]
            if rate < before:
                return k
            memory.num_drafted += num
            memory.expected += (sums[k - 1] - num * memory.expected) / memory.num_drafted
            if k < longest and (emitted + memory.expected * gain) / times[k + 1] < rate:
                return k
        return longest

    def verify_lens(self, batch: BatchView, drafts: DraftView, memory: _Memory) -> Ints:
        """Return how many tokens of each draft are among those that are worth verifying."""
        server = memory.server
        if not server.has_confidences or not drafts.confidences.shape[1]:
            return drafts.draft_lens
        times = server.step_times if memory.tpot == inf else memory.times_within
        return best_of_drafts(batch, drafts.draft_lens, _survival(drafts).T, times)


def _survival(drafts: DraftView) -> NDArray[np.float64]:
    """Return how likely the first 1, 2, ... tokens of each draft are accepted, in rows of these."""
    survival = drafts.confidences.T.astype(np.float64, order="C")
    for place in range(1, len(survival)):
        survival[place] *= survival[place - 1]
    return survival
