"""Upkeep: what `joint` remembers, whether its drafter is worth having, and whom it serves.

What it takes to read a prompt, and for how many tokens that is of use, are means over requests,
fading: of those admitted, and of those that have ended, with a prior. Prompts come in bursts; what
reading them costs is borne by all tokens that gain from it.
"""

from typing import Annotated, Any, NamedTuple, Protocol

from numpy.typing import NDArray

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Flags, FloatRows, Floats, Ints
from specsim.decisions.loops import row_of
from specsim.policies.draft_goodput import Calibrating
from specsim.policies.parts.estimate import PRIOR_TRIALS, Fading
from specsim.policies.parts.exchange import Trade, set_times
from specsim.policies.parts.prospects import STALE_DRAFTS, Seen, age

NEW, SERVED, TRIED, LET_GO = range(4)
"""What is in `Joining.states`."""
_PRIOR_REQUESTS = 5.0
"""Requests that count for a prior: they are expected to decode for as many steps as"""
_STEADY = 100.0
"""those over which a drafter has to be worth its upkeep."""


class JointState(Protocol):
    """Where it stands; flags are 0 or 1."""

    believed: float  # alpha before any draft
    prior: float  # in the long run; at first, what is believed
    num_trials: float  # that it is a mean of, the first few being a belief
    num_rows: int  # sequences that the verb is about
    width: int  # tokens of the longest draft that is shown
    has_confidences: int  # whether the drafter knows how sure it is
    drafts_alike: int  # whether all sequences draft equally many tokens
    has_found: int  # whether a lookup shows what it has found
    has_undrafted: int  # whether some sequences are left out
    has_seen_drafts: int
    """Whether drafts were looked at as they were made, and what is verified are parts of them."""
    may_stop: int
    """Where the drafter can stop as it drafts, what is drafted if it does not, else 0."""
    idle_steps: int  # since something was drafted that did not seem to pay
    is_probing: int  # whether this is such a step
    has_begun: int  # whether any step was decided about
    num_seen: int  # drafts that prospects are made of
    num_tried: int  # requests that were drafted for
    num_noted: int  # steps that these are means of, fading:
    batch: float  # sequences; and for each of them
    for_all: float
    """what drafting saves of a step of a server without a drafter (`exchange.saved_by`),"""
    with_prefills: float  # that less the drafter's prefills,
    batch_served: float  # and, over fewer steps, sequences, and for each of them
    for_served: float  # what it saves if it drafts for those alone whom it serves
    is_closed: int  # whether the drafter is not worth reading the prompts of more requests
    steps_since_new: int
    """Since a request was admitted, until which it may come to serve more of the batch."""
    is_off: int  # whether it is not worth its upkeep for those that it has read
    may_let_go: int  # whether it is ever asked whom the drafter lets go of
    pays: int  # whether drafting for all is, by what this step would gain, prefills included
    is_trying: int
    """Whether new requests are drafted for nevertheless, to see whether that pays by now;"""
    num_taken: int  # requests of this try,
    tries_left: int  # steps that are still to draft for them,
    try_loss: float  # share of a step that each such step costs,
    spent: float  # steps that the last try and what came of it have cost, more than they gained
    promise: float  # share of a step that would be gained if drafts were as good as believed


class Lives(Protocol):
    """For how many steps and tokens a prompt that was read is of use."""

    step: float
    age: float  # steps since the requests of the last step began, added up,
    running: float  # and how many these were
    admitted: float  # requests, fading,
    reading: float  # and seconds that the drafter would have read their prompts
    ended: float  # requests, fading,
    lived: float  # and the steps in which they decoded
    decoded: float  # sequences of all steps, fading,
    emitted: float  # and the tokens that they emitted


