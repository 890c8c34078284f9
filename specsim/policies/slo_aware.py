"""Verification first for those who are about to be late."""

from math import isnan
from typing import Annotated, Any, Literal, NamedTuple, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import inner
from specsim.core.desk import Desk, Floats, PerRequest
from specsim.decisions.loops import LoopMemory, Loops, View
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.by_request import (
    ByRequest,
    by_request,
    foresee_each,
    learn_each,
    settle_each,
    spend_each,
)
from specsim.policies.parts.estimate import best_common_len, expected_len
from specsim.policies.parts.everybody import ask_all, say_each
from specsim.policies.parts.trials import KEPT, let_go
from specsim.profile.step_time import priced


class OnTime(NamedTuple):
    """The policy's memory."""

    first_token_at: Floats  # when the step began that showed each its first, seconds; NaN before
    its: Annotated[Any, ByRequest]


@inner
def needed_len(view: View, memory: OnTime, row: int, step_time: float) -> int:
    """Return the shortest draft whose expected length brings a sequence back on time, tokens."""
    step, request = view.step[0], view.requests[row]
    output_len = view.known_lens[row] - view.prompt_lens[row]
    first = memory.first_token_at[request]
    if isnan(first):
        first = step.now
        if output_len > 0:
            memory.first_token_at[request] = first
    # The next step ends two steps from now, the first token came one step after `first`.
    due = (step.now - first + step_time) / memory.its.known[0].tpot
    wanted = due - (output_len - 1)  # tokens after the first, by the next step's end
    if wanted <= 1.0 or view.in_prefill[row]:
        return 0
    gained, too_short = 0.0, 0
    for place in range(step.max_draft_len):
        gained += memory.its.gains[place * step.num_rows + row]
        too_short += 1 if 1.0 + gained < wanted - 1e-9 else 0
    return min(too_short + 1, int(step.max_draft_len))


@inner
def spend_on_late(view: View, memory: OnTime) -> None:
    """Set `counts` to what late sequences need, if there are KV slots for all of it."""
    step, counts, spent = view.step[0], memory.its.spending.counts, 0
    step_time = priced(view.pricing, step.num_decodes, step.max_draft_len)
    for row in range(step.num_rows):
        counts[row] = needed_len(view, memory, row, step_time)
        spent += counts[row]
    for row in range(step.num_rows if spent > step.free_slots else 0):
        counts[row] = 0


def decide(view: View, memory: OnTime) -> None:
    """Ask for the drafts that late requests need, and beyond them for those that pay."""
    step, its, emitted = view.step[0], memory.its, 0.0
    foresee_each(view, its)
    if step.num_decodes:
        spend_on_late(view, memory)
        spend_each(view, its)
        # Drafts for late requests need not pay; whether the drafter does is judged apart.
        k = best_common_len(view, step.alpha)
        ask_all(view, k)
        emitted = step.num_decodes * expected_len(step.alpha, k)
    if settle_each(view, its, emitted) == KEPT:
        say_each(view, its.spending.counts)


def observe(view: View, memory: OnTime) -> None:
    """Learn each request's acceptance, and how long the drafter takes to read prompts."""
    learn_each(view, memory.its)


def drop(view: View, memory: OnTime) -> None:
    """Let go of the sequences for which drafting does not pay."""
    let_go(view, memory.its.known[0])


@final
class SloAware(LoopPolicy):
    """Drafts first for requests that would miss their TPOT limit, then where goodput gains most.

    Li et al. (2025), "AdaServe", arXiv 2501.12162: a request that has decoded for time t needs (t +
    T) / TPOT tokens at the end of a step of duration T to be on time. Phase 1 gives each late
    request the shortest draft whose expected length gets it there, as their released code does
    (flexflow/flexflow-serve ``src/runtime/request_manager.cc add_tokens_toward_slo`` at bc67e97);
    phase 2 is marginal goodput, so this is `goodput_exact` when none is late. In their code T is
    configured, times 1.05; phase 2 takes the likeliest tokens up to a fixed number; drafts are
    trees; phase 1 gives up to 1.2 times an even share, smallest needs first (here: all or none).
    """

    kind: Literal["slo_aware"] = "slo_aware"
    needs_sync = True
    tpot_ms: float | None = Field(default=None, gt=0)
    """Limit on time per output token; by default the experiment's ``slo.tpot_ms``, else 50."""
    window: int = Field(default=50, ge=1)
    """Steps of a request after which an observation of it has faded to 1/e."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before any draft has been verified."""

    loops = Loops(OnTime, decide=decide, observe=observe, drop=drop)

    def start(self, server: ServerView) -> LoopMemory:
        tpot = (server.tpot_slo or 0.05) if self.tpot_ms is None else self.tpot_ms * 1e-3
        its = Desk(ByRequest, **by_request(server, self.prior, self.window, 20.0, tpot))
        return self.remember(server, first_token_at=PerRequest(np.nan), its=its)
