"""Whom the drafter of `joint` serves: whose prompts it reads, and when it is given up."""

from specsim.core.compiled import inner
from specsim.core.desk import Floats
from specsim.policies._exchange import NEXT, NEXT_PLAIN, RUNNING, RUNNING_PLAIN, Trade, set_times
from specsim.policies._joint_desk import (
    FOR_ALL,
    FOR_SERVED,
    IDLE_STEPS,
    IS_CLOSED,
    IS_OFF,
    LET_GO,
    NEW,
    NOTED,
    NUM,
    PROBE,
    PROBES_LEFT,
    SEEN,
    SERVED,
    STEPS_SINCE_NEW,
    WITH_PREFILLS,
    Joining,
)
from specsim.policies._lives import ADMITTED_EVER, PRIOR_REQUESTS, STEADY, STEP, admit

_PRIOR_GAIN = 0.05  # share of a step that a drafter is expected to gain
_SOON = 20.0  # for whom it serves, who are the fewer the longer it reads no prompts
_EVIDENCE = 16  # drafts without which a drafter is not given up
_WORTHWHILE = 0.01  # share of a step that a drafter has to gain
_PROBE_DRAFTS = 8  # of a request that is drafted for though the drafter was given up
LOSS = 0.002
"""Share of all steps that may be lost by drafting what does not seem to pay."""


@inner
def note_gains(desk: Joining, gains: tuple[float, float, float], idle: float) -> None:
    """Decide whom the drafter is to serve, by what a step gains, in the order of the means.

    To come back it has to gain half of what it takes while it serves too few yet (`idle`).
    """
    state = desk.state
    if state[SEEN] < _EVIDENCE:  # before, gains are what the prior says
        return
    state[NOTED] += 1.0
    steps = min(state[NOTED], STEADY)
    prior = PRIOR_REQUESTS / (desk.lives[ADMITTED_EVER] + PRIOR_REQUESTS)
    for place in range(3):
        horizon = min(steps, _SOON) if place == 2 else steps
        state[FOR_ALL + place] += (gains[place] - state[FOR_ALL + place]) / horizon
    least = max(idle / 2.0, _WORTHWHILE) if state[IS_CLOSED] else _WORTHWHILE
    state[IS_CLOSED] = _shrunk(state[WITH_PREFILLS], prior) < least
    is_waning = state[IS_CLOSED] != 0.0 or state[STEPS_SINCE_NEW] > STEADY
    worst = min(_shrunk(state[FOR_ALL], prior), _shrunk(state[FOR_SERVED], prior))
    state[IS_OFF] = is_waning and worst < 0.0


@inner
def _shrunk(gain: float, prior: float) -> float:
    return gain + prior * (_PRIOR_GAIN - gain)


@inner
def settle_served(desk: Joining) -> int:
    """Settle whom the drafter lets go of; return whether there are any."""
    state, states = desk.state, desk.states
    num, num_new, last_new = desk.sizes[NUM], 0, -1
    for row in range(num):
        request = desk.requests[row]
        if states[request] == NEW:
            num_new += 1
            last_new = request
            desk.begun[request] = desk.lives[STEP]
    admit(desk.lives, num_new, _reading_time(desk.trade))
    if num_new:
        state[STEPS_SINCE_NEW] = -1.0  # this one is counted at its end
    if not num_new and not state[IS_OFF]:
        return 0
    _choose_probe(state, last_new)
    num_let_go = 0
    for row in range(num):
        request = desk.requests[row]
        before = states[request]
        if state[IS_OFF]:
            goes = before != LET_GO and request != state[PROBE]
        else:
            goes = before == NEW and state[IS_CLOSED] != 0.0
        desk.let_go[row] = goes
        num_let_go += goes
        states[request] = LET_GO if goes or before == LET_GO else SERVED
    return num_let_go


@inner
def _reading_time(desk: Trade) -> float:
    """Return how long the drafter reads the prompts of a step, seconds."""
    times = desk.times
    if not desk.running[3]:
        return 0.0
    set_times(desk, 0)
    rest = times[NEXT] - times[NEXT_PLAIN] if desk.decodes[2] else 0.0
    time: float = times[RUNNING] - times[RUNNING_PLAIN] - rest
    return time


@inner
def _choose_probe(state: Floats, newest: int) -> None:
    """Draft for a new request, if there is one, though the drafter was given up."""
    if state[IS_OFF] and state[PROBES_LEFT] <= 0:
        state[PROBE] = -1.0
        if state[IDLE_STEPS] * LOSS >= _PROBE_DRAFTS and newest >= 0:
            state[PROBE], state[PROBES_LEFT] = newest, _PROBE_DRAFTS
            state[IDLE_STEPS] = 0.0
