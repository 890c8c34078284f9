"""What `joint` does in each verb of a step: one loop, over what it remembers."""

from typing import Annotated, Any, NamedTuple

from specsim.core.compiled import inner
from specsim.core.desk import Flags, FloatRows, Floats, Ints
from specsim.policies._estimate import Fading, alpha_of_all, fade, survive
from specsim.policies._exchange import (
    FREE_SLOTS,
    MAX_LEN,
    NEXT,
    NEXT_PLAIN,
    RUNNING,
    RUNNING_PLAIN,
    TRADE_ROOMS,
    Trade,
    best_of,
    note_step,
    rate_of,
    set_prices,
    set_times,
    spend_before,
    spend_on_drafts,
    spend_on_found,
    value_of,
    weigh_choices,
)
from specsim.policies._lives import ADMITTED_EVER, PRIOR_REQUESTS, STEADY, STEP, admit, share_of
from specsim.policies._prospects import LEVELS, Seen, foresee, note_firsts, take_in
from specsim.policies.draft_goodput import DEPTHS, KINDS, Calibrating, gains_of, tally

NEW, SERVED, LET_GO = range(3)
_PRIOR_GAIN = 0.05  # share of a step that a drafter is expected to gain
_SOON = 20.0  # for whom it serves, who are the fewer the longer it reads no prompts
_SAMPLE = 32  # drafts of a step that are looked at for the prospects
_EVIDENCE = 16  # drafts without which a drafter is not given up
_WORTHWHILE = 0.01  # share of a step that a drafter has to gain
_LOSS = 0.002  # share of all steps that may be lost by drafting what does not seem to pay
_PROBE_DRAFTS = 8  # of a request that is drafted for though the drafter was given up
_PROBED = 4  # sequences of which such a step verifies a token at least
_RECENT = 0.9  # share of a request's trials that the next draft leaves

HAS_SEEN_DRAFTS, IDLE_STEPS, IS_PROBING, SEEN, NOTED, PRIOR, NUM_STATES = 0, 1, 2, 3, 4, 5, 14
"""Places of `Joining.state`: whether drafts were looked at as they were made, and what is verified
are parts of them; steps since something was drafted that did not seem to pay; whether this is such
a step; drafts that prospects are made of; steps that gains are means of; alpha before any draft."""
FOR_ALL, WITH_PREFILLS, FOR_SERVED = range(6, 9)
"""And what drafting is worth more than a server without a drafter, over what a step is worth, as
means over steps, fading: for all; for all, with the drafter's prefills; for whom it serves."""
IS_CLOSED, STEPS_SINCE_NEW, IS_OFF, PROBE, PROBES_LEFT = range(9, 14)
"""And whether the drafter is not worth reading the prompts of more requests; steps since one was
admitted, until which it may come to serve more of the batch; whether it is not worth its upkeep for
those that it has read; a request that is drafted for nevertheless, to see whether that pays by now,
or -1; and drafts that are to be made for it."""
NUM, WIDTH, HAS_CONFIDENCES, HAS_FOUND, HAS_UNDRAFTED, VERB = range(6)
"""Places of `Joining.sizes`: sequences; tokens of the longest draft; whether the drafter knows
confidences, a lookup shows what it has found, and some are left out; what is to be done."""
DROPS, DRAFTS, VERIFIES, LEARNS = range(4)
"""Verbs."""


class Joining(NamedTuple):
    """A step, and all that `joint` remembers."""

    requests: Ints
    in_prefill: Flags
    is_undrafted: Flags
    draft_lens: Ints
    accepted_lens: Ints
    confidences: Floats
    gains: Floats
    tokens: Floats
    gained: Floats
    trade: Annotated[Any, Trade]
    calibrating: Annotated[Any, Calibrating]
    seen: Annotated[Any, Seen]
    fading: Annotated[Any, Fading]
    kinds: Ints
    """Of each request: how its last drafts fared, in classes from poor to good. Text is easy or
    hard to draft for a while, which confidences know nothing of."""
    fates: FloatRows
    """Of each request: accepted tokens and trials, which fade with every draft."""
    begun: Floats
    """Of each request: the step it was admitted in."""
    states: Ints
    """Of each request: new to the drafter, served, or let go of."""
    len_kinds: Ints
    """Classes of drafts by their length."""
    let_go: Flags
    state: Floats
    lives: Floats
    """See `specsim.policies._lives`."""
    sizes: Ints


