"""Joint: how much to draft and then what to verify of it, at the long-run price of a second.

What it does in each verb of a step; the derivation is in docs/explanation/joint.md.
"""

from typing import Literal, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import inner
from specsim.core.desk import Floats, PerRequest
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.draft_goodput import (
    DEPTHS,
    KINDS,
    LEN_KINDS,
    bins_of,
    calibrating_desk,
    gains_of,
    tally,
)
from specsim.policies.parts.estimate import PRIOR_TRIALS, alpha_of_all, fade, fading_desk, survive
from specsim.policies.parts.everybody import verify_all
from specsim.policies.parts.exchange import (
    Trade,
    ask_ahead,
    best_of,
    learn_prices,
    note_asked,
    note_dearer,
    note_step,
    rate_of,
    restate,
    saved_by,
    set_prices,
    spend_before,
    spend_on_drafts,
    spend_on_found,
    time_of,
    trade_desk,
    value_of,
    weigh_choices,
)
from specsim.policies.parts.prospects import (
    LEVELS,
    add_surest,
    clear,
    foresee,
    foretell,
    note_course,
    note_firsts,
    prospects,
    put_survival,
    take_in,
)
from specsim.policies.parts.upkeep import (
    LOSS,
    Joining,
    JointState,
    has_tried,
    life_of,
    no_lives,
    note_gains,
    pay_back,
    settle_served,
    share_of,
)

_PRIOR_TRIALS = (1.0, 5.0, 20.0)  # candidate weights of the rate of all requests in that of one
_STALE_TRIALS = 10.0  # trials of all requests below which they fade no further
_LONG_RUN = 500.0  # most trials of all requests in the long-run prior
_SAMPLE = 32  # drafts of a step that the prospects learn from
_PROBED = 4  # sequences of which a probe verifies at least one draft token
_REMEMBERED = 0.999  # share of the squared errors `misses` kept per draft
_RECENT = 0.9  # share of a request's trials kept per draft


# How much to draft


@inner
def _propose(desk: Joining) -> int:
    """Return the best draft length for all sequences; -1: each has its own in `trade.lens`."""
    if desk.state[0].has_found:
        return _of_found(desk)
    if desk.state[0].has_confidences or desk.state[0].drafts_alike:
        return _for_all(desk)
    return _by_past(desk)


@inner
def _for_all(desk: Joining) -> int:
    """Return a common draft length, by the prospects, or past acceptance without confidences."""
    trade, state, values = desk.trade, desk.state[0], desk.trade.values
    longest, num = set_prices(trade), trade.decodes[2]
    note_dearer(trade)
    state.may_stop = 0
    if not longest:
        return 0
    rate = rate_of(trade.exchange, num)
    time = trade.times[0].next_plain
    plain = value_of(num, time, rate)
    worth = rate * time if rate else plain
    _begin(desk, longest, rate)
    if state.is_closed:
        _hope_for(desk, longest, rate, state.believed)
        state.promise = (values[best_of(values, 0, longest)] - plain) / worth
    _weigh(desk, False, longest, rate)
    for_all = for_served = saved_by(trade, best_of(values, 0, longest), rate)
    served = _num_served(desk)
    if served < num:
        _weigh(desk, True, longest, rate)
        for_served = saved_by(trade, best_of(values, 0, longest), rate)
    begun = 0.0
    for row in range(desk.state[0].num_rows):
        begun += desk.begun[desk.requests[row]]
    reading = share_of(desk.lives[0], desk.state[0].num_rows, begun, num)
    idle = trade.times[0].next / time - 1.0
    note_gains(desk, (for_all, for_all - reading / time, for_served), idle)
    state.idle_steps += 1
    best, least = best_of(values, 0, longest), best_of(values, 1, longest)
    state.try_loss = max(idle + (values[0] - values[least]) / worth, 0.01)
    if not served:
        return 0
    state.pays = for_all > reading / time
    pay_back(state, for_served - reading / time * served / num)
    if state.is_trying:
        state.spent += max(idle + (values[0] - values[least]) / worth, 0.0)
        state.tries_left -= 1
        if state.tries_left >= 0:
            state.is_probing = 1
            return least
    length = best
    state.is_probing = 0
    if not (state.is_closed and state.may_let_go):  # else a try with new requests tells more
        length = _explored(state, best, least, (values[0] - values[least]) / worth)
    stops = state.has_confidences and trade.limits[0].by_model and not trade.limits[0].one_cost
    if best and stops:
        state.may_stop, length = length, longest
    return length


