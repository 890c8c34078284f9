"""SpecServe: draft on while it pays for the batch, then verify its surest tokens in time."""

from typing import Annotated, Any, Literal, NamedTuple, Protocol, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows
from specsim.core.desk import Ints
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.estimate import (
    WindowState,
    alpha_of,
    best_common_len,
    note_trials,
    put_decodes,
    time_of_k,
)
from specsim.policies.parts.everybody import ask_all, verify_all
from specsim.policies.parts.spending import (
    Spending,
    put_stated,
    spend_on_drafts_made,
    spending_desk,
    stated_at,
)


class ServeState(WindowState, Protocol):
    """The acceptance rate of the window, and the mean confidence."""

    expected: float  # confidence expected of a token not drafted yet: mean of all tokens so far
    num_drafted: float  # number of tokens in that mean
    by_confidence: int  # whether confidences are known before the policy decides


class Serving(NamedTuple):
    """The policy's memory."""

    state: Rows[ServeState]  # one row
    ring: Ints  # accepted tokens and drafts cut short of each step in the window
    spending: Annotated[Any, Spending]


def decide(view: View, memory: Serving) -> None:
    """Ask for the longest drafts, for `stop` to cut, or none; asynchronously, for the best k."""
    step, state, k = view.step[0], memory.state[0], int(view.step[0].max_draft_len)
    step.alpha, num = alpha_of(state), step.num_decodes
    step.may_stop = state.by_confidence if num else 0
    put_decodes(view)
    if not state.by_confidence:
        k = best_common_len(view, step.alpha)
    elif num and (1.0 + state.expected) / time_of_k(view, 1) <= 1.0 / time_of_k(view, 0):
        k = 0
    ask_all(view, k)


def stop(view: View, memory: Serving) -> None:
    """Stop at the first length that has lowered efficiency, or before one expected to."""
    step, state, emitted = view.step[0], memory.state[0], float(view.step[0].num_decodes)
    put_stated(view, memory.spending.gains)
    put_decodes(view)
    step.stop_len, rate = step.width, emitted / time_of_k(view, 0)
    for k in range(1, step.width + 1):
        gain, stated, drafted = stated_at(view, memory.spending.gains, k)
        emitted += gain
        step.stop_len, before, rate = k, rate, emitted / time_of_k(view, k)
        if rate < before:
            return
        state.num_drafted += drafted
        state.expected += (stated - drafted * state.expected) / state.num_drafted
        if k < step.width and (emitted + state.expected * gain) / time_of_k(view, k + 1) < rate:
            return


def verify(view: View, memory: Serving) -> None:
    """Verify the draft tokens that raise efficiency, the likeliest of the batch first."""
    verify_all(view)
    if memory.state[0].by_confidence and view.step[0].width:
        put_stated(view, memory.spending.gains)
        spend_on_drafts_made(view, memory.spending)


def observe(view: View, memory: Serving) -> None:
    """Learn the acceptance rate of the batch."""
    note_trials(view, memory.state[0], memory.ring)


@final
class SpecServe(LoopPolicy):
    """The batch drafts while one more token of each raises efficiency; the surest are verified.

    Huang et al. (2025), "SpecServe", arXiv 2503.05096 (later "AdaSpec"). Drafting is as in their
    code (``vllm/spec_decode/draft_model_runner.py`` at 80d6c4f): a token not drafted yet is as sure
    as the mean of all before; the batch drafts until the next is expected to lower efficiency, or
    one has. The surest are verified while efficiency rises (the code rounds down to a CUDA graph),
    here within the limit, or what a step takes without drafts. Asynchronously, all draft one k.
    """

    kind: Literal["spec_serve"] = "spec_serve"
    uses_confidences = "if known"
    needs_sync = "by default"
    tpot_ms: float | None = Field(default=None, gt=0)
    """Limit on time per output token; by default the experiment's ``slo.tpot_ms``, if any."""
    first_confidence: float = Field(default=0.6, ge=0, le=1)
    """Expected confidence of a token before any was drafted; counts for five tokens in the mean."""
    window: int = Field(default=50, ge=1)
    """Steps over which the acceptance rate is taken, under asynchronous scheduling."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """Acceptance rate before any draft has been verified."""

    loops = Loops(Serving, decide=decide, stop=stop, verify=verify, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        tpot = (server.tpot_slo or 0.0) if self.tpot_ms is None else self.tpot_ms * 1e-3
        known = {"expected": self.first_confidence, "by_confidence": server.has_confidences}
        state = row_of(ServeState, self, num_drafted=5.0, **known)
        ring, spending = np.zeros(2 * self.window, dtype=np.int64), spending_desk(None, tpot)
        return self.remember(server, state=state, ring=ring, spending=spending)
