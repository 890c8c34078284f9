"""Upkeep: the memory of `joint`, and whether its drafter is worth running, and for whom.

The drafter has to read each prompt. The time for that is a fading mean over admitted requests, and
the number of tokens that share it is one over requests that have ended, with a prior, since prompts
come in bursts.
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
"""Values of `Joining.states`: not yet seen by the drafter, served, on trial, or dropped."""
_PRIOR_REQUESTS = 5.0
"""Weight of the prior, in requests; each is expected to decode for _STEADY steps."""
_STEADY = 100.0
"""Steps over which the drafter has to be worth its upkeep."""


class JointState(Protocol):
    """Scalars of the memory of `joint`; flags are 0 or 1."""

    believed: float  # alpha before any draft
    prior: float  # long-run mean of alpha; at first `believed`
    num_trials: float  # trials in that mean, the first few standing for `believed`
    num_rows: int  # sequences in the view
    width: int  # longest draft that is shown, tokens
    has_confidences: int  # whether confidences are known before the policy decides
    drafts_alike: int  # whether all sequences get drafts of one length
    has_found: int  # whether the view shows drafts that a lookup has found
    has_undrafted: int  # whether the drafter does not serve some sequences
    has_seen_drafts: int
    """Whether a lookup's drafts were shown before they were cut to what is verified."""
    may_stop: int
    """Longest draft if the drafter can be stopped while it drafts, else 0."""
    idle_steps: int  # steps since the last probe
    is_probing: int  # whether the step is a probe: it drafts although that seems not to pay
    has_begun: int  # whether a step has been decided
    num_seen: int  # drafts that the prospects have learned from
    num_tried: int  # requests that were drafted for
    num_noted: int  # steps in the next three means, fading
    batch: float  # mean number of sequences
    for_all: float
    """Mean time saved by drafting for all sequences (`exchange.saved_by`), times sequences."""
    with_prefills: float  # `for_all` less the time of the drafter's prefills
    batch_served: float  # mean number of sequences, over fewer steps
    for_served: float  # as `for_all`, if only the sequences that the drafter serves get drafts
    is_closed: int  # whether the drafter should not read the prompts of further requests
    steps_since_new: int
    """Steps since a request was admitted, which adds to the sequences that the drafter serves."""
    is_off: int  # whether the drafter is not worth its upkeep even for those that it serves
    may_let_go: int  # whether the engine calls `drop` at all
    pays: int  # whether this step would gain by drafting for all, prefills included
    is_trying: int
    """Whether new requests are drafted for all the same, to see whether that pays by now."""
    num_taken: int  # requests of this try
    tries_left: int  # steps left of this try
    try_loss: float  # loss of each such step, as a share of a step
    spent: float  # net loss of the last try and of what followed from it, in steps
    promise: float  # share of a step that would be gained if alpha were `believed`


class Lives(Protocol):
    """For how many steps and tokens a request decodes; most fields are fading sums."""

    step: float  # number of the step
    age: float  # steps since each request of the last step began, summed
    running: float  # number of these requests
    admitted: float  # requests admitted
    reading: float  # seconds that the drafter takes, or would take, to read their prompts
    ended: float  # requests ended
    lived: float  # steps in which these decoded
    decoded: float  # sequences of all steps
    emitted: float  # tokens that these emitted


def no_lives() -> NDArray[Any]:
    """Return the sums of the prior."""
    lived = _PRIOR_REQUESTS * _STEADY
    return row_of(Lives, ended=_PRIOR_REQUESTS, lived=lived, decoded=lived, emitted=lived)


class Joining(NamedTuple):
    """A step, and the memory of `joint`."""

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
    """Squared errors, fading, of each request's expected acceptance, by the weight that the rate of
    all requests has in it."""
    kinds: Ints
    """Class of each request by the acceptance of its last drafts, from poor to good. Text is easy
    or hard to draft for a while, which confidences do not show."""
    fates: FloatRows  # per request: accepted tokens and trials, which fade with every draft
    begun: Floats  # per request: the step in which it was admitted
    states: Ints
    """Per request: NEW, SERVED, TRIED or LET_GO."""
    len_kinds: Ints  # classes of drafts by their length
    let_go: Flags
    state: Rows[JointState]
    lives: Rows[Lives]


