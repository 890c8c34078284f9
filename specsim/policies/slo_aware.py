"""Verification first for those who are about to be late."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.desk import Desk, Floats, Ints, PerRequest, loop_on
from specsim.core.step import BatchView
from specsim.decisions.policy import ServerView
from specsim.policies.parts.budget import best_common_len, best_lens
from specsim.policies.parts.estimate import AlphaPerRequest, expected_len
from specsim.policies.parts.trials import Weighing, WeighsDrafter, gives_up


class Late(NamedTuple):
    """Requests that have to be on time."""

    first_token_at: Floats
    """When the step was scheduled that showed each request's first token, seconds; NaN before."""
    requests: Ints
    output_lens: Ints
    gains: Floats
    """Shape (longest, n): how likely each token of the drafts is accepted."""
    clock: Floats
    """When the step was scheduled, what it takes, and the limit on time per token."""
    needed: Ints
    """Filled in."""
    sizes: Ints
    """n, longest."""


@loop_on(Late)
def lens_on_time(desk: Late) -> int:
    """Find the shortest drafts that are expected to bring late requests back on time."""
    first_token_at, output_lens, needed = desk.first_token_at, desk.output_lens, desk.needed
    now, step_time, tpot = desk.clock[0], desk.clock[1], desk.clock[2]
    num, longest = desk.sizes[0], desk.sizes[1]
    for row in range(num):
        request = desk.requests[row]
        first = first_token_at[request]
        if first != first:  # noqa: PLR0124 - not a number
            first = now
            if output_lens[row] > 0:
                first_token_at[request] = now
        # The next step ends two steps from now, the first token came one step after `first`.
        due = (now - first + step_time) / tpot
        wanted = due - (output_lens[row] - 1)  # tokens after the first, by the next step's end
        needed[row] = 0
        if wanted > 1.0:
            gained = 0.0
            too_short = 0
            for place in range(longest):
                gained += desk.gains[place * num + row]
                if 1.0 + gained < wanted - 1e-9:
                    too_short += 1
            needed[row] = min(too_short + 1, longest)
    return 0


@dataclass(slots=True)
class _Memory(Weighing[AlphaPerRequest]):
    tpot: float
    desk: Desk[Late]


@final
class SloAware(WeighsDrafter[_Memory]):
    """Drafts first for requests that would miss their TPOT limit, then where goodput gains most.

    Li et al. (2025), "AdaServe", arXiv 2501.12162: a request that has decoded for time t needs
    (t + T) / TPOT tokens at the end of a step of duration T to be on time. Phase 1 gives each late
    request the shortest draft whose expected length gets it there, as their released code does
    (``request_manager.cc RequestManager::add_tokens_toward_slo``); phase 2 spends the rest of the
    verification by marginal goodput. With all requests on time this is `goodput_exact`. There phase
    2 takes the likeliest tokens until a number set ahead is used up, whatever a step costs, drafts
    are trees, and where that number is too small for phase 1 the latest come first; here phase 1 is
    left out where it does not fit.
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
        alphas = AlphaPerRequest(self.window, self.prior, 20.0, forgets=False)
        desk = Desk(Late, lens_on_time, first_token_at=PerRequest(np.nan), clock=3)
        return _Memory(server, alphas, self.window, tpot, desk)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int | Ints:
        """Return what each request needs to be on time, and what pays on top."""
        server, load = memory.server, batch.decode_load()
        if not load.num_requests:
            return 0  # all are in mid-prefill
        gains = memory.alphas.survival(batch, server.max_draft_len)
        floor = self._needed(batch, gains, server.step_time(load, server.max_draft_len), memory)
        floor[batch.in_prefill] = 0
        lens = best_lens(
            gains,
            load,
            server.step_times,
            floor,
            free_slots=batch.free_slots,
            one_cost=server.drafts_at_one_cost,
            step_time=server.step_time,
        )
        # What the late are given need not pay; whether the drafter does is another question.
        alpha = memory.alphas.alpha
        k = best_common_len(server, load, alpha, batch.free_slots)
        emitted = load.num_requests * expected_len(alpha, k)
        verdict = memory.trials.settle(batch, load, k, emitted, memory.alphas)
        if gives_up(memory.trials) or not isinstance(verdict, int):
            return verdict
        return lens

    @staticmethod
    def _needed(
        batch: BatchView, gains: NDArray[np.float64], step_time: float, memory: _Memory
    ) -> Ints:
        """Return the shortest drafts that are expected to bring late requests back on time."""
        num, longest = gains.shape
        desk = memory.desk.fit(max(num, num * longest), batch.requests)
        desk.output_lens[:num] = batch.output_lens
        desk.gains[: num * longest] = gains.T.ravel()
        desk.clock[:] = batch.now, step_time, memory.tpot
        desk.sizes[0], desk.sizes[1] = num, longest
        memory.desk.runs[0]()
        return desk.needed[:num].copy()
