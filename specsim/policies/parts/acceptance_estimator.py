"""vLLM's estimate of how likely drafts are accepted, learned from how sure the drafter was."""

from math import exp, log, log1p
from typing import NamedTuple, Protocol

import numpy as np

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Desk, FloatRows, Floats, Ints, PerRequest
from specsim.decisions.loops import row_of

_SLOPE, _INTERCEPT = 0.5, -0.2  # initial values: medians of the fits of five models
_LARGEST = 40.0  # log-odds
_STEPS, _DAMPING, _RIDGE = 100, 50.0, 1e-3


class Slope(Protocol):
    """The slope for all positions, and the steps since the last fit."""

    slope: float
    steps: int


class Estimator(NamedTuple):
    """A logistic model with a slope for all positions of a draft and an intercept for each.

    Its feature is the log-odds of the drafter's confidence. Every 100 steps it makes one damped
    Newton step on the fates of the drafts since the last fit. vLLM 0.32.0
    ``v1/worker/gpu/spec_decode/acceptance_estimator.py OnlineAcceptanceEstimator``, in double
    precision.
    """

    state: Rows[Slope]  # one row
    intercepts: Floats
    features: FloatRows  # of each request's last draft
    sums: FloatRows
    """Sums since the last fit by position, shape (6, longest): weighted feature squared, feature
    and 1 (the hessian); gradient of the slope and of the intercept; number of tokens."""
    requests: Ints
    draft_lens: Ints
    accepted_lens: Ints


def estimator_desk(longest: int) -> Desk[Estimator]:
    """Return an estimator with its initial values."""
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
    """Return P(a draft token is accepted | all before it were), and store its feature."""
    feature = -_LARGEST
    if confidence >= 1.0:
        feature = _LARGEST
    elif confidence > 0.0:
        feature = max(min(log(confidence) - log1p(-confidence), _LARGEST), -_LARGEST)
    estimator.features[request, place] = feature
    return _chance(estimator, request, place)


@inner
def learn_fates(estimator: Estimator, num: int) -> None:
    """Learn from each draft's accepted tokens and first rejected one; refit when it is due."""
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
    """Make the Newton step; the hessian is an arrowhead matrix with the slope in its tip."""
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