@inner
def _num_served(desk: Joining) -> int:
    """Return the number of decoding sequences that the drafter serves."""
    if not desk.state[0].has_undrafted:
        return int(desk.trade.decodes[2])
    served = 0
    for row in range(desk.state[0].num_rows):
        served += not desk.in_prefill[row] and not desk.is_undrafted[row]
    return served


@inner
def _weigh(desk: Joining, is_served: bool, longest: int, rate: float) -> None:
    """Weigh draft lengths for all decoding sequences, or (`is_served`) for those served."""
    seen, num = desk.seen, 0
    if not desk.state[0].has_confidences:
        _weigh_past(desk, is_served, longest, rate)
        return
    for row in range(desk.state[0].num_rows):
        if not desk.in_prefill[row] and not (is_served and desk.is_undrafted[row]):
            seen.classes[num] = desk.kinds[desk.requests[row]]
            num += 1
    seen.sizes[0] = num
    foresee(seen)
    seen.course[0].foretold = seen.gained[LEVELS - 1] / max(num, 1)
    desk.trade.sizes[0] = LEVELS
    weigh_choices(desk.trade, 0, longest, rate)


@inner
def _weigh_past(desk: Joining, is_served: bool, longest: int, rate: float) -> None:
    """Weigh draft lengths by each request's past acceptance, without later trimming."""
    trade, fading, num = desk.trade, desk.fading, desk.state[0].num_rows
    fading.sizes[0], fading.sizes[1] = num, longest
    survive(fading, alpha_of_all(fading.totals, desk.state[0].prior))
    tokens, gained = 0.0, 0.0
    for place in range(longest):
        for row in range(num):
            if not desk.in_prefill[row] and not (is_served and desk.is_undrafted[row]):
                tokens += 1.0
                gained += desk.gains[place * num + row]
        trade.tokens[place], trade.gained[place] = tokens, gained
    trade.sizes[0] = 1
    weigh_choices(trade, 0, longest, rate)


@inner
def _hope_for(desk: Joining, longest: int, rate: float, alpha: float) -> None:
    """Weigh draft lengths if every draft token is accepted with probability `alpha`."""
    trade, num, survival, gained = desk.trade, desk.trade.decodes[2], 1.0, 0.0
    for place in range(longest):
        survival *= alpha
        gained += num * survival
        trade.tokens[place], trade.gained[place] = num * (place + 1.0), gained
    trade.sizes[0] = 1
    weigh_choices(trade, 0, longest, rate)


@inner
def _begin(desk: Joining, longest: int, rate: float) -> None:
    """In the first step, give the drafter up if it could not pay whatever is accepted.

    That is judged with all tokens accepted, and with half of the time that drafting adds.
    """
    state, trade = desk.state[0], desk.trade
    if state.has_begun:
        return
    _hope_for(desk, longest, rate, 1.0)
    state.has_begun = state.is_closed = state.is_off = 1
    num, plain = trade.decodes[2], trade.times[0].next_plain
    for place in range(1, longest + 1):
        time = (plain + time_of(trade, place, rate)) / 2.0
        if time * num < trade.emitted[place] * plain:
            state.is_closed = state.is_off = 0


@inner
def _explored(state: JointState, best: int, least: int, loss: float) -> int:
    """Return `best`; if that is 0, now and then `least`, as a probe, so rarely as `LOSS` allows."""
    state.is_probing = best == 0 and state.idle_steps * LOSS >= loss
    if state.is_probing:
        state.idle_steps = 0
        return least
    return best


@inner
def _stop(desk: Joining) -> int:
    """Return the draft length at which the drafter stops, by its confidences up to there.

    It goes on while some longer draft is worth more, with later tokens predicted from other drafts.
    """
    trade, seen, width = desk.trade, desk.seen, int(desk.state[0].width)
    rate = rate_of(trade.exchange, trade.decodes[2])
    if rate <= 0.0:
        return int(desk.state[0].may_stop)
    num = desk.state[0].num_rows
    for row in range(num):
        desk.calibrating.row_kinds[row] = DEPTHS * desk.kinds[desk.requests[row]]
    _calibrate(desk, True)
    trade.sizes[0] = LEVELS
    for place in range(1, width):
        clear(seen, place - 1)
        for row in range(num):
            if desk.draft_lens[row]:
                put_survival(seen, place - 1, 1.0, desk.gains[(place - 1) * num + row])
        add_surest(seen, place - 1)
        weigh_choices(trade, place - 1, place, rate)
        longer = place
        while longer < width and trade.values[longer] <= trade.values[place]:
            foretell(seen, longer)
            add_surest(seen, longer)
            longer += 1
            weigh_choices(trade, longer - 1, longer, rate)
        if trade.values[longer] <= trade.values[place]:
            return place
    return width