_IN_POLICIES = ("_joining", "_estimate", "_lives", "_prospects", "draft_goodput")
JOINING_ROOMS = (*TRADE_ROOMS, *(f"specsim.policies.{room}" for room in _IN_POLICIES))
"""Modules whose functions a loop on a `Joining` calls."""


# Whom the drafter serves


@inner
def _note_gains(desk: Joining, gains: tuple[float, float, float], idle: float) -> None:
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
def _let_go(desk: Joining) -> int:
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
        if state[IDLE_STEPS] * _LOSS >= _PROBE_DRAFTS and newest >= 0:
            state[PROBE], state[PROBES_LEFT] = newest, _PROBE_DRAFTS
            state[IDLE_STEPS] = 0.0


# How much to draft


@inner
def _propose(desk: Joining) -> int:
    """Return what is worth drafting for every sequence; -1: that is in `trade.lens`."""
    if not desk.sizes[HAS_CONFIDENCES]:
        return _by_past(desk)
    if desk.sizes[HAS_FOUND]:
        return _of_found(desk)
    return _by_prospects(desk)


@inner
def _by_prospects(desk: Joining) -> int:
    """Return a length for all, by what survives of drafts as a rule."""
    trade, state, values = desk.trade, desk.state, desk.trade.values
    longest, num = set_prices(trade), trade.decodes[2]
    if not longest:
        return 0
    rate = rate_of(trade.exchange, num)
    time = trade.times[NEXT_PLAIN]
    plain = value_of(num, time, rate)
    worth = rate * time if rate else plain
    _weigh(desk, False, longest, rate)
    for_all = for_served = (values[best_of(values, 0, longest)] - plain) / worth
    served = num
    if desk.sizes[HAS_UNDRAFTED]:
        served = 0
        for row in range(desk.sizes[NUM]):
            served += not desk.in_prefill[row] and not desk.is_undrafted[row]
        if served < num:
            _weigh(desk, True, longest, rate)
            for_served = (values[best_of(values, 0, longest)] - plain) / worth
    begun = 0.0
    for row in range(desk.sizes[NUM]):
        begun += desk.begun[desk.requests[row]]
    reading = share_of(desk.lives, desk.sizes[NUM], begun, num)
    idle = trade.times[NEXT] / time - 1.0
    _note_gains(desk, (for_all, for_all - reading / time, for_served), idle)
    state[IDLE_STEPS] += 1.0
    if not served:
        return 0
    best, least = best_of(values, 0, longest), best_of(values, 1, longest)
    if state[PROBES_LEFT] > 0:
        state[IS_PROBING] = 1.0
        state[PROBES_LEFT] -= 1.0
        return least
    return _explored(state, best, least, (values[0] - values[least]) / worth)


@inner
def _weigh(desk: Joining, is_served: bool, longest: int, rate: float) -> None:
    """Weigh what all that decode may draft, or those of them that the drafter serves."""
    seen, num = desk.seen, 0
    for row in range(desk.sizes[NUM]):
        if not desk.in_prefill[row] and not (is_served and desk.is_undrafted[row]):
            seen.classes[num] = desk.kinds[desk.requests[row]]
            num += 1
    seen.sizes[0] = num
    foresee(seen)
    desk.trade.sizes[0] = LEVELS
    weigh_choices(desk.trade, longest, rate)


@inner
def _explored(state: Floats, best: int, least: int, loss: float) -> int:
    """Return the best length; now and then, so rarely that little is lost, one that seems worse."""
    state[IS_PROBING] = best == 0 and state[IDLE_STEPS] * _LOSS >= loss
    if state[IS_PROBING]:
        state[IDLE_STEPS] = 0.0
        return least
    return best


@inner
def _by_past(desk: Joining) -> int:
    """Settle a length for each sequence, by what was accepted of it so far."""
    trade, fading, num = desk.trade, desk.fading, desk.sizes[NUM]
    fading.sizes[0] = trade.sizes[1] = num
    fading.sizes[1] = trade.limits[MAX_LEN]
    survive(fading, alpha_of_all(fading.totals, desk.state[PRIOR]))
    rate = rate_of(trade.exchange, trade.decodes[2])
    spend_before(trade, set_prices(trade), rate)
    desk.state[IDLE_STEPS] += 1.0
    most = 0
    for row in range(num):
        most = max(most, trade.lens[row])
    if not most and num <= trade.limits[FREE_SLOTS]:
        most = _explored(desk.state, 0, 1, 1.0)
        for row in range(num):
            trade.lens[row] = 0 if desk.in_prefill[row] else most
    return -1


