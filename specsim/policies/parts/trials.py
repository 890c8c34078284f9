"""Whether a drafter is worth having, and when to try again one that was not."""

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import inner
from specsim.core.step import BatchView, Ints, StepLoad, StepOutcome
from specsim.decisions.policy import ServerView
from specsim.policies.parts.estimate import Alphas, EstimatesAlpha, Estimating

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
    """What `DrafterTrials` remembers: there as attributes, in the engine's loop as a record."""

    weight: float
    """Of a step that is weighed, in the means over steps."""
    num_settled: int
    num_observed: int
    unpaid: float
    """Share of steps without speculation."""
    reading_time: float
    """Seconds of a step that the drafter reads prompts."""
    lost: float
    missed: float
    is_given_up: int
    idle: int
    wait: int
    left: int
    """Draft tokens until the trial is over; 0: there is none."""


KEPT, NOTHING, TRIED, BEGUN = range(4)
"""What comes of the lengths of a step: they are kept, nothing is drafted, or a trial goes on, or
begins, before which what was learned of acceptance has to be renewed."""


@inner
def skips_prefill(trials: TrialState) -> bool:
    """Return whether prefills leave the drafter out."""
    return trials.unpaid > SKIPPING_SHARE and not trials.left


@inner
def gives_up(trials: TrialState) -> bool:
    """Return whether the drafter is to leave all requests alone."""
    return bool(trials.is_given_up and not trials.left)


@inner
def may_drop(trials: TrialState) -> bool:
    """Return whether the drafter is to leave anybody alone: all, or those whose prompts are new."""
    return not trials.left and bool(trials.is_given_up or trials.unpaid > SKIPPING_SHARE)


@inner
def is_weighed(trials: TrialState) -> bool:
    """Return whether `weigh` is due before a step is settled."""
    return not trials.left and trials.num_settled % _ONE_OF == 0