@inner
def _by_past(desk: Joining) -> int:
    """Set a draft length for each sequence by its past acceptance, in `trade.lens`."""
    trade, fading, num = desk.trade, desk.fading, desk.state[0].num_rows
    fading.sizes[0] = trade.sizes[1] = num
    fading.sizes[1] = trade.limits[0].max_len
    survive(fading, alpha_of_all(fading.totals, desk.state[0].prior))
    rate = rate_of(trade.exchange, trade.decodes[2])
    spend_before(trade, set_prices(trade), rate)
    desk.state[0].idle_steps += 1
    most = 0
    for row in range(num):
        most = max(most, trade.lens[row])
    if not most and num <= trade.limits[0].free_slots:
        most = _explored(desk.state[0], 0, 1, 1.0)
        for row in range(num):
            trade.lens[row] = 0 if desk.in_prefill[row] else most
    return -1


@inner
def _of_found(desk: Joining) -> int:
    """Set how much of each draft that a lookup has found is worth verifying, in `trade.lens`."""
    trade = desk.trade
    desk.state[0].has_seen_drafts = 1
    found = 0
    for row in range(desk.state[0].num_rows):
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
    """Set the `gains` of the drafts: calibrated survival of each token."""
    calibrating = desk.calibrating
    num, width = desk.state[0].num_rows, desk.state[0].width
    calibrating.sizes[0] = desk.trade.sizes[1] = num
    calibrating.sizes[1] = desk.trade.sizes[2] = width
    calibrating.sizes[2], calibrating.sizes[3] = are_new, KINDS * DEPTHS
    gains_of(calibrating)


@inner
def _look_at(desk: Joining, num_drafts: int) -> None:
    """Let the prospects learn from a sample of the step's drafts."""
    seen, num, width = desk.seen, desk.state[0].num_rows, desk.state[0].width
    stride = 1 + num_drafts // _SAMPLE
    left = desk.state[0].idle_steps // 4 % stride
    taken, longest = 0, seen.sizes[1]
    for row in range(num):
        if not desk.draft_lens[row]:
            continue
        if not left:
            seen.taken_lens[taken] = desk.draft_lens[row]
            seen.classes[taken] = desk.kinds[desk.requests[row]]
            for place in range(width):
                seen.survival[taken * longest + place] = desk.gains[place * num + row]
            taken += 1
            left = stride
        left -= 1
    seen.sizes[0] = taken
    note_firsts(seen)
    note_course(seen, life_of(desk.lives[0]))
    take_in(seen)
    desk.state[0].num_seen += taken


@inner
def _trim(desk: Joining) -> int:
    """Set how much of each draft is worth verifying, in `trade.lens`."""
    trade, state, num = desk.trade, desk.state[0], desk.state[0].num_rows
    num_drafts = 0
    for row in range(num):
        desk.calibrating.row_kinds[row] = DEPTHS * desk.kinds[desk.requests[row]]
        num_drafts += desk.draft_lens[row] > 0
    are_new = not state.has_seen_drafts
    _calibrate(desk, are_new)
    if are_new and (num_drafts < _SAMPLE or state.idle_steps % 4 == 0):
        _look_at(desk, num_drafts)
    spend_on_drafts(trade, rate_of(trade.exchange, trade.decodes[2]))
    left = _PROBED if state.is_probing else 0
    for row in range(num if left else 0):
        if left and desk.draft_lens[row]:
            trade.lens[row] = max(trade.lens[row], 1)
            left -= 1
    return 0


@inner
def _learn(desk: Joining) -> int:
    """Learn acceptance and times from a step that has ended."""
    num, drafted = desk.state[0].num_rows, 0
    desk.state[0].steps_since_new += 1
    desk.lives[0].decoded += desk.trade.outcome[0]
    desk.lives[0].emitted += desk.trade.outcome[1]
    learn_prices(desk.trade)
    note_step(desk.trade)
    for row in range(num):
        drafted = max(drafted, desk.draft_lens[row])
    desk.fading.sizes[0] = desk.calibrating.sizes[0] = num
    if not desk.state[0].has_confidences:
        _add_trials(desk)
    elif drafted:
        tally(desk.calibrating)
        _add_fates(desk)
    return 0


