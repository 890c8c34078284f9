"""Whether a drafter is worth having, and when to try again one that was not.

A drafter with a KV cache reads whatever the target reads, so that drafts of no tokens take time as
well, and k = 0 is not yet no speculation. Where speculation has not paid in most of the last steps,
prefills leave the drafter out (SmartSpec, "prefill disabling"); and where it has cost too much
since it last paid, it is given up: it leaves all requests alone, until it would have earned as
much, say because the load has fallen. What was learned of its acceptance is not forgotten
meanwhile, but counts for little when it is tried again: for a few tokens, ever more rarely, so that
a useless drafter costs next to nothing, and one that has become better is found after
`LONGEST_WAIT` steps and the next arrival at most.
"""

from typing import Protocol

from specsim.core.compiled import inner
from specsim.core.desk import Ints
from specsim.decisions.loops import View
from specsim.policies.parts.estimate import (
    WindowState,
    alpha_of,
    expected_len,
    put_decodes,
    renew_alpha,
)
from specsim.policies.parts.everybody import ask_all, let_go_of
from specsim.profile.step_time import priced, priced_plain, put_load

FIRST_WAIT, LONGEST_WAIT = 100, 3200
"""Steps without drafts after which the drafter is tried again; doubled by each trial in vain."""
TRIAL_TOKENS = 8
"""Draft tokens that a trial verifies, one for a sequence."""
MOST_LOST = 5.0
"""Steps' worth of time that a drafter may cost beyond what it yields before it is given up, or
would have earned before it is taken back."""
SKIPPING_SHARE = 0.7
"""Share of steps without speculation above which prefills leave the drafter out (SmartSpec, section
5, where it is a matter of experience)."""
_ONE_OF = 8  # steps is weighed, for all of them: that takes longer than to choose a length


class TrialState(Protocol):
    """What is known of a drafter, against a server that has none."""

    weight: float  # of a step that is weighed, in the means over steps
    num_settled: int
    num_observed: int
    unpaid: float  # share of steps without speculation
    reading_time: float  # seconds of a step that the drafter reads prompts
    lost: float
    missed: float
    is_given_up: int
    idle: int
    wait: int
    left: int  # draft tokens until the trial is over; 0: there is none


KEPT, NOTHING, TRIED, BEGUN = range(4)
"""What comes of the lengths of a step: they are kept, nothing is drafted, or a trial goes on, or
begins, before which what was learned of acceptance has to be renewed."""


@inner
def gives_up(trials: TrialState) -> bool:
    """Return whether the drafter is to leave all requests alone."""
    return bool(trials.is_given_up and not trials.left)


@inner
def may_drop(trials: TrialState) -> bool:
    """Return whether the drafter is to leave anybody alone: all, or those whose prompts are new."""
    return not trials.left and bool(trials.is_given_up or trials.unpaid > SKIPPING_SHARE)


@inner
def _weigh(
    trials: TrialState, drafts: bool, emitted: float, times: tuple[float, float], share: float
) -> None:
    """Judge by what the step would gain if all were drafted for, and does with this share.

    Tokens are emitted per sequence; `times` are those of a step that drafts, if anything is worth
    drafting, and of one without a drafter.
    """
    time, plain_time = times
    if drafts:
        gain = emitted - (time + trials.reading_time) / plain_time
    else:
        gain = -(time - plain_time) / plain_time
    is_unpaid = 1.0 if gain <= 0.0 or not drafts else 0.0
    trials.unpaid += trials.weight * (is_unpaid - trials.unpaid)
    if gain > 0.0:
        trials.wait = FIRST_WAIT
    if trials.is_given_up:
        trials.missed = max(0.0, trials.missed + _ONE_OF * gain)
        trials.is_given_up = 1 if trials.missed <= MOST_LOST else 0
        trials.lost = 0.0
    elif share:
        yielded = gain - (emitted - 1.0) * (1.0 - share)
        trials.lost = max(0.0, trials.lost - _ONE_OF * yielded)
        trials.is_given_up = 1 if trials.lost > MOST_LOST and gain <= 0.0 else 0
        trials.missed = 0.0


