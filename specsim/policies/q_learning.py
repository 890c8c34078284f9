"""A Q-learning agent over draft lengths."""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.policies._estimate import PerRequest
from specsim.policies.base import Policy, ServerView
from specsim.step import BatchView, StepOutcome

__all__ = ["QLearning"]


@dataclass(slots=True)
class _Memory:
    rng: np.random.Generator
    values: NDArray[np.float64]
    """Shape (k_max + 1, k_max + 1): by previous and next draft length."""
    verified: PerRequest
    """Length of each request's last verified draft."""
    chosen: PerRequest
    """Length of the draft chosen last; under asynchronous scheduling it is still under way."""
    num_steps: int = 0


@final
class QLearning(Policy):
    """State: a request's previous draft length. Action: its next. Reward: the share accepted.

    "A Drop-in Solution for On-the-fly Adaptation of Speculative Decoding", section 4.2 and
    appendix B.4. The reward does not know what time costs, so the agent settles on short drafts,
    which are accepted most: there as here. A length of 0 has no reward and is no action. One table
    serves all requests.
    """

    kind: Literal["q_learning"] = "q_learning"
    learning_rate: float = Field(default=0.1, gt=0, le=1)
    discount: float = Field(default=0.9, ge=0, lt=1)
    exploration: float = Field(default=0.1, ge=0, le=1)
    """Share of decisions at random after the warm-up."""
    warm_up: int = Field(default=100, ge=0)
    """Steps of random lengths at first."""

    def start(self, server: ServerView) -> _Memory:
        """Return an empty table."""
        size = server.max_draft_len + 1
        verified, chosen = PerRequest(server.max_draft_len), PerRequest(server.max_draft_len)
        return _Memory(server.rng, np.zeros((size, size)), verified, chosen)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> list[int]:
        """Return the best known length for each request's last, or a random one."""
        rows = memory.chosen.rows(batch.requests)
        state = memory.chosen[rows].astype(np.intp)
        best = memory.values[:, 1:].argmax(axis=1) + 1
        share = 1.0 if memory.num_steps < self.warm_up else self.exploration
        explores = memory.rng.random(len(rows)) < share
        tried = memory.rng.integers(1, len(memory.values), len(rows))
        chosen = np.where(explores, tried, best[state])
        memory.chosen[rows] = chosen.astype(float)
        lens: list[int] = chosen.tolist()
        return lens

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Move the value of what was done towards its reward and what may follow."""
        drafted = np.array(outcome.draft_lens, dtype=np.intp)
        is_draft = drafted > 0
        if not is_draft.any():
            return
        memory.num_steps += 1
        rows = memory.verified.rows(outcome.requests)[is_draft]
        state = memory.verified[rows].astype(np.intp)
        action = drafted[is_draft]
        memory.verified[rows] = action.astype(float)
        reward = np.array(outcome.accepted_lens, dtype=np.intp)[is_draft] / action
        target = reward + self.discount * memory.values[:, 1:].max(axis=1)[action]
        flat = state * len(memory.values) + action
        counts = np.bincount(flat, minlength=memory.values.size)
        sums = np.bincount(flat, weights=target, minlength=memory.values.size)
        seen = counts > 0
        values = memory.values.ravel()  # a view
        weight = 1.0 - (1.0 - self.learning_rate) ** counts[seen]
        values[seen] += weight * (sums[seen] / counts[seen] - values[seen])
