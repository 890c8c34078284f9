"""Verification first for those who are about to be late."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.policies._budget import best_lens
from specsim.policies._estimate import AlphaPerRequest, PerRequest, survival
from specsim.policies.base import Policy, ServerView
from specsim.step import BatchView, StepOutcome

__all__ = ["SloAware"]


@dataclass(slots=True)
class _Memory:
    server: ServerView
    tpot: float
    alphas: AlphaPerRequest
    first_token_at: PerRequest
    """When the step was scheduled that showed each request's first token, seconds; NaN before."""


@final
class SloAware(Policy):
    """Drafts first for requests that would miss their TPOT limit, then where goodput gains most.

    Li et al. (2025), "AdaServe", arXiv 2501.12162: a request that has decoded for time t needs
    (t + T) / TPOT tokens at the end of a step of duration T to be on time. Phase 1 gives each late
    request the shortest draft whose expected length gets it there, the latest first; phase 2
    spends the rest of the verification by marginal goodput. With all requests on time this is
    `goodput_exact`.
    """

    kind: Literal["slo_aware"] = "slo_aware"
    needs_sync: ClassVar[bool] = True
    tpot_ms: float | None = Field(default=None, gt=0)
    """Limit on time per output token; by default the experiment's ``slo.tpot_ms``, else 50."""
    window: int = Field(default=50, ge=1)
    """Steps of a request over which its past fades."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before anything has been seen."""

    def start(self, server: ServerView) -> _Memory:
        """Return the prior and the limit."""
        tpot = 0.05 if server.tpot_slo is None else server.tpot_slo
        if self.tpot_ms is not None:
            tpot = self.tpot_ms * 1e-3
        alphas = AlphaPerRequest(self.window, self.prior, prior_trials=20.0)
        return _Memory(server, tpot, alphas, PerRequest(np.nan))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> list[int]:
        """Return what each request needs to be on time, and what pays on top."""
        server, load = memory.server, batch.decode_load()
        gains = survival(memory.alphas.alphas(batch.requests), server.max_draft_len)
        floor = self._needed(batch, gains, server.step_time(load, server.max_draft_len), memory)
        in_prefill = batch.in_prefill
        if True in in_prefill:
            gains[in_prefill] = 0.0
            floor[in_prefill] = 0
        best = best_lens(gains, load, server.step_times, floor, free_slots=batch.free_slots)
        lens: list[int] = best.tolist()
        return lens

    @staticmethod
    def _needed(
        batch: BatchView, gains: NDArray[np.float64], step_time: float, memory: _Memory
    ) -> NDArray[np.intp]:
        """Return the shortest drafts that are expected to bring late requests back on time."""
        rows = memory.first_token_at.rows(batch.requests)
        output_lens = np.array(batch.output_lens, dtype=np.intp)
        first = memory.first_token_at[rows]
        is_new = np.isnan(first) & (output_lens > 0)
        first = np.where(is_new, batch.now, first)
        memory.first_token_at[rows] = first
        # The next step ends two steps from now, the first token came one step after `first`.
        due = (batch.now - np.nan_to_num(first, nan=batch.now) + step_time) / memory.tpot
        wanted = due - (output_lens - 1)  # tokens after the first, by the end of the next step
        needed = np.zeros(len(rows), dtype=np.intp)
        (late,) = np.nonzero(wanted > 1.0)
        if len(late):
            emitted = 1.0 + np.cumsum(gains[late].T, axis=0)
            too_short = (emitted < wanted[late] - 1e-9).sum(axis=0)
            needed[late] = np.minimum(too_short + 1, gains.shape[1])
        return needed

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Learn from what was accepted."""
        memory.alphas.add(outcome)

    def alpha_estimate(self, memory: _Memory) -> float:
        """Return the rate of all requests together."""
        return memory.alphas.alpha
