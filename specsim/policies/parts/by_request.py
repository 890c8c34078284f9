"""Parts of policies that give each request a draft length by its own acceptance."""

from typing import Annotated, Any, NamedTuple, Protocol

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Floats
from specsim.decisions.loops import View, row_of
from specsim.decisions.policy import ServerView
from specsim.policies.parts.estimate import (
    Fading,
    alpha_of_all,
    fade,
    fading_desk,
    put_decodes,
    survive,
)
from specsim.policies.parts.spending import Spending, spend_by_len, spending_desk
from specsim.policies.parts.trials import BEGUN, KEPT, TrialState, learn, no_trials, settle


class EachKnown(TrialState, Protocol):
    """Parameters, and whether drafting pays."""

    prior: float  # alpha before any draft has been verified
    one_cost: int  # whether a draft of any length costs the same
    tpot: float  # limit on the time per output token, seconds


class ByRequest(NamedTuple):
    """The policy's memory."""

    known: Rows[EachKnown]  # one row
    gains: Floats  # as in `Spending`
    fading: Annotated[Any, Fading]
    spending: Annotated[Any, Spending]


@inner
def alpha_now(memory: ByRequest) -> float:
    """Return the acceptance rate of all requests together."""
    return alpha_of_all(memory.fading.totals, memory.known[0].prior)


@inner
def foresee_each(view: View, memory: ByRequest) -> None:
    """Set the `gains` of draft tokens, and load the next step without drafts into `pricing`."""
    step, num, spending = view.step[0], view.step[0].num_decodes, memory.spending
    memory.fading.sizes[0], memory.fading.sizes[1] = step.num_rows, step.max_draft_len
    step.alpha = alpha_now(memory)
    survive(memory.fading, step.alpha)
    put_decodes(view)
    spending.sizes[2], spending.found[0] = step.num_rows, num
    for row in range(step.num_rows):
        spending.counts[row] = 0


@inner
def spend_each(view: View, memory: ByRequest) -> None:
    """Add to `counts` the draft tokens that make goodput highest."""
    step, one_cost = view.step[0], memory.known[0].one_cost > 0
    spend_by_len(memory.spending, step.max_draft_len, step.free_slots, one_cost)


@inner
def settle_each(view: View, memory: ByRequest, emitted: float) -> int:
    """Call `settle` if any sequence decodes; reduce the evidence when a trial begins."""
    known, what = memory.known[0], KEPT
    if view.step[0].num_decodes:
        what = settle(view, known, emitted)
    if what == BEGUN:  # what was learned counts no more than a prior
        known.prior = alpha_now(memory)
        memory.fading.totals[0] = memory.fading.totals[1] = 0.0
    view.step[0].alpha = alpha_now(memory)
    return what


@inner
def learn_each(view: View, memory: ByRequest) -> None:
    """Learn each request's acceptance, and how long the drafter takes to read prompts."""
    memory.fading.sizes[0] = view.step[0].num_rows
    learn(view, memory.known[0], fade(memory.fading))


def by_request(
    server: ServerView, prior: float, window: int, prior_trials: float, tpot: float = 0.0
) -> dict[str, Any]:
    """Return the fields of a `ByRequest` without observations; see `fading_desk`."""
    one_cost = server.drafts_at_one_cost is True
    known = row_of(EachKnown, prior=prior, one_cost=one_cost, tpot=tpot, **no_trials(window))
    fading = fading_desk(window, prior_trials)
    return {"known": known, "fading": fading, "spending": spending_desk()}
