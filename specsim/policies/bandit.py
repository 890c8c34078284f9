"""Draft lengths as the arms of a bandit."""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.step import BatchView, StepOutcome
from specsim.decisions.policy import Policy, ServerView


@dataclass(slots=True)
class _Memory:
    rng: np.random.Generator
    sums: NDArray[np.float64]
    """Shape (3, k_max + 1), fading sums: plays of each arm, their rewards, squared rewards."""
    drafts_by_model: bool
    scale: float = 0.0  # largest reward so far, tokens per second and sequence
    arm: int = 0  # played last


@final
class Bandit(Policy[_Memory]):
    """One k per step, each of 0..V an arm; the reward is the goodput of the step per sequence.

    "BanditSpec", Hou et al. (2025), arXiv 2505.15141: UCB1 (optimism in the face of uncertainty)
    or Thompson sampling with Gaussian rewards, without any model of cost or acceptance. Old rewards
    fade with `memory_steps`, since the load changes under the agent's hands.
    """

    kind: Literal["bandit"] = "bandit"
    examples = ({"algorithm": "ucb1"}, {"algorithm": "thompson"})
    algorithm: Literal["ucb1", "thompson"] = "ucb1"
    exploration: float = Field(default=0.3, ge=0)
    """Width of the confidence bound of UCB1, as a share of the largest reward."""
    memory_steps: int = Field(default=500, ge=1)
    """Steps after which a reward has faded to 1/e."""

    def start(self, server: ServerView) -> _Memory:
        """Return a memory in which no arm has been played."""
        sums = np.zeros((3, server.max_draft_len + 1))
        return _Memory(server.rng, sums, server.drafts_by_model)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int:
        """Return the arm to play; those never played come first, longest drafts first."""
        memory.arm = self._choice(memory)
        return memory.arm

    def _choice(self, memory: _Memory) -> int:
        plays, rewards, squares = memory.sums
        unplayed = np.flatnonzero(plays == 0)
        if len(unplayed):
            return int(unplayed[-1])
        means = rewards / plays
        if self.algorithm == "ucb1":
            total = float(plays.sum())
            width = self.exploration * memory.scale * np.sqrt(2 * np.log(total + 1) / plays)
            return int((means + width).argmax())
        variances = np.maximum(squares / plays - means**2, (0.05 * memory.scale) ** 2)
        draws = memory.rng.normal(means, np.sqrt(variances / plays))
        return int(draws.argmax())

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Reward the arm that the step verified; steps with prefills are ignored.

        With a model as drafter, the draft lengths tell which arm that was. A lookup may find
        shorter drafts, but never runs under asynchronous scheduling: its arm is the last played.
        """
        lens = outcome.draft_lens
        if not len(lens) or outcome.load.prefill_tokens:
            return
        k = int(lens[0]) if memory.drafts_by_model else memory.arm
        if memory.drafts_by_model and (lens != k).any():
            return  # sequences that joined in between had no drafts: no arm was played
        time = outcome.target_time + outcome.draft_time + outcome.overhead_time
        reward = outcome.output_tokens / len(lens) / time
        memory.sums *= 1.0 - 1.0 / self.memory_steps
        memory.sums[:, k] += (1.0, reward, reward**2)
        memory.scale = max(memory.scale, reward)