@inner
def weigh(
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


@inner
def settled(trials: TrialState, drafts: bool) -> int:
    """Return what comes of a step, which drafts something for somebody or does not."""
    if not trials.left:
        trials.num_settled += 1
        if drafts and not trials.is_given_up:
            trials.idle = 0
            return KEPT
        trials.idle += 1
        if trials.idle >= trials.wait:
            trials.left, trials.wait = TRIAL_TOKENS, min(2 * trials.wait, LONGEST_WAIT)
            return BEGUN
    if trials.left:
        return TRIED
    return NOTHING if trials.is_given_up else KEPT


@inner
def is_timed(trials: TrialState) -> bool:
    """Return whether `note_reading` is due before what a step tried is noted."""
    return trials.num_observed % _ONE_OF == 0


@inner
def note_reading(trials: TrialState, time: float) -> None:
    """Learn what prompts take to be read by the drafter, seconds of a step."""
    trials.reading_time += trials.weight * (time - trials.reading_time)


@inner
def note_tried(trials: TrialState, tried: int) -> None:
    """Note how far a trial has come, by the draft tokens whose fate a step has decided."""
    trials.num_observed += 1
    if trials.left:
        trials.left = max(0, trials.left - tried)
        if not trials.left:
            trials.idle = 0


def weight_of(window: int) -> float:
    """Return `TrialState.weight` if the means are to go over so many steps, about."""
    return min(1.0, _ONE_OF / window)


class DrafterTrials:
    """What a drafter is worth, against a server that has none.

    A drafter with a KV cache reads whatever the target reads, so that drafts of no tokens take time
    as well, and k = 0 is not yet no speculation. Where speculation has not paid in most of the last
    steps, prefills leave the drafter out (SmartSpec, "prefill disabling"); and where it has cost
    too much since it last paid, it is given up: it leaves all requests alone, until it would have
    earned as much, say because the load has fallen. What was learned of its acceptance is not
    forgotten meanwhile, but counts for little when it is tried again: for a few tokens, ever more
    rarely, so that a useless drafter costs next to nothing, and one that has become better is found
    after `LONGEST_WAIT` steps and the next arrival at most.

    Args:
        window: Steps that the share of steps without speculation goes over, about.
    """

    def __init__(self, server: ServerView, window: int) -> None:
        self._server = server
        self.num_settled = self.num_observed = self.idle = self.left = self.is_given_up = 0
        self.unpaid = self.reading_time = self.lost = self.missed = 0.0
        self.weight, self.wait = weight_of(window), FIRST_WAIT

    def settle(
        self, batch: BatchView, load: StepLoad, lens: int | Ints, emitted: float, alphas: Any
    ) -> int | Ints:
        """Return these lengths; nothing if the drafter is given up, and now and then a trial.

        Args:
            load: `batch.decode_load()`.
            lens: Of highest goodput, where the drafter runs in any case.
            emitted: Tokens that are expected of them, bonus tokens included.
            alphas: `AlphaWindow` or `AlphaPerRequest`.
        """
        if not load.num_requests:
            return lens
        served, num = None, load.num_requests
        if batch.is_undrafted is not None:
            served = ~batch.in_prefill & ~batch.is_undrafted
            num = int(np.count_nonzero(served))
        drafts = bool(lens) if isinstance(lens, int) else bool(np.count_nonzero(lens))
        if is_weighed(self):
            time = self._drafted_time(load, lens) if drafts else self._server.step_time(load, 0)
            times = (time, self._plain_time(load))
            weigh(self, drafts, emitted / load.num_requests, times, num / load.num_requests)
        what = settled(self, bool(num and drafts))
        if what == KEPT:
            return lens
        if what == NOTHING:
            return 0
        if what == BEGUN:
            alphas.renew()
        tried: Ints = np.zeros(batch.size, dtype=np.int64)
        served = ~batch.in_prefill if served is None else served
        tried[np.flatnonzero(served)[:TRIAL_TOKENS]] = 1
        return tried

    def observe(self, outcome: StepOutcome) -> None:
        """Learn what prompts take to be read by the drafter, and how far a trial has come."""
        if is_timed(self):
            note_reading(self, self._time_of_prompts(outcome.load))
        tried = 0
        if self.left:
            drafted, accepted = outcome.draft_lens, outcome.accepted_lens
            tried = int(np.add.reduce(accepted)) + int(np.count_nonzero(accepted != drafted))
        note_tried(self, tried)

    def drops(self, batch: BatchView) -> NDArray[np.bool_] | None:
        """Return everybody where the drafter is given up; whom is new, where it hardly pays."""
        if gives_up(self):
            return np.ones(batch.size, dtype=np.bool_)
        return batch.is_admitted if skips_prefill(self) else None

    def _time_of_prompts(self, load: StepLoad) -> float:
        """Return what the drafter takes to read the prompts of a step, seconds."""
        if not load.prefill_tokens:
            return 0.0
        decoding = load.batched_tokens - load.prefill_tokens
        rest = self._drafter_time(load._replace(batched_tokens=decoding, prefill_tokens=0))
        return self._drafter_time(load) - rest

    def _drafted_time(self, load: StepLoad, lens: int | Ints) -> float:
        """Return what a step takes that drafts and verifies so much, seconds."""
        num = load.num_requests
        if isinstance(lens, int):
            drafted, longest = num * lens, lens
        else:
            drafted, longest = int(lens.sum()), int(lens.max())
        return self._server.step_time(load._replace(batched_tokens=num + drafted), longest)

    def _drafter_time(self, load: StepLoad) -> float:
        """Return what the drafter takes to keep up with a step, seconds."""
        if not load.batched_tokens:
            return 0.0
        return self._server.step_time(load, 0) - self._plain_time(load)

    def _plain_time(self, load: StepLoad) -> float:
        plain_time = self._server.plain_time
        return self._server.step_time(load, 0) if plain_time is None else plain_time(load)


@dataclass(slots=True)
class Weighing(Estimating[Alphas]):
    """Memory of a policy that weighs whether a drafter is worth having."""

    window: int
    """Steps."""
    trials: DrafterTrials = field(init=False)

    def __post_init__(self) -> None:
        self.trials = DrafterTrials(self.server, self.window)


Weigher = TypeVar("Weigher", bound=Weighing[Any])


class WeighsDrafter(EstimatesAlpha[Weigher]):
    """Base of policies with such a memory; `draft_lens` leaves it to `DrafterTrials.settle`."""

    def observe(self, outcome: StepOutcome, memory: Weigher) -> None:
        """Learn from what was accepted."""
        super().observe(outcome, memory)
        memory.trials.observe(outcome)

    def drops_now(self, memory: Weigher) -> bool:
        """Return whether the drafter is given up."""
        return gives_up(memory.trials)

    def drops(self, batch: BatchView, memory: Weigher) -> NDArray[np.bool_] | None:
        """Return whom the drafter leaves alone."""
        left_out: NDArray[np.bool_] | None = memory.trials.drops(batch)
        return left_out
