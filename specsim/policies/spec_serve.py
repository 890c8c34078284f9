"""SpecServe: draft on while it pays for the batch, then verify its surest tokens in time."""

from math import inf
from typing import Annotated, Any, Literal, NamedTuple, Protocol, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Floats, Ints
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.estimate import (
    PRIOR_TRIALS,
    WindowState,
    alpha_of,
    best_common_len,
    note_trials,
)
from specsim.policies.parts.everybody import ask_all, verify_all
from specsim.policies.parts.spending import (
    Spending,
    put_stated,
    spend_on_drafts_made,
    spending_desk,
)
from specsim.profile.step_time import priced, put_load


class ServeState(WindowState, Protocol):
    """What is known of acceptance and of confidences, and the policy's numbers."""

    tpot: float  # limit on a step, seconds
    expected: float  # confidence of a token that is not drafted yet: the mean of
    num_drafted: float  # so many before
    by_confidence: int  # whether any are known in time


class Serving(NamedTuple):
    """What it remembers."""

    state: Rows[ServeState]  # one row
    ring: Ints  # accepted tokens, and drafts cut short, of its last steps
    spending: Annotated[Any, Spending]
    times: Floats  # scratch: of steps, by the length of their drafts


@inner
def price_lens(view: View, times: Floats, num_lens: int) -> None:
    """Work out what the next step takes if all draft and verify 0, 1, ... tokens."""
    step, num = view.step[0], view.step[0].num_decodes
    put_load(view.pricing, step.next_context_tokens, num, num, 0)
    for k in range(num_lens):
        times[k] = priced(view.pricing, num * (1 + k), k)


def decide(view: View, memory: Serving) -> None:
    """Ask for the longest drafts, which are stopped, or none; or what has been best of late."""
    step, state, times = view.step[0], memory.state[0], memory.times
    num, k = step.num_decodes, int(step.max_draft_len)
    step.alpha, step.may_stop = alpha_of(state), state.by_confidence
    if not state.by_confidence:
        k = best_common_len(view, step.alpha)
    elif num:
        price_lens(view, times, 2)
        if (1.0 + state.expected) / times[1] <= 1.0 / times[0]:
            k = 0
    ask_all(view, k)


def stop(view: View, memory: Serving) -> None:
    """Stop at the length that has lowered efficiency, or beyond which it is expected to."""
    step, state, times, num = view.step[0], memory.state[0], memory.times, view.step[0].num_decodes
    step.stop_len, emitted = step.width, float(num)
    if not num:
        return  # all are in mid-prefill
    price_lens(view, times, step.width + 1)
    put_stated(view, memory.spending.gains)
    for k in range(1, step.width + 1):
        gain, drafted, stated = 0.0, 0, 0.0
        for row in range(step.num_rows):
            if k <= view.draft_lens[row]:
                gained = memory.spending.gains[(k - 1) * step.num_rows + row]
                drafted += 1 if gained > 0.0 else 0  # an answer may end before
                gain += gained
                stated += view.confidences[row * step.width + k - 1]
        before, emitted = emitted / times[k - 1], emitted + gain
        rate = emitted / times[k]
        step.stop_len = k
        if rate < before:
            return
        state.num_drafted += drafted
        state.expected += (stated - drafted * state.expected) / state.num_drafted
        if k < step.width and (emitted + state.expected * gain) / times[k + 1] < rate:
            return


def verify(view: View, memory: Serving) -> None:
    """Verify of each draft what is among the tokens that are worth it."""
    verify_all(view)
    if memory.state[0].by_confidence and view.step[0].width:
        put_stated(view, memory.spending.gains)
        memory.spending.found[2] = memory.state[0].tpot
        spend_on_drafts_made(view, memory.spending)


def observe(view: View, memory: Serving) -> None:
    """Learn from what was accepted."""
    note_trials(view, memory.state[0], memory.ring)


@final
class SpecServe(LoopPolicy):
    """The batch drafts while one more token of each raises efficiency; the surest are verified.

    Huang et al. (2025), "SpecServe: Efficient and SLO-Aware Large Language Model Serving with
    Adaptive Speculative Decoding", arXiv 2503.05096 (later "AdaSpec"): expected tokens of a step
    over the time of drafting and verification.

    Drafting is as in their released code (``vllm/spec_decode/draft_model_runner.py`` at 80d6c4f). A
    token that is not drafted yet counts as sure as the mean of all before. A step drafts if a first
    token is expected to raise efficiency, and on until the next is expected to lower it, or one
    has, which is kept. Of what is drafted the surest tokens are verified, by products of
    confidences, as many as make efficiency highest; the code only rounds their number down to the
    next CUDA graph.

    Chosen here: that a step may not verify beyond the limit on time per output token, unless it
    would take longer without drafts (the code has a limit, not in use). So is that the first
    confidence counts for some tokens, lest one draft ends all, and, where confidences come too late
    (asynchronous scheduling), the best k for all by acceptance of late.
    """

    kind: Literal["spec_serve"] = "spec_serve"
    uses_confidences = "if known"
    needs_sync = "by default"
    tpot_ms: float | None = Field(default=None, gt=0)
    """Limit on time per output token; by default the experiment's ``slo.tpot_ms``, if any."""
    first_confidence: float = Field(default=0.6, ge=0, le=1)
    """Of a token before any has been drafted; it counts for five."""
    window: int = Field(default=50, ge=1)
    """Steps that the acceptance rate goes over, asynchronously."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """It before anything has been seen."""

    loops = Loops(Serving, decide=decide, stop=stop, verify=verify, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        tpot = (server.tpot_slo or inf) if self.tpot_ms is None else self.tpot_ms * 1e-3
        known = {"expected": self.first_confidence, "by_confidence": server.has_confidences}
        state = row_of(ServeState, self, tpot=tpot, num_drafted=PRIOR_TRIALS, **known)
        ring = np.zeros(2 * self.window, dtype=np.int64)
        return self.remember(server, state=state, ring=ring, spending=spending_desk())