def no_lives() -> NDArray[Any]:
    """Return the prior."""
    lived = _PRIOR_REQUESTS * _STEADY
    return row_of(Lives, ended=_PRIOR_REQUESTS, lived=lived, decoded=lived, emitted=lived)


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
    misses: Floats
    """Squared errors, fading, of what requests are expected to accept, by how much of that is what
    all of them do."""
    kinds: Ints
    """Of each request: how its last drafts fared, in classes from poor to good. Text is easy or
    hard to draft for a while, which confidences know nothing of."""
    fates: FloatRows  # of each request: accepted tokens and trials, which fade with every draft
    begun: Floats  # of each request: the step it was admitted in
    states: Ints
    """Of each request: new to the drafter, served, tried though it was given up, or let go of."""
    len_kinds: Ints  # classes of drafts by their length
    let_go: Flags
    state: Rows[JointState]
    lives: Rows[Lives]


_KEPT = 0.999  # share of what is known of requests that a step leaves
_PRIOR_GAIN = 0.03  # share of a step that a drafter is expected to gain
_SOON = 20.0  # for whom it serves, who are the fewer the longer it reads no prompts
_EVIDENCE = 16  # drafts without which a drafter is not given up
_WORTHWHILE = 0.01  # share of a step that a drafter has to gain
_NOTHING = 1e-6  # share of a step: rounding
_TRY_REQUESTS = 4  # new ones that are drafted for at a time though the drafter was given up, in
_TRY_STEPS = 4  # so many steps, and
_TRY_OVER = -2  # two more, under asynchronous scheduling, until it is known what came of the last
_CHANGES = 0.03  # for the better, that are expected in as many steps as there were so far
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
    num, steps = desk.trade.decodes[2], min(float(state.num_noted), _STEADY)
    for_all, with_prefills, for_served = gains
    state.batch += (num - state.batch) / steps
    state.for_all += (num * for_all - state.for_all) / steps
    state.with_prefills += (num * with_prefills - state.with_prefills) / steps
    soon = min(steps, _SOON)
    state.batch_served += (num - state.batch_served) / soon
    state.for_served += (num * for_served - state.for_served) / soon
    prior = _PRIOR_REQUESTS / (state.num_tried + _PRIOR_REQUESTS)
    least = max(idle / 2.0, _WORTHWHILE) if state.is_closed else _WORTHWHILE
    costs = idle + for_all - with_prefills > _NOTHING
    state.is_closed = costs and _shrunk(state.with_prefills / state.batch, prior) < least
    is_waning = state.is_closed or state.steps_since_new > _STEADY
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
    num, num_new, state.may_let_go = state.num_rows, 0, 1
    for row in range(num):
        request = desk.requests[row]
        if states[request] == NEW:
            num_new += 1
            desk.begun[request] = lives.step
    admit(lives, num_new, _reading_time(desk.trade))
    if num_new:
        state.steps_since_new = -1  # this one is counted at its end
        state.is_off = state.is_off and state.is_closed  # it comes to serve more again
    if not num_new and not state.is_off and not has_tried(state):
        return 0
    has_failed = has_tried(state) and not state.pays
    _choose_try(desk, num_new)
    num_let_go = num_tried = 0
    for row in range(num):
        request = desk.requests[row]
        before = states[request]
        after = _state_after(state, before, has_failed)
        states[request] = after
        desk.let_go[row] = before != LET_GO and after == LET_GO
        num_let_go += desk.let_go[row]
        num_tried += after == TRIED
    if not num_tried:  # a try whose requests have ended has, too
        state.tries_left = _TRY_OVER
    return num_let_go


@inner
def _state_after(state: JointState, before: int, has_failed: bool) -> int:
    """Return whether a request is served from now on, tried or let go of."""
    if before == NEW and state.is_trying and state.num_taken < _TRY_REQUESTS:
        state.num_taken += 1
        return TRIED
    if before == TRIED and not has_failed and (state.is_trying or not state.is_off):
        return TRIED if state.is_trying else SERVED
    if before == LET_GO or state.is_off or (before != SERVED and state.is_closed):
        return LET_GO
    return SERVED


@inner
def has_tried(state: JointState) -> bool:
    """Return whether a try is over, and not yet settled what follows from it."""
    return bool(state.is_trying and state.tries_left <= _TRY_OVER * state.drafts_alike)


