"""Whether a drafter is worth having, and when to try again one that was not."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.step import BatchView, Ints, StepLoad, StepOutcome
from specsim.policies._estimate import Alphas, EstimatesAlpha, Estimating
from specsim.policies.base import ServerView

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
        self._weight = min(1.0, _ONE_OF / window)
        self._num_settled, self._num_observed = 0, 0
        self._unpaid, self._reading_time = 0.0, 0.0
        """Share of steps without speculation; seconds of a step that the drafter reads prompts."""
        self._lost, self._missed = 0.0, 0.0
        self._is_given_up = False
        self._idle, self._wait = 0, FIRST_WAIT
        self._left = 0
        """Draft tokens until the trial is over; 0: there is none."""

    @property
    def skips_prefill(self) -> bool:
        """Whether prefills leave the drafter out."""
        return self._unpaid > SKIPPING_SHARE and not self._left

    @property
    def gives_up(self) -> bool:
        """Whether the drafter is to leave all requests alone."""
        return self._is_given_up and not self._left

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
        if not self._left:
            drafts = bool(lens) if isinstance(lens, int) else bool(np.count_nonzero(lens))
            if self._num_settled % _ONE_OF == 0:
                self._weigh(load, lens if drafts else None, emitted, num / load.num_requests)
            self._num_settled += 1
            if num and drafts and not self._is_given_up:
                self._idle = 0
                return lens
            self._idle += 1
            if self._idle >= self._wait:
                self._left, self._wait = TRIAL_TOKENS, min(2 * self._wait, LONGEST_WAIT)
                alphas.renew()
        if not self._left:
            return 0 if self._is_given_up else lens
        tried: Ints = np.zeros(batch.size, dtype=np.int64)
        served = ~batch.in_prefill if served is None else served
        tried[np.flatnonzero(served)[:TRIAL_TOKENS]] = 1
        return tried

    def _weigh(self, load: StepLoad, lens: int | Ints | None, emitted: float, share: float) -> None:
        """Judge by what the step would gain if all were drafted for, and does with this share.

        Lengths are None if nothing is drafted.
        """
        plain_time = self._plain_time(load)
        if lens is None:
            gain = -(self._server.step_time(load, 0) - plain_time) / plain_time
        else:
            time = self._drafted_time(load, lens) + self._reading_time
            gain = emitted / load.num_requests - time / plain_time
        self._unpaid += self._weight * ((gain <= 0.0 or lens is None) - self._unpaid)
        if gain > 0.0:
            self._wait = FIRST_WAIT
        if self._is_given_up:
            self._missed = max(0.0, self._missed + _ONE_OF * gain)
            self._is_given_up = self._missed <= MOST_LOST
            self._lost = 0.0
        elif share:
            yielded = gain - (emitted / load.num_requests - 1.0) * (1.0 - share)
            self._lost = max(0.0, self._lost - _ONE_OF * yielded)
            self._is_given_up = bool(self._lost > MOST_LOST and gain <= 0.0)
            self._missed = 0.0

    def observe(self, outcome: StepOutcome) -> None:
        """Learn what prompts take to be read by the drafter, and how far a trial has come."""
        if self._num_observed % _ONE_OF == 0:
            time = self._time_of_prompts(outcome.load)
            self._reading_time += self._weight * (time - self._reading_time)
        self._num_observed += 1
        if self._left:
            drafted, accepted = outcome.draft_lens, outcome.accepted_lens
            tried = int(np.add.reduce(accepted)) + int(np.count_nonzero(accepted != drafted))
            self._left = max(0, self._left - tried)
            if not self._left:
                self._idle = 0

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


class WeighsDrafter(EstimatesAlpha):
    """Base of policies with such a memory; `draft_lens` leaves it to `DrafterTrials.settle`."""

    def observe(self, outcome: StepOutcome, memory: Any) -> None:
        """Learn from what was accepted."""
        super().observe(outcome, memory)
        memory.trials.observe(outcome)

    def skips_draft_prefill(self, batch: BatchView, memory: Any) -> bool:
        """Return whether speculation has not paid in most of the last steps."""
        skips: bool = memory.trials.skips_prefill
        return skips

    def drops_now(self, memory: Any) -> bool:
        """Return whether the drafter is given up."""
        gives_up: bool = memory.trials.gives_up
        return gives_up

    def drops(self, batch: BatchView, memory: Any) -> NDArray[np.bool_] | None:
        """Return everybody where the drafter is given up."""
        return np.ones(batch.size, dtype=np.bool_) if memory.trials.gives_up else None
