"""A Q-learning agent over draft lengths."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.desk import Desk, FloatRows, Floats, Ints, PerRequest, loop_on
from specsim.core.step import BatchView, StepOutcome
from specsim.decisions.policy import Policy, ServerView


class Learning(NamedTuple):
    """What was done in a step, and what it was worth.

    Tables are by previous and next draft length, one row after the other.
    """

    visits: Ints
    """How often each was ever done."""
    verified: Ints
    """Length of each request's last verified draft."""
    requests: Ints
    draft_lens: Ints
    accepted_lens: Ints
    later: Floats
    """By length, what may follow it."""
    sums: Floats
    """What was gained in the step; 0 between steps."""
    times: Ints
    """How often each was done in it; 0 between steps."""
    seen: Ints
    """Places of what was done in it, rising; filled in."""
    found: FloatRows
    """Shape (3, places): of what was done, visits, times and mean gain; filled in."""
    sizes: Ints
    """Drafts; how many are not empty, filled in."""


@loop_on(Learning)
def count_visits(desk: Learning) -> int:
    """Count what was done, and average what it gained; return how many different things."""
    visits, sums, times, found = desk.visits, desk.sums, desk.times, desk.found
    desk.sizes[1] = 0
    for row in range(desk.sizes[0]):
        action = desk.draft_lens[row]
        if action:
            request = desk.requests[row]
            place = desk.verified[request] * len(desk.later) + action
            desk.verified[request] = action
            sums[place] += desk.accepted_lens[row] / action + desk.later[action]
            times[place] += 1
            desk.sizes[1] += 1
    num = 0
    for place in range(len(times)):
        if times[place]:
            visits[place] += times[place]
            desk.seen[num] = place
            found[0, num] = visits[place]
            found[1, num] = times[place]
            found[2, num] = sums[place] / times[place]
            sums[place] = 0.0
            times[place] = 0
            num += 1
    return num


@dataclass(slots=True)
class _Memory:
    rng: np.random.Generator
    values: NDArray[np.float64]
    """Shape (k_max + 1, k_max + 1): by previous and next draft length."""
    desk: Desk[Learning]
    chosen: PerRequest
    """Length of the draft chosen last; under asynchronous scheduling it is still under way."""
    num_drafts: int = 0


@final
class QLearning(Policy[_Memory]):
    """State: a request's previous draft length. Action: its next. Reward: the share accepted.

    "A Drop-in Solution for On-the-fly Adaptation of Speculative Decoding", section 4.2 and
    appendix B.4. The reward does not know what time costs, so the agent settles on short drafts,
    which are accepted most: there as here. A length of 0 has no reward and is no action. One table
    serves all requests. The n-th visit of an entry moves it by n^-`decay` of the way, since at a
    constant rate the noise of a reward outweighs what tells two lengths apart (Watkins and Dayan
    1992: the steps must add up to infinity, their squares must not). It begins with the most that
    can be earned: values that grow from 0 leave entries behind that look bad for having been seen
    early, and without luck in exploring are never looked at again.
    """

    kind: Literal["q_learning"] = "q_learning"
    decay: float = Field(default=0.6, gt=0.5, le=1)
    discount: float = Field(default=0.9, ge=0, lt=1)
    exploration: float = Field(default=0.1, ge=0, le=1)
    """Share of decisions at random after the warm-up."""
    warm_up: int = Field(default=1000, ge=0)
    """Drafts of random lengths at first; some 25 answers, as in appendix C.1."""

    def start(self, server: ServerView) -> _Memory:
        """Return a table in which everything is as good as can be."""
        longest = server.max_draft_len
        size = (longest + 1) ** 2
        desk = Desk(
            Learning,
            count_visits,
            visits=np.zeros(size, dtype=np.int64),
            verified=PerRequest(longest, dtype=np.int64),
            later=longest + 1,
            sums=size,
            times=size,
            seen=size,
            found=(3, size),
        )
        values = np.full((longest + 1, longest + 1), 1.0 / (1.0 - self.discount))
        return _Memory(server.rng, values, desk, PerRequest(longest, dtype=np.int64))

    def draft_lens(self, batch: BatchView, memory: _Memory) -> Ints:
        """Return the best known length for each request's last, or a random one."""
        last = memory.chosen.up_to(batch.requests)
        state = last[batch.requests]
        best = memory.values[:, 1:].argmax(axis=1) + 1
        share = 1.0 if memory.num_drafts < self.warm_up else self.exploration
        explores = memory.rng.random(batch.size) < share
        tried = memory.rng.integers(1, len(memory.values), batch.size)
        lens: Ints = np.where(explores, tried, best[state])
        last[batch.requests] = lens
        return lens

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Move the value of what was done towards its reward and what may follow."""
        desk = memory.desk.put(outcome)
        desk.later[:] = self.discount * np.maximum.reduce(memory.values[:, 1:], axis=1)
        num_seen = memory.desk.runs[0]()
        memory.num_drafts += int(desk.sizes[1])
        seen, (visits, times, gained) = desk.seen[:num_seen], desk.found[:, :num_seen]
        values = memory.values.ravel()  # a view
        # Powers are numpy's: compiled code has others in the last bit.
        weight = 1.0 - (1.0 - visits**-self.decay) ** times
        values[seen] += weight * (gained - values[seen])
