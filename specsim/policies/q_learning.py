"""A Q-learning agent over draft lengths."""

from dataclasses import dataclass
from functools import partial
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.step import BatchView, Ints, StepOutcome
from specsim.policies._estimate import PerRequest
from specsim.policies._kernels import Desk, Learning, blank, count_visits
from specsim.policies.base import Policy, ServerView

__all__ = ["QLearning"]


@dataclass(slots=True)
class _Memory:
    rng: np.random.Generator
    values: NDArray[np.float64]
    """Shape (k_max + 1, k_max + 1): by previous and next draft length."""
    verified: PerRequest
    """Length of each request's last verified draft."""
    desk: Desk[Learning]
    chosen: PerRequest
    """Length of the draft chosen last; under asynchronous scheduling it is still under way."""
    num_drafts: int = 0


@final
class QLearning(Policy):
    """State: a request's previous draft length. Action: its next. Reward: the share accepted.

    "A Drop-in Solution for On-the-fly Adaptation of Speculative Decoding", section 4.2 and
    appendix B.4. The reward does not know what time costs, so the agent settles on short drafts,
    which are accepted most: there as here. A length of 0 has no reward and is no action. One table
    serves all requests. The n-th visit of an entry moves it by n^-`decay` of the way, since at a
    constant rate the noise of a reward outweighs what tells two lengths apart (Watkins and Dayan
    1992: the steps must add up to infinity, their squares must not).
    """

    kind: Literal["q_learning"] = "q_learning"
    decay: float = Field(default=0.6, gt=0.5, le=1)
    discount: float = Field(default=0.9, ge=0, lt=1)
    exploration: float = Field(default=0.1, ge=0, le=1)
    """Share of decisions at random after the warm-up."""
    warm_up: int = Field(default=1000, ge=0)
    """Drafts of random lengths at first; some 25 answers, as in appendix C.1."""

    def start(self, server: ServerView) -> _Memory:
        """Return an empty table."""
        longest = server.max_draft_len
        visits = np.zeros((longest + 1) ** 2, dtype=np.int64)
        return _Memory(
            server.rng,
            np.zeros((longest + 1, longest + 1)),
            verified=PerRequest(longest, dtype=np.int64),
            desk=Desk(partial(_learning, visits, longest + 1), count_visits),
            chosen=PerRequest(longest, dtype=np.int64),
        )

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
        num = len(outcome.requests)
        desk = memory.desk.fit(num, memory.verified.up_to(outcome.requests))
        desk.requests[:num] = outcome.requests
        desk.draft_lens[:num] = outcome.draft_lens
        desk.accepted_lens[:num] = outcome.accepted_lens
        desk.later[:] = self.discount * np.maximum.reduce(memory.values[:, 1:], axis=1)
        desk.sizes[0] = num
        num_seen = memory.desk.runs[0]()
        memory.num_drafts += int(desk.sizes[1])
        seen, (visits, times, gained) = desk.seen[:num_seen], desk.found[:, :num_seen]
        values = memory.values.ravel()  # a view
        # Powers are numpy's: compiled code has others in the last bit.
        weight = 1.0 - (1.0 - visits**-self.decay) ** times
        values[seen] += weight * (gained - values[seen])


def _learning(visits: Ints, size: int, room: int, verified: Ints) -> Learning:
    return blank(
        Learning,
        max(room, size * size),
        visits=visits,
        verified=verified,
        later=np.zeros(size),
        times=np.zeros_like(visits),
        found=np.zeros((3, size * size)),
    )
