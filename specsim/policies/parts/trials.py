"""Trials: whether the drafter is worth running, and when to try it again if it was not.

A drafter with a KV cache reads whatever the target reads, so a step costs more than one without a
drafter even at k = 0. Where speculation has not paid in most of the last steps, new requests skip
the draft prefill (SmartSpec, "prefill disabling"). Where it has cost too much since it last paid,
the drafter is given up and serves no request, until it would have earned as much, for example
because the load has fallen. A drafter that is given up is tried again from time to time with a few
tokens; what was learned of its acceptance then counts for little. Trials become ever rarer, so that
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
"""Steps without drafts after which the drafter is tried again; doubled with each trial."""
TRIAL_TOKENS = 8
"""Draft tokens that a trial verifies, one per sequence."""
MOST_LOST = 5.0
"""Loss, in steps' worth of time, after which a drafter is given up, and gain that it must have
missed before it is taken back."""
SKIPPING_SHARE = 0.7
"""Share of steps without speculation above which new requests skip the draft prefill (SmartSpec,
section 5, which gives an empirical threshold)."""
_ONE_OF = 8  # only one step in so many is judged, for all of them, to save time


class TrialState(Protocol):
    """Gains and losses of the drafter, compared with a server that has none."""

    weight: float  # weight of a judged step in the means over steps
    num_settled: int
    num_observed: int
    unpaid: float  # share of steps in which speculation does not pay
    reading_time: float  # mean seconds per step in which the drafter reads prompts
    lost: float  # steps' worth of time lost since drafting last paid
    missed: float  # steps' worth of time that it would have gained while given up
    is_given_up: int
    idle: int  # steps in a row without drafts
    wait: int  # such steps before the next trial
    left: int  # draft tokens until the trial is over; 0: there is none


KEPT, NOTHING, TRIED, BEGUN = range(4)
"""What `settle` does with the draft lengths of a step: keep them, set them to 0, go on with a
trial, or begin one, for which the caller must reduce the weight of what was learned."""


@inner
def gives_up(trials: TrialState) -> bool:
    """Return whether the drafter is given up and no trial runs, so that it serves no request."""
    return bool(trials.is_given_up and not trials.left)


@inner
def may_drop(trials: TrialState) -> bool:
    """Return whether the drafter should drop all sequences, or those with new prompts."""
    return not trials.left and bool(trials.is_given_up or trials.unpaid > SKIPPING_SHARE)


@inner
def _weigh(
    trials: TrialState, drafts: bool, emitted: float, times: tuple[float, float], share: float
) -> None:
    """Judge the drafter by a step's gain, if it served all sequences, over one without a drafter.

    `emitted` is in tokens per sequence; `times` are seconds of the step with and without a drafter;
    `share` is the share of sequences that the drafter serves now.
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
    """Return the non-zero fields of a new `TrialState` whose means go over `window` steps."""
    return {"weight": min(1.0, _ONE_OF / window), "wait": FIRST_WAIT}


@inner
def settle(view: View, trials: TrialState, emitted: float) -> int:
    """Keep the draft lengths of a step, or replace them by none or a trial's; return which.

    The result is one of KEPT, NOTHING, TRIED and BEGUN. The step has sequences that decode; its
    lengths are those of highest goodput given that the drafter runs, with `emitted` tokens expected
    in all, bonus tokens included.
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
    """The acceptance rate of a window of steps, and whether drafting pays."""


@inner
def ask_in_common(view: View, known: Known, ring: Ints, k: int) -> None:
    """Ask all sequences for k tokens, unless the drafter is given up or a trial replaces them."""
    num, alpha = view.step[0].num_decodes, alpha_of(known)
    ask_all(view, k)
    if num and settle(view, known, num * expected_len(alpha, k)) == BEGUN:
        renew_alpha(known, ring)


@inner
def learn(view: View, trials: TrialState, tried: int) -> None:
    """Learn how long the drafter takes to read prompts, and count a trial's tokens down.

    `tried` is the step's number of trials: draft tokens accepted or rejected.
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
    """Return the seconds that the drafter takes to read the step's tokens, without drafting."""
    if not batched_tokens:
        return 0.0
    step, pricing = view.step[0], view.pricing
    put_load(pricing, step.context_tokens, batched_tokens, step.num_requests, prefills)
    return priced(pricing, batched_tokens, 0) - priced_plain(pricing, batched_tokens)


@inner
def let_go(view: View, trials: TrialState) -> None:
    """Let go of all sequences if the drafter is given up; of new ones if it rarely pays."""
    let_go_of(view, gives_up(trials), trials.unpaid > SKIPPING_SHARE and not trials.left)