@inner
def _add_trials(desk: Joining) -> None:
    """Count accepted tokens and trials of all requests; without trials, fade the counts."""
    fading, state = desk.fading, desk.state[0]
    trials, accepted = 0, 0
    for row in range(state.num_rows):
        is_drafted = desk.draft_lens[row] > 0
        state.num_seen += is_drafted
        state.num_tried += is_drafted and not fading.counts[desk.requests[row], 1]
        if is_drafted and not state.drafts_alike:
            _note_misses(desk, row)
        accepted += desk.accepted_lens[row]
        trials += desk.accepted_lens[row] + (desk.accepted_lens[row] < desk.draft_lens[row])
    fading.rates[1] = _PRIOR_TRIALS[_least_of(desk.misses)]
    fade(fading)
    if trials:  # replaces `believed` in the long run
        state.num_trials = min(state.num_trials + trials, _LONG_RUN)
        state.prior += (accepted - trials * state.prior) / state.num_trials
    elif fading.totals[1] > _STALE_TRIALS:
        fading.totals[0] *= fading.rates[0]
        fading.totals[1] *= fading.rates[0]


@inner
def _least_of(values: Floats) -> int:
    """Return the last place of the smallest value."""
    least = 0
    for place in range(len(values)):
        if values[place] <= values[least]:
            least = place
    return least


@inner
def _note_misses(desk: Joining, row: int) -> None:
    """Note the error of each weight in `_PRIOR_TRIALS` on the first token of a request's draft."""
    counts, request = desk.fading.counts, desk.requests[row]
    alpha = alpha_of_all(desk.fading.totals, desk.state[0].prior)
    is_accepted = 1.0 if desk.accepted_lens[row] else 0.0
    for place in range(len(_PRIOR_TRIALS)):
        trials = _PRIOR_TRIALS[place]
        rate = (counts[request, 0] + trials * alpha) / (counts[request, 1] + trials)
        desk.misses[place] = _REMEMBERED * desk.misses[place] + (rate - is_accepted) ** 2


@inner
def _add_fates(desk: Joining) -> None:
    """Count accepted tokens and trials of each request, and set its class."""
    fates = desk.fates
    for row in range(desk.state[0].num_rows):
        request, accepted = desk.requests[row], desk.accepted_lens[row]
        if desk.draft_lens[row] > 0:
            trials = accepted + (1 if accepted < desk.draft_lens[row] else 0)
            desk.state[0].num_tried += not fates[request, 1]
            fates[request, 0] = _RECENT * fates[request, 0] + accepted
            fates[request, 1] = _RECENT * fates[request, 1] + trials
        # The prior is half an accepted token in one trial.
        share = (fates[request, 0] + 0.5) / (fates[request, 1] + 1.0)
        desk.kinds[request] = int(share * (KINDS - 1e-9))


# The verbs


@inner
def _put_running(view: View, trade: Trade) -> None:
    """Load the running step into `trade`."""
    step, running = view.step[0], trade.running
    running[0], running[1] = step.context_tokens, step.batched_tokens
    running[2], running[3] = step.num_requests, step.prefill_tokens


@inner
def _put_decodes(trade: Trade, context: int, tokens: int, num: int, prefills: int) -> None:
    """Load the next step, which is decided about, into `trade`."""
    decodes = trade.decodes
    decodes[0], decodes[1], decodes[2], decodes[3] = context, tokens, num, prefills


@inner
def _put_next(view: View, desk: Joining) -> None:
    """Load the running step, and a next one with one token per decoding sequence."""
    step = view.step[0]
    desk.state[0].num_rows = step.num_rows
    _put_running(view, desk.trade)
    _put_decodes(desk.trade, step.next_context_tokens, step.num_decodes, step.num_decodes, 0)


def decide(view: View, desk: Joining) -> None:
    """Ask for the draft lengths worth most."""
    step, trade, length = view.step[0], desk.trade, 0
    if step.num_decodes and step.max_draft_len:
        _put_next(view, desk)
        desk.state[0].width, desk.state[0].has_found = step.width, step.has_found
        desk.state[0].has_undrafted = step.num_undrafted > 0
        trade.limits[0].free_slots = step.free_slots
        ask_ahead(trade, min(step.num_rows * step.max_draft_len, step.free_slots))
        length = _propose(desk)
        _note_asked(view, desk, length)
    else:
        note_asked(trade, 0, 0, False)
    for row in range(step.num_rows if length >= 0 else 0):
        view.lens[row] = length
    step.may_stop, step.may_drop = (
        length > 0 and desk.state[0].may_stop > 0,
        desk.state[0].is_off != 0 or has_tried(desk.state[0]),
    )


