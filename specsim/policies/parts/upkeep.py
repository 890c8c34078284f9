"""Upkeep: whether the drafter of `joint` is worth having, and whom it serves.

What it takes to read a prompt, and for how many steps that is of use, are means over requests,
fading: of those admitted, and of those that have ended, with a prior. Prompts come in bursts; what
reading them costs is borne by all steps that gain from it.
"""

from specsim.core.compiled import inner
from specsim.policies.parts.exchange import Trade, set_times
from specsim.policies.parts.joint_memory import (
    LET_GO,
    NEW,
    PRIOR_REQUESTS,
    SERVED,
    STEADY,
    Joining,
    Lives,
)
from specsim.policies.parts.prospects import age

_KEPT = 0.999  # share of what is known of requests that a step leaves
_PRIOR_GAIN = 0.03  # share of a step that a drafter is expected to gain
_SOON = 20.0  # for whom it serves, who are the fewer the longer it reads no prompts
_EVIDENCE = 16  # drafts without which a drafter is not given up
_WORTHWHILE = 0.01  # share of a step that a drafter has to gain
_NOTHING = 1e-6  # share of a step: rounding
_STALE_DRAFTS = 32.0  # that all before a probe count for beside it, at most
_PROBE_DRAFTS = 8  # of a request that is drafted for though the drafter was given up
LOSS = 0.002
"""Share of all steps that may be lost by drafting what does not seem to pay."""


@inner
def note_gains(desk: Joining, gains: tuple[float, float, float], idle: float) -> None:
    """Decide whom the drafter is to serve, by what a step gains, in the order of the means.

    To come back it has to gain half of what it takes while it serves too few yet (`idle`). One that
    takes nothing while nobody is drafted for is kept.
    """
    state = desk.state[0]
    if state.num_seen < _EVIDENCE:  # before, gains are what the prior says
        return
    state.num_noted += 1
    num, steps = desk.trade.decodes[2], min(float(state.num_noted), STEADY)
    for_all, with_prefills, for_served = gains
    state.batch += (num - state.batch) / steps
    state.for_all += (num * for_all - state.for_all) / steps
    state.with_prefills += (num * with_prefills - state.with_prefills) / steps
    soon = min(steps, _SOON)
    state.batch_served += (num - state.batch_served) / soon
    state.for_served += (num * for_served - state.for_served) / soon
    prior = PRIOR_REQUESTS / (state.num_tried + PRIOR_REQUESTS)
    least = max(idle / 2.0, _WORTHWHILE) if state.is_closed else _WORTHWHILE
    costs = idle + for_all - with_prefills > _NOTHING
    state.is_closed = costs and _shrunk(state.with_prefills / state.batch, prior) < least
    is_waning = state.is_closed or state.steps_since_new > STEADY
    of_all = _shrunk(state.for_all / state.batch, prior)
    of_served = _shrunk(state.for_served / state.batch_served, prior)
    state.is_off = is_waning and min(of_all, of_served) < 0.0


@inner
def _shrunk(gain: float, prior: float) -> float:
    return gain + prior * (_PRIOR_GAIN - gain)


@inner
def settle_served(desk: Joining) -> int:
    """Settle whom the drafter lets go of; return whether there are any."""
    state, states, lives = desk.state[0], desk.states, desk.lives[0]
    num, num_new, last_new = state.num_rows, 0, -1
    for row in range(num):
        request = desk.requests[row]
        if states[request] == NEW:
            num_new += 1
            last_new = request
            desk.begun[request] = lives.step
    admit(lives, num_new, _reading_time(desk.trade))
    if num_new:
        state.steps_since_new = -1  # this one is counted at its end
    if not num_new and not state.is_off:
        return 0
    _choose_probe(desk, last_new)
    num_let_go = 0
    for row in range(num):
        request = desk.requests[row]
        before = states[request]
        if state.is_off:
            goes = before != LET_GO and request != state.probe
        else:
            goes = before == NEW and state.is_closed and request != state.probe
        desk.let_go[row] = goes
        num_let_go += goes
        states[request] = LET_GO if goes or before == LET_GO else SERVED
    return num_let_go


@inner
def _reading_time(desk: Trade) -> float:
    """Return how long the drafter reads the prompts of a step, seconds."""
    times = desk.times[0]
    if not desk.running[3]:
        return 0.0
    set_times(desk, 0)
    rest = times.next - times.next_plain if desk.decodes[2] else 0.0
    time: float = times.running - times.running_plain - rest
    return time


@inner
def _choose_probe(desk: Joining, newest: int) -> None:
    """Draft for a new request, if there is one, though the drafter was given up."""
    state = desk.state[0]
    longest = _PROBE_DRAFTS * state.probe_loss / LOSS
    if not state.is_closed:
        state.probe_after = longest / 2.0
    elif state.probes_left <= 0:
        state.probe = -1
        if state.idle_steps >= state.probe_after and newest >= 0:
            state.probe, state.probes_left = newest, _PROBE_DRAFTS
            state.idle_steps = 0
            age(desk.seen, _STALE_DRAFTS)
            state.probe_after = longest


@inner
def admit(lives: Lives, num: int, seconds: float) -> None:
    """Take in how many a step admits, and how long prompts would have been read in it."""
    lives.admitted += num
    lives.reading += seconds
    lives.ended += num


@inner
def share_of(lives: Lives, size: int, begun: float, num: int) -> float:
    """Return what a step of so many decoding sequences bears of reading prompts, seconds.

    Its sequences, decoding or not, began in steps that add up to `begun`.
    """
    lives.step += 1.0
    age = size * lives.step - begun
    lives.ended -= size - lives.running
    lives.lived += num - (age - lives.age)
    lives.running, lives.age = size, age
    if not lives.admitted:
        return 0.0
    life = max(lives.lived, 1.0) / max(lives.ended, 1.0)
    share: float = num * lives.reading / lives.admitted / life
    lives.admitted *= _KEPT
    lives.reading *= _KEPT
    lives.lived *= _KEPT
    lives.ended *= _KEPT
    return share
