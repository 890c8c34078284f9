"""What `joint` does in each verb of a step: one loop, over what it remembers."""

from specsim.core.compiled import inner
from specsim.core.desk import Floats
from specsim.policies._estimate import alpha_of_all, fade, survive
from specsim.policies._exchange import (
    BY_MODEL,
    FREE_SLOTS,
    MAX_LEN,
    NEXT,
    NEXT_PLAIN,
    ONE_COST,
    best_of,
    note_step,
    rate_of,
    set_prices,
    spend_before,
    spend_on_drafts,
    spend_on_found,
    value_of,
    weigh_choices,
)
from specsim.policies._joint_desk import (
    DRAFTS,
    DROPS,
    HAS_CONFIDENCES,
    HAS_FOUND,
    HAS_SEEN_DRAFTS,
    HAS_UNDRAFTED,
    IDLE_STEPS,
    IS_PROBING,
    MAY_STOP,
    NUM,
    PRIOR,
    PROBES_LEFT,
    SEEN,
    STEPS_SINCE_NEW,
    STOPS,
    VERB,
    VERIFIES,
    WIDTH,
    Joining,
)
from specsim.policies._lives import share_of
from specsim.policies._prospects import LEVELS, foresee, note_firsts, take_in, worth_of_next
from specsim.policies._serving import LOSS, note_gains, settle_served
from specsim.policies._spending import spent_time
from specsim.policies.draft_goodput import DEPTHS, KINDS, gains_of, tally

_SAMPLE = 32  # drafts of a step that are looked at for the prospects
_PROBED = 4  # sequences of which such a step verifies a token at least
_RECENT = 0.9  # share of a request's trials that the next draft leaves


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
    state[MAY_STOP] = 0.0
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
    note_gains(desk, (for_all, for_all - reading / time, for_served), idle)
    state[IDLE_STEPS] += 1.0
    if not served:
        return 0
    best, least = best_of(values, 0, longest), best_of(values, 1, longest)
    if state[PROBES_LEFT] > 0:
        state[IS_PROBING] = 1.0
        state[PROBES_LEFT] -= 1.0
        return least
    length = _explored(state, best, least, (values[0] - values[least]) / worth)
    if best and trade.limits[BY_MODEL] and not trade.limits[ONE_COST]:
        state[MAY_STOP], length = length, longest
    return length


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
    state[IS_PROBING] = best == 0 and state[IDLE_STEPS] * LOSS >= loss
    if state[IS_PROBING]:
        state[IDLE_STEPS] = 0.0
        return least
    return best


@inner
def _stop(desk: Joining) -> int:
    """Return after how many passes the drafter stops, by what it has said until then.

    One more is worth its time if what it adds to all drafts is, taken to be the last: what a
    further one adds is less.
    """
    trade, num, spending = desk.trade, desk.trade.decodes[2], desk.trade.spending
    rate, drafting = rate_of(trade.exchange, num), trade.drafting
    if rate <= 0.0:
        return int(desk.state[MAY_STOP])
    price = rate * (spent_time(spending, num) - spent_time(spending, 0)) / num
    for row in range(desk.sizes[NUM]):
        desk.calibrating.row_kinds[row] = DEPTHS * desk.kinds[desk.requests[row]]
    _calibrate(desk, True)
    for place in range(1, desk.sizes[WIDTH]):
        worth_of_next(desk.seen, place, price)
        worth = 0.0
        for row in range(desk.sizes[NUM]):
            at = desk.gains[(place - 1) * desk.sizes[NUM] + row] * LEVELS
            level = min(int(at), LEVELS - 1)
            rest = at - level
            worth += desk.tokens[level] * (1.0 - rest) + desk.tokens[level + 1] * rest
        if worth <= rate * (drafting[place + 1] - drafting[place]):
            return place
    return int(desk.sizes[WIDTH])


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
        return settle_served(desk)
    if verb == DRAFTS:
        return _propose(desk)
    if verb == STOPS:
        return _stop(desk)
    return _trim(desk) if verb == VERIFIES else _learn(desk)
