"""A Q-learning agent over draft lengths."""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.desk import Ints, PerRequest
from specsim.core.step import BatchView, StepOutcome
from specsim.decisions.policy import Policy, ServerView


@dataclass(slots=True)
class _Memory:
    rng: np.random.Generator
    values: NDArray[np.float64]  # shape (k_max + 1, k_max + 1): by previous and next draft length
    visits: NDArray[np.int64]  # number of updates of each value, flattened
    verified: PerRequest
    """Length of each request's last verified draft."""
    chosen: PerRequest
    """Length chosen last for each request; asynchronously, that draft is not verified yet."""
    num_drafts: int = 0


@final
class QLearning(Policy[_Memory]):
    """State: a request's previous draft length. Action: its next. Reward: the share accepted.

    "A Drop-in Solution for On-the-fly Adaptation of Speculative Decoding", section 4.2 and
    appendix B.4. The reward ignores time, so the agent settles on short drafts, whose accepted
    share is highest, in the paper as here. A length of 0 has no reward and is no action. One table
    serves all requests. The n-th visit of an entry moves it by n^-`decay` of the way: at a constant
    rate the noise of the rewards exceeds the difference between two lengths (Watkins and Dayan
    1992: the steps must add up to infinity, their squares must not). Entries begin at the highest
    value there can be. If they grew from 0, an entry seen early would look bad and might never be
    tried again.
    """

    kind: Literal["q_learning"] = "q_learning"
    decay: float = Field(default=0.6, gt=0.5, le=1)
    discount: float = Field(default=0.9, ge=0, lt=1)
    exploration: float = Field(default=0.1, ge=0, le=1)
    """Share of decisions at random after the warm-up."""
    warm_up: int = Field(default=1000, ge=0)
    """Number of drafts with random lengths at first; about 25 requests, as in appendix C.1."""

    def start(self, server: ServerView) -> _Memory:
        """Return a table in which every value is the highest there can be."""
        longest, size = server.max_draft_len, server.max_draft_len + 1
        values = np.full((size, size), 1.0 / (1.0 - self.discount))
        verified, chosen = (PerRequest(longest, dtype=np.int64) for _ in range(2))
        return _Memory(server.rng, values, np.zeros(size**2, dtype=np.int64), verified, chosen)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> Ints:
        """Return, for each request, the best next length after its last one, or a random one."""
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
        """Move each action's value towards its reward plus the value of the next state."""
        (rows,) = outcome.draft_lens.nonzero()
        lens, accepted = outcome.draft_lens[rows], outcome.accepted_lens[rows]
        requests, later = outcome.requests[rows], self.discount * memory.values[:, 1:].max(axis=1)
        last = memory.verified.up_to(requests)
        places = last[requests] * len(later) + lens
        last[requests] = lens
        memory.num_drafts += len(rows)
        times = np.bincount(places, minlength=len(memory.visits))
        sums = np.bincount(places, accepted / lens + later[lens], minlength=len(times))
        memory.visits += times
        (seen,) = times.nonzero()
        visits, times, values = memory.visits[seen], times[seen], memory.values.ravel()  # a view
        weight = 1.0 - (1.0 - visits**-self.decay) ** times
        values[seen] += weight * (sums[seen] / times - values[seen])