_KEPT = 0.999  # share of the sums in `Lives` kept per step
_PRIOR_GAIN = 0.03  # expected gain of a drafter, as a share of a step
_SOON = 20.0  # steps in the means over served sequences, which become fewer and fewer
_EVIDENCE = 16  # drafts that must have been seen before a drafter is given up
_WORTHWHILE = 0.01  # least gain of a drafter, as a share of a step
_NOTHING = 1e-6  # share of a step: smaller differences are rounding errors
_TRY_REQUESTS = 4  # new requests in a try of a drafter that was given up
_TRY_STEPS = 4  # steps of a try
_TRY_OVER = -2  # with asynchronous scheduling, two steps later the outcome is known
_CHANGES = 0.03  # expected changes for the better in as many steps as there were so far
LOSS = 0.002
"""Share of all steps that may be lost by probes, which draft although that seems not to pay."""


@inner
def note_gains(desk: Joining, gains: tuple[float, float, float], idle: float) -> None:
    """Decide whom the drafter serves from a step's `gains`: for all, with prefills, for served.

    `idle` is what the drafter costs while it drafts nothing, as a share of a step: to be taken back
    it has to gain half of that, and a drafter for which it is 0 is never closed.
    """
    state = desk.state[0]
    if state.num_seen < _EVIDENCE:  # gains would only reflect the prior
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
    """Set `let_go`: sequences that the drafter stops serving; return their number."""
    state, states, lives = desk.state[0], desk.states, desk.lives[0]
    num, num_new, state.may_let_go = state.num_rows, 0, 1
    for row in range(num):
        request = desk.requests[row]
        if states[request] == NEW:
            num_new += 1
            desk.begun[request] = lives.step
    admit(lives, num_new, _reading_time(desk.trade))
    if num_new:
        state.steps_since_new = -1  # `_learn` adds 1 when this step ends
        state.is_off = state.is_off and state.is_closed  # unless closed, it serves the new ones
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
    if not num_tried:  # a try ends with its requests
        state.tries_left = _TRY_OVER
    return num_let_go


@inner
def _state_after(state: JointState, before: int, has_failed: bool) -> int:
    """Return the state of a request from now on: SERVED, TRIED or LET_GO."""
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
    """Return whether a try is over and its consequence not yet drawn."""
    return bool(state.is_trying and state.tries_left <= _TRY_OVER * state.drafts_alike)


@inner
def _reading_time(desk: Trade) -> float:
    """Return how long the drafter takes to read the prompts of the running step, seconds."""
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
    """End a try that is over, and begin one with new requests if it is due.

    If drafting for all pays by the outcome of a try, the drafter is taken back and its means begin
    anew. The next try is due once waiting is expected to have lost as much as the last one cost.
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
    """Scale all trials down to the weight of a prior, since the traffic may have changed."""
    state, totals = desk.state[0], desk.fading.totals
    state.num_trials = min(state.num_trials, PRIOR_TRIALS)
    keep = PRIOR_TRIALS / max(totals[1], PRIOR_TRIALS)
    totals[0] *= keep
    totals[1] *= keep


@inner
def pay_back(state: JointState, gain: float) -> None:
    """Subtract a step's gain from the cost of the last try, down to 0.

    Losses add to it: if the drafter was taken back wrongly, the try has cost all that was lost
    until it was given up again.
    """
    if state.spent and not state.is_closed:
        state.spent = max(state.spent - gain, 0.0)


@inner
def _waiting_loss(state: JointState, step: float) -> float:
    """Return the expected loss, in steps, since the last try, as drafting may pay by now.

    If that has changed, it was halfway through the wait on average.
    """
    promise, waited = max(state.promise, _WORTHWHILE), float(state.idle_steps)
    chance = _CHANGES * waited / max(step, 1.0)
    loss: float = chance * promise / (1.0 + promise) * waited / 2.0
    return loss


@inner
def admit(lives: Lives, num: int, seconds: float) -> None:
    """Count the requests that a step admits, and the seconds to read its prompts."""
    lives.admitted += num
    lives.reading += seconds
    lives.ended += num


@inner
def life_of(lives: Lives) -> float:
    """Return the mean number of steps in which a request decodes."""
    life: float = max(lives.lived, 1.0) / max(lives.ended, 1.0)
    return life


@inner
def share_of(lives: Lives, size: int, begun: float, num: int) -> float:
    """Return the part of the time for reading prompts that a step of `num` tokens bears, seconds.

    The step has `size` sequences, which began in steps that sum to `begun`.
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
