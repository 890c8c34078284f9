"""vLLM's adaptive verification: the surest drafts of the whole batch, as many as pay."""

from math import exp, log, log1p
from typing import Annotated, Any, Literal, NamedTuple, Protocol, final

import numpy as np

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Desk, Flags, FloatRows, Floats, Ints, PerRequest
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.everybody import ask_all, verify_all
from specsim.policies.parts.spending import Spending, best_budget, spending_desk, take_largest
from specsim.profile.step_time import put_len, put_load

_SLOPE, _INTERCEPT = 0.5, -0.2  # at first: medians of what five models came to
_LARGEST = 40.0  # log-odds
_STEPS, _DAMPING, _RIDGE = 100, 50.0, 1e-3


class Slope(Protocol):
    """Of all positions; and steps since it was fitted."""

    slope: float
    steps: int


class Estimator(NamedTuple):
    """A logistic model with a slope for all positions of a draft and an intercept for each.

    Its feature is the log-odds that the drafter gives its token. Each hundredth step makes one
    damped Newton step over what became of the drafts since the one before. vLLM 0.32.0
    ``v1/worker/gpu/spec_decode/acceptance_estimator.py OnlineAcceptanceEstimator``, in double
    precision.
    """

    state: Rows[Slope]  # one row
    intercepts: Floats
    features: FloatRows  # of each request's last draft
    sums: FloatRows
    """Since the last fit, by position: of the hessian, feature squared, feature and 1, each
    weighted; of the gradient, slope and intercept; and tokens. Shape (6, longest)."""
    requests: Ints
    draft_lens: Ints
    accepted_lens: Ints


def estimator_desk(longest: int) -> Desk[Estimator]:
    """Return an estimate that has learned nothing."""
    return Desk(
        Estimator,
        state=row_of(Slope, slope=_SLOPE),
        intercepts=np.full(longest, _INTERCEPT),
        features=PerRequest(0.0, longest),
        sums=np.zeros((6, longest)),
    )


@inner
def _chance(estimator: Estimator, request: int, place: int) -> float:
    log_odds = estimator.state[0].slope * estimator.features[request, place]
    return 1.0 / (1.0 + exp(-log_odds - estimator.intercepts[place]))


@inner
def predict(estimator: Estimator, request: int, place: int, confidence: float) -> float:
    """Return the chance of a draft token, given that those before it are accepted; note it."""
    feature = -_LARGEST
    if confidence >= 1.0:
        feature = _LARGEST
    elif confidence > 0.0:
        feature = max(min(log(confidence) - log1p(-confidence), _LARGEST), -_LARGEST)
    estimator.features[request, place] = feature
    return _chance(estimator, request, place)


@inner
def learn_fates(estimator: Estimator, num: int) -> None:
    """Take in what became of drafts: the accepted tokens, and the first that was not."""
    sums, state = estimator.sums, estimator.state[0]
    for place in range(len(estimator.intercepts)):
        for row in range(num):
            request, accepted_len = estimator.requests[row], estimator.accepted_lens[row]
            if place > accepted_len or place >= estimator.draft_lens[row]:
                continue
            chance, feature = _chance(estimator, request, place), estimator.features[request, place]
            weight = chance * (1.0 - chance)
            residual = (1.0 if place < accepted_len else 0.0) - chance
            sums[0, place] += weight * feature * feature
            sums[1, place] += weight * feature
            sums[2, place] += weight
            sums[3, place] += residual * feature
            sums[4, place] += residual
            sums[5, place] += 1.0
    state.steps += 1
    if state.steps == _STEPS:
        _refit(estimator)
        state.steps = 0
        for each in range(len(sums)):
            for place in range(len(estimator.intercepts)):
                sums[each, place] = 0.0


@inner
def _refit(estimator: Estimator) -> None:
    """Solve for the step: the hessian is an arrow, with the slope in its tip."""
    sums, state, rest, rise, total = estimator.sums, estimator.state[0], _RIDGE, 0.0, 0.0
    for place in range(len(estimator.intercepts)):
        side, shaft = sums[1, place], sums[2, place] + _RIDGE
        rest += sums[0, place] - side * side / shaft
        rise += sums[3, place] - side * sums[4, place] / shaft
        total += sums[5, place]
    step = rise / rest * (total / (total + _DAMPING))
    if state.slope + step < 0.0:
        step = 0.0
    state.slope += step
    for place in range(len(estimator.intercepts)):
        count, shaft = sums[5, place], sums[2, place] + _RIDGE
        step_of = (sums[4, place] - sums[1, place] * step) / shaft
        estimator.intercepts[place] += count / (count + _DAMPING) * step_of