def no_trials(window: int) -> dict[str, float]:
    """Return `TrialState` at first, but for zeros, if means are to go over so many steps, about."""
    return {"weight": min(1.0, _ONE_OF / window), "wait": FIRST_WAIT}


@inner
def settle(view: View, trials: TrialState, emitted: float) -> int:
    """Keep the lengths of a step in which somebody decodes, or replace them; say what came of it.

    Nothing replaces them if the drafter is given up, and now and then a trial does. They are those
    of highest goodput where the drafter runs in any case; `emitted` tokens are expected of them,
    bonus tokens included.
    """
    step, num, served, drafted, longest = view.step[0], view.step[0].num_decodes, 0, 0, 0
    for row in range(step.num_rows):
        if not view.in_prefill[row]:
            served += 0 if view.is_undrafted[row] else 1
            drafted += view.lens[row]
            longest = max(longest, view.lens[row])
    what = TRIED
    if not trials.left:
        if trials.num_settled % _ONE_OF == 0:
            put_decodes(view)
            time = priced(view.pricing, num + drafted, longest)
            times = (time, priced_plain(view.pricing, num))
            _weigh(trials, drafted > 0, emitted / num, times, served / num)
        trials.num_settled += 1
        is_idle = not (served and drafted) or trials.is_given_up
        trials.idle = trials.idle + 1 if is_idle else 0
        what = NOTHING if trials.is_given_up else KEPT
        if trials.idle >= trials.wait:
            trials.left, trials.wait = TRIAL_TOKENS, min(2 * trials.wait, LONGEST_WAIT)
            what = BEGUN
    step.may_drop = may_drop(trials)
    left = TRIAL_TOKENS if what != NOTHING else 0
    for row in range(step.num_rows if what != KEPT else 0):
        is_out = view.in_prefill[row] or view.is_undrafted[row] or not left
        view.lens[row] = 0 if is_out else 1
        left -= view.lens[row]
    return what


class Known(WindowState, TrialState, Protocol):
    """What is known of the acceptance of the last steps, and of whether drafting pays."""


@inner
def ask_in_common(view: View, known: Known, ring: Ints, k: int) -> None:
    """Ask all for a length, none or a trial's; when one begins, what was learned is renewed."""
    num, alpha = view.step[0].num_decodes, alpha_of(known)
    ask_all(view, k)
    if num and settle(view, known, num * expected_len(alpha, k)) == BEGUN:
        renew_alpha(known, ring)


@inner
def learn(view: View, trials: TrialState, tried: int) -> None:
    """Learn what prompts take to be read by the drafter, and how far a trial has come.

    By the draft tokens whose fate the step has decided.
    """
    step, time = view.step[0], 0.0
    if trials.num_observed % _ONE_OF == 0:
        if step.prefill_tokens:
            time = _drafter_time(view, step.batched_tokens, step.prefill_tokens)
            time -= _drafter_time(view, step.batched_tokens - step.prefill_tokens, 0)
        trials.reading_time += trials.weight * (time - trials.reading_time)
    trials.num_observed += 1
    if trials.left:
        trials.left = max(0, trials.left - tried)
        if not trials.left:
            trials.idle = 0
    step.may_drop = may_drop(trials)


@inner
def _drafter_time(view: View, batched_tokens: int, prefills: int) -> float:
    """Return what the drafter takes to keep up with the step, its prefills cut to these."""
    if not batched_tokens:
        return 0.0
    step, pricing = view.step[0], view.pricing
    put_load(pricing, step.context_tokens, batched_tokens, step.num_requests, prefills)
    return priced(pricing, batched_tokens, 0) - priced_plain(pricing, batched_tokens)


@inner
def let_go(view: View, trials: TrialState) -> None:
    """Let go of everybody where the drafter is given up; of whom is new, where it hardly pays."""
    let_go_of(view, gives_up(trials), trials.unpaid > SKIPPING_SHARE and not trials.left)