@inner
def _reading_time(desk: Trade) -> float:
    """Return how long the drafter reads the prompts of a step, seconds."""
    times = desk.times[0]
    if not desk.running[3]:
        return 0.0
    set_times(desk, 0)
    has_decodes = desk.running[1] > desk.running[3]  # else the whole pass is for the prompts
    rest = times.next - times.next_plain if has_decodes else 0.0
    time: float = times.running - times.running_plain - rest
    return time


@inner
def _choose_try(desk: Joining, num_new: int) -> None:
    """Try to draft for new requests, if there are any, though the drafter was given up.

    If drafting for all would pay by what comes of it, the drafter is taken up again, and its
    account begins anew. The next try is due when as much as this one has cost, and as the next
    will, is lost by waiting.
    """
    state, lives = desk.state[0], desk.lives[0]
    if has_tried(state):
        reading = state.num_taken * lives.reading / max(lives.admitted, 1.0)
        state.spent += reading / desk.trade.exchange[0].plain
        if state.pays:
            state.is_closed = state.is_off = state.num_noted = 0
        state.is_trying = 0
    if not state.is_closed:
        state.is_trying = 0
    elif not state.is_trying and num_new:
        cost = max(state.spent, _TRY_STEPS * state.try_loss)
        state.is_trying = _waiting_loss(state, lives.step) >= cost
        if state.is_trying:
            state.tries_left, state.spent = _TRY_STEPS, 0.0
            state.idle_steps = state.num_taken = 0
            age(desk.seen, STALE_DRAFTS)
            _age_trials(desk)


@inner
def _age_trials(desk: Joining) -> None:
    """Have trials so far count for no more than a prior does, as other traffic may have come."""
    state, totals = desk.state[0], desk.fading.totals
    state.num_trials = min(state.num_trials, PRIOR_TRIALS)
    keep = PRIOR_TRIALS / max(totals[1], PRIOR_TRIALS)
    totals[0] *= keep
    totals[1] *= keep


@inner
def pay_back(state: JointState, gain: float) -> None:
    """Set what a step gains against what the last try has cost, until that is made up for.

    So a try that was believed wrongly has cost what was lost until the drafter was given up again.
    """
    if state.spent and not state.is_closed:
        state.spent = max(state.spent - gain, 0.0)


@inner
def _waiting_loss(state: JointState, step: float) -> float:
    """Return the steps that are expected to be lost since the last try, as drafting may pay by now.

    If it has come to pay, then in the midst of them, on average.
    """
    promise, waited = max(state.promise, _WORTHWHILE), float(state.idle_steps)
    chance = _CHANGES * waited / max(step, 1.0)
    loss: float = chance * promise / (1.0 + promise) * waited / 2.0
    return loss


@inner
def admit(lives: Lives, num: int, seconds: float) -> None:
    """Take in how many a step admits, and how long prompts would have been read in it."""
    lives.admitted += num
    lives.reading += seconds
    lives.ended += num


@inner
def life_of(lives: Lives) -> float:
    """Return the steps in which a request decodes, on average."""
    life: float = max(lives.lived, 1.0) / max(lives.ended, 1.0)
    return life


@inner
def share_of(lives: Lives, size: int, begun: float, num: int) -> float:
    """Return what a step of so many tokens, one per sequence, bears of reading prompts, seconds.

    Its sequences, decoding or not, began in steps that add up to `begun`.
    """
    lives.step += 1.0
    age = size * lives.step - begun
    lives.ended -= size - lives.running
    lives.lived += num - (age - lives.age)
    lives.running, lives.age = size, age
    if not lives.admitted:
        return 0.0
    tokens = life_of(lives) * lives.emitted / lives.decoded
    share: float = num * lives.reading / lives.admitted / tokens
    lives.decoded *= _KEPT
    lives.emitted *= _KEPT
    lives.admitted *= _KEPT
    lives.reading *= _KEPT
    lives.lived *= _KEPT
    lives.ended *= _KEPT
    return share