class Adapting(NamedTuple):
    """What it remembers."""

    stale: FloatRows  # confidences of each request's last draft
    learns: Flags  # whether it does
    estimator: Annotated[Any, Estimator]
    spending: Annotated[Any, Spending]


def decide(view: View, memory: Adapting) -> None:
    """Ask for the longest drafts."""
    ask_all(view, view.step[0].max_draft_len)


@inner
def put_stale(view: View, memory: Adapting) -> int:
    """Work out how likely drafts are accepted if one believes the last confidences.

    Of the drafts of all sequences, in no particular order. Return how many tokens they have.
    """
    index = 0
    for row in range(view.step[0].num_rows):
        product = 1.0
        for place in range(view.draft_lens[row]):
            product *= memory.stale[view.requests[row], place]
            memory.spending.gains[index] = product
            index += 1
    return index


@inner
def put_fresh(view: View, memory: Adapting) -> None:
    """Work out the same by this step's confidences, -1 beyond the end of a draft; note them.

    Products are as exact as what drafters state: single precision.
    """
    step, gains = view.step[0], memory.spending.gains
    for row in range(step.num_rows):
        request, stated = view.requests[row], 1.0
        for place in range(step.width):
            at = place * step.num_rows + row
            gains[at] = -1.0
            if place < view.draft_lens[row]:
                confidence = view.confidences[row * step.width + place]
                if memory.learns[0]:
                    confidence = predict(memory.estimator, request, place, confidence)
                memory.stale[request, place] = confidence
                stated = float(np.float32(stated * confidence))
                gains[at] = stated


def verify(view: View, memory: Adapting) -> None:
    """Verify of each draft what is among the B surest tokens of the batch."""
    step, spending, pricing = view.step[0], memory.spending, view.pricing
    most = put_stale(view, memory)
    tokens = step.batched_tokens - most
    put_load(pricing, step.context_tokens, tokens, step.num_requests, step.prefill_tokens)
    put_len(pricing, step.max_draft_len)
    spending.found[0], spending.sizes[0], spending.sizes[1] = step.num_decodes, most, most + 1
    budget = best_budget(spending)
    put_fresh(view, memory)
    spending.sizes[0], spending.sizes[2] = step.num_rows * step.width, step.num_rows
    verify_all(view)
    if budget < most:
        take_largest(spending, budget)
        for row in range(step.num_rows):
            view.lens[row] = spending.counts[row]


def observe(view: View, memory: Adapting) -> None:
    """Learn, if it does."""
    if memory.learns[0]:
        learn_fates(memory.estimator, view.step[0].num_rows)


@final
class AdaptiveVerification(LoopPolicy):
    """Draft the longest length, verify the B drafts of highest survival S = product of confidences.

    B = argmax (n + sum of the B largest S) / (draft cost + verify cost at B drafts). The engine has
    to size the step before this step's confidences have come back from the GPU, so B is chosen by
    the confidences of each request's previous draft, 1 for a new request, while the GPU gives the
    B places to the drafts of this step that are surest now. vLLM 0.32.0
    ``enable_adaptive_verification``, ``v1/worker/gpu/spec_decode/adaptive_verification.py
    get_num_tokens, reallocate_drafts``. All drafts are scheduled: what is dropped frees time, not
    token budget.

    vLLM allocates on the GPU and so can schedule asynchronously; here the step is synchronous.
    """

    kind: Literal["adaptive_verification"] = "adaptive_verification"
    uses_confidences = True
    needs_sync = True
    learns: bool = False
    """Whether confidences are learned from what became of drafts, starting from how sure the
    drafter was, as vLLM has it for all drafters; but for DSpark, which has a head for it."""

    loops = Loops(Adapting, decide=decide, verify=verify, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        longest = server.max_draft_len
        learns, stale = np.array([self.learns]), PerRequest(1.0, longest)
        parts = {"estimator": estimator_desk(longest), "spending": spending_desk()}
        return self.remember(server, learns=learns, stale=stale, **parts)
