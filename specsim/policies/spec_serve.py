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
    """What is known of acceptance and of confidences."""

    expected: float  # confidence of a token that is not drafted yet: the mean of
    num_drafted: float  # so many before
    by_confidence: int  # whether any are known in time


class Serving(NamedTuple):
    """What it remembers."""

    state: Rows[ServeState]  # one row
    ring: Ints  # accepted tokens, and drafts cut short, of its last steps
    spending: Annotated[Any, Spending]


def decide(view: View, memory: Serving) -> None:
    """Ask for the longest drafts, which are stopped, or none; or what has been best of late."""
    step, state, k = view.step[0], memory.state[0], int(view.step[0].max_draft_len)
    step.alpha, step.may_stop, num = alpha_of(state), state.by_confidence, step.num_decodes
    put_decodes(view)
    if not state.by_confidence:
        k = best_common_len(view, step.alpha)
    elif num and (1.0 + state.expected) / time_of_k(view, 1) <= 1.0 / time_of_k(view, 0):
        k = 0
    ask_all(view, k)


def stop(view: View, memory: Serving) -> None:
    """Stop at the length that has lowered efficiency, or beyond which it is expected to."""
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
    """Verify of each draft what is among the tokens that are worth it."""
    verify_all(view)
    if memory.state[0].by_confidence and view.step[0].width:
        put_stated(view, memory.spending.gains)
        spend_on_drafts_made(view, memory.spending)


def observe(view: View, memory: Serving) -> None:
    """Learn from what was accepted."""
    note_trials(view, memory.state[0], memory.ring)


@final
class SpecServe(LoopPolicy):
    """The batch drafts while one more token of each raises efficiency; the surest are verified.

    Huang et al. (2025), "SpecServe", arXiv 2503.05096 (later "AdaSpec"). Drafting is as in their
    code (``vllm/spec_decode/draft_model_runner.py`` at 80d6c4f): a token not drafted yet is as sure
    as the mean of all before; the batch drafts until the next is expected to lower efficiency, or
    one has, which is kept. The surest are verified, by products of confidences, while efficiency
    rises; the code rounds down to a CUDA graph. Chosen here: a step verifies within the limit, or
    as long as without drafts; asynchronously (no confidences), all draft the k of highest goodput.
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
        tpot = (server.tpot_slo or 0.0) if self.tpot_ms is None else self.tpot_ms * 1e-3
        known = {"expected": self.first_confidence, "by_confidence": server.has_confidences}
        state = row_of(ServeState, self, num_drafted=5.0, **known)
        ring, spending = np.zeros(2 * self.window, dtype=np.int64), spending_desk(None, tpot)
        return self.remember(server, state=state, ring=ring, spending=spending)
