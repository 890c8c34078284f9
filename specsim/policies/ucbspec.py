"""BanditSpec's UCBSpec over draft lengths, as released."""

from typing import Literal, NamedTuple, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import inner
from specsim.core.desk import Floats
from specsim.decisions.loops import LoopMemory, Loops, View
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.arms import note_reward, played_k, rate_of
from specsim.policies.parts.everybody import ask_all


class Arms(NamedTuple):
    """The policy's memory."""

    means: Floats  # mean tokens per second of the steps that verified each k = 1, 2, ...
    plays: Floats  # number of these steps


@inner
def best_arm(memory: Arms) -> int:
    """Return the arm to play, from 0."""
    means, plays = memory.means, memory.plays
    total, best, rarest = 0.0, 0, 0
    for arm in range(len(plays)):
        total += plays[arm]
        if means[arm] > means[best]:
            best = arm
        if plays[arm] < plays[rarest]:
            rarest = arm
    return rarest if total < 2 * len(plays) - 1 or plays[rarest] == 0.0 else best


def decide(view: View, memory: Arms) -> None:
    """Play all arms in turn, each twice except the last; then the one of the highest mean."""
    step = view.step[0]
    k = best_arm(memory) + 1 if step.num_decodes and step.max_draft_len else 0
    ask_all(view, k)


def observe(view: View, memory: Arms) -> None:
    """Reward the arm that the step verified, unless the step read prompts."""
    k = played_k(view)
    if 0 < k <= len(memory.plays):
        note_reward(memory.means, memory.plays, k - 1, rate_of(view))


@final
class UcbSpec(LoopPolicy):
    """One k of 1 to 4 per step: each is tried, then the one of most tokens per second taken.

    Hou et al. (2025), "BanditSpec: Adaptive Speculative Decoding via Bandit Algorithms", arXiv
    2505.15141, as released (``generate_utils.py ucb_length_spec_generate`` at a30f56d). There the
    exploration bonus is divided by the plays of all arms together, so that it is equal for all arms
    and has no effect: it is left out here. Their batches start and end together, one at a time; the
    means ignore the batch size. k = 0 is no arm. For UCB1 with a bonus per arm see `bandit`.
    """

    kind: Literal["ucbspec"] = "ucbspec"
    num_arms: int = Field(default=4, ge=1)
    """Longest k that is tried; the arms are 1, 2, ... up to it."""

    loops = Loops(Arms, decide=decide, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        """Return a memory in which no arm has been played."""
        num_arms = max(1, min(self.num_arms, server.max_draft_len))
        return self.remember(server, means=np.zeros(num_arms), plays=np.zeros(num_arms))