@inner
def _of_found(desk: Joining) -> int:
    """Settle what is worth handing over and verifying of what a lookup has found."""
    trade = desk.trade
    desk.state[HAS_SEEN_DRAFTS] = 1.0
    found = 0
    for row in range(desk.sizes[NUM]):
        desk.calibrating.row_kinds[row] = DEPTHS * desk.len_kinds[desk.draft_lens[row]]
        found = max(found, desk.draft_lens[row])
    if not found or not set_prices(trade):
        return 0
    _calibrate(desk, True)
    spend_on_found(trade, rate_of(trade.exchange, trade.decodes[2]))
    return -1


# What to verify, and what came of it


@inner
def _calibrate(desk: Joining, are_new: bool) -> None:
    """Work out how likely each token of the drafts survives."""
    calibrating = desk.calibrating
    num, width = desk.sizes[NUM], desk.sizes[WIDTH]
    calibrating.sizes[0] = desk.trade.sizes[1] = num
    calibrating.sizes[1] = desk.trade.sizes[2] = width
    calibrating.sizes[2], calibrating.sizes[3] = are_new, KINDS * DEPTHS
    gains_of(calibrating)


@inner
def _look_at(desk: Joining, num_drafts: int) -> None:
    """Take some of the drafts into the prospects."""
    seen, num, width = desk.seen, desk.sizes[NUM], desk.sizes[WIDTH]
    stride = 1 + num_drafts // _SAMPLE
    left = int(desk.state[IDLE_STEPS]) // 4 % stride
    taken, longest = 0, seen.sizes[1]
    for row in range(num):
        if not desk.draft_lens[row]:
            continue
        if not left:
            seen.lens[taken] = desk.draft_lens[row]
            seen.classes[taken] = desk.kinds[desk.requests[row]]
            for place in range(width):
                seen.survival[taken * longest + place] = desk.gains[place * num + row]
            taken += 1
            left = stride
        left -= 1
    seen.sizes[0] = taken
    note_firsts(seen)
    take_in(seen)
    desk.state[SEEN] += taken


@inner
def _trim(desk: Joining) -> int:
    """Settle what is worth verifying of what was drafted."""
    trade, state, num = desk.trade, desk.state, desk.sizes[NUM]
    num_drafts = 0
    for row in range(num):
        desk.calibrating.row_kinds[row] = DEPTHS * desk.kinds[desk.requests[row]]
        num_drafts += desk.draft_lens[row] > 0
    are_new = not state[HAS_SEEN_DRAFTS]
    _calibrate(desk, are_new)
    if are_new and (num_drafts < _SAMPLE or state[IDLE_STEPS] % 4.0 == 0.0):
        _look_at(desk, num_drafts)
    spend_on_drafts(trade, rate_of(trade.exchange, trade.decodes[2]))
    left = _PROBED if state[IS_PROBING] else 0
    for row in range(num if left else 0):
        if left and desk.draft_lens[row]:
            trade.lens[row] = max(trade.lens[row], 1)
            left -= 1
    return 0


@inner
def _learn(desk: Joining) -> int:
    """Note what came of what was stated, and what the step took."""
    num, drafted = desk.sizes[NUM], 0
    desk.state[STEPS_SINCE_NEW] += 1.0
    note_step(desk.trade)
    for row in range(num):
        drafted = max(drafted, desk.draft_lens[row])
    desk.fading.sizes[0] = desk.calibrating.sizes[0] = num
    if not desk.sizes[HAS_CONFIDENCES]:
        fade(desk.fading)
    elif drafted:
        tally(desk.calibrating)
        _add_fates(desk)
    return 0


@inner
def _add_fates(desk: Joining) -> None:
    """Take in what became of a step's drafts, and find the class of each request."""
    fates = desk.fates
    for row in range(desk.sizes[NUM]):
        request, accepted = desk.requests[row], desk.accepted_lens[row]
        if desk.draft_lens[row] > 0:
            trials = accepted + (1 if accepted < desk.draft_lens[row] else 0)
            fates[request, 0] = _RECENT * fates[request, 0] + accepted
            fates[request, 1] = _RECENT * fates[request, 1] + trials
        # One trial in two halves is all that is known at first.
        share = (fates[request, 0] + 0.5) / (fates[request, 1] + 1.0)
        desk.kinds[request] = int(share * (KINDS - 1e-9))


@inner
def act(desk: Joining) -> int:
    """Do one of the verbs: what they have in common is compiled once."""
    verb = desk.sizes[VERB]
    if verb == DROPS:
        return _let_go(desk)
    if verb == DRAFTS:
        return _propose(desk)
    return _trim(desk) if verb == VERIFIES else _learn(desk)
