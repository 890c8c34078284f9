"""Verification first for those who are about to be late."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.step import BatchView, Ints, StepOutcome
from specsim.policies._budget import best_lens
from specsim.policies._estimate import AlphaPerRequest, PerRequest
from specsim.policies._kernels import Desk, Late, blank, lens_on_time
from specsim.policies.base import Policy, ServerView

__all__ = ["SloAware"]


@dataclass(slots=True)
class _Memory:
    server: ServerView
    tpot: float
    alphas: AlphaPerRequest
    first_token_at: PerRequest
    """When the step was scheduled that showed each request's first token, seconds; NaN before."""
    desk: Desk[Late]


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
        return _Memory(server, tpot, alphas, PerRequest(np.nan), Desk(_late, lens_on_time))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> Ints:
        """Return what each request needs to be on time, and what pays on top."""
        server, load = memory.server, batch.decode_load()
        gains = memory.alphas.survival(batch, server.max_draft_len)
        floor = self._needed(batch, gains, server.step_time(load, server.max_draft_len), memory)
        floor[batch.in_prefill] = 0
        return best_lens(
            gains,
            load,
            server.step_times,
            floor,
            free_slots=batch.free_slots,
            one_cost=server.drafts_at_one_cost,
            step_time=server.step_time,
        )

    @staticmethod
    def _needed(
        batch: BatchView, gains: NDArray[np.float64], step_time: float, memory: _Memory
    ) -> Ints:
        """Return the shortest drafts that are expected to bring late requests back on time."""
        num, longest = gains.shape
        desk = memory.desk.fit(max(num, num * longest), memory.first_token_at.up_to(batch.requests))
        desk.requests[:num] = batch.requests
        desk.output_lens[:num] = batch.output_lens
        desk.gains[: num * longest] = gains.T.ravel()
        desk.clock[:] = batch.now, step_time, memory.tpot
        desk.sizes[0], desk.sizes[1] = num, longest
        memory.desk.runs[0]()
        return desk.needed[:num].copy()

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Learn from what was accepted."""
        memory.alphas.add(outcome)

    def alpha_estimate(self, memory: _Memory) -> float:
        """Return the rate of all requests together."""
        return memory.alphas.alpha


def _late(room: int, first_token_at: NDArray[np.float64]) -> Late:
    return blank(Late, room, first_token_at=first_token_at, clock=np.zeros(3))