@inner
def _note_asked(view: View, desk: Joining, length: int) -> None:
    """Note the drafting time of what is asked for: `length` for all, or -1: `view.lens`."""
    longest, tokens = max(length, 0), 0
    for row in range(view.step[0].num_rows if length < 0 else 0):
        longest = max(longest, view.lens[row])
        tokens += view.lens[row]
    note_asked(desk.trade, longest, tokens, not desk.state[0].has_undrafted)


def stop(view: View, desk: Joining) -> None:
    """Set the length at which the drafter stops."""
    desk.state[0].width = view.step[0].width
    view.step[0].stop_len = _stop(desk)
    restate(desk.trade, min(view.step[0].stop_len, view.step[0].width))


def verify(view: View, desk: Joining) -> None:
    """Set how much of each draft is verified."""
    step, trade = view.step[0], desk.trade
    if not desk.state[0].has_confidences or not step.width:
        verify_all(view)
        return
    desk.state[0].num_rows, desk.state[0].width = step.num_rows, step.width
    _put_running(view, trade)
    _put_decodes(trade, step.context_tokens, 0, step.num_decodes, step.prefill_tokens)
    _trim(desk)


def drop(view: View, desk: Joining) -> None:
    """Set which sequences the drafter stops serving."""
    if desk.trade.limits[0].has_plain:
        _put_next(view, desk)
        settle_served(desk)


def observe(view: View, desk: Joining) -> None:
    """Learn acceptance and times from a step that has ended."""
    step, trade, outcome = view.step[0], desk.trade, desk.trade.outcome
    desk.state[0].num_rows = step.num_rows
    _put_running(view, trade)
    tokens = step.batched_tokens - step.prefill_tokens
    _put_decodes(trade, step.context_tokens, tokens, step.num_requests, 0)
    outcome[0], outcome[1] = step.num_rows, step.output_tokens
    outcome[2] = step.target_time + step.draft_time + step.overhead_time
    outcome[3] = step.draft_time
    _learn(desk)


@final
class Joint(LoopPolicy):
    """Propose by what trimming will leave of a draft, then verify what pays by its confidences.

    Two decisions are one: a draft is worth what is left of it once its confidences are known.
    Both maximise tokens - rate x time, the rate being what the server has lately emitted per
    second of decoding; the derivation is in docs/explanation/joint.md.
    """

    kind: Literal["joint"] = "joint"
    uses_confidences = "if known"
    needs_sync = "by default"
    loops = Loops(
        Joining,
        decide=decide,
        stop=stop,
        verify=verify,
        drop=drop,
        observe=observe,
        rooms=("specsim.policies.draft_goodput",),
    )
    window: int = Field(default=50, ge=1)
    """Steps after which observed tokens per second, and acceptance, have faded to 1/e."""
    calibration_window: int = Field(default=1000, ge=1)
    """Steps after which the acceptance observed at a stated probability has faded to 1/e."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before any draft has been verified."""

    def start(self, server: ServerView) -> LoopMemory:
        """Return a memory without observations: stated probabilities are believed at first."""
        longest = max(server.max_draft_len, 1)
        known = {"has_confidences": server.has_confidences, "drafts_alike": server.drafts_alike}
        beliefs = {"believed": self.prior, "num_trials": PRIOR_TRIALS}
        state = row_of(JointState, self, **known, **beliefs)
        return self.remember(
            server,
            states=PerRequest(0, dtype=np.int64),
            kinds=PerRequest((KINDS - 1) // 2, dtype=np.int64),
            fates=PerRequest(0.0, 2),
            begun=PerRequest(0.0),
            tokens=longest * LEVELS,
            gained=longest * LEVELS,
            trade=trade_desk(server, self.window),
            calibrating=calibrating_desk(bins_of(longest), self.calibration_window),
            seen=prospects(longest, self.prior),
            fading=fading_desk(self.window, _PRIOR_TRIALS[-1]),
            misses=np.zeros(len(_PRIOR_TRIALS)),
            len_kinds=LEN_KINDS,
            state=state,
            lives=no_lives(),
        )
