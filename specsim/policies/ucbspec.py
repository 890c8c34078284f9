"""BanditSpec's UCBSpec over draft lengths, as released."""

from typing import Literal, NamedTuple, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import inner
from specsim.core.desk import Floats
from specsim.decisions.loops import LoopMemory, Loops, View
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.arms import note_reward, played_k, rate_of
from specsim.policies.parts.asking import ask_all


class Arms(NamedTuple):
    """What it remembers."""

    means: Floats  # tokens per second, mean over the rounds of each k = 1, 2, ...;
    plays: Floats  # and how many there were


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
    """Play all arms in turn, twice but for the last; then the one of the highest mean."""
    step = view.step[0]
    k = best_arm(memory) + 1 if step.num_decodes and step.max_draft_len else 0
    ask_all(view, k)


def observe(view: View, memory: Arms) -> None:
    """Reward the arm that the step verified; one that reads prompts says nothing of it."""
    k = played_k(view)
    if 0 < k <= len(memory.plays):
        note_reward(memory.means, memory.plays, k - 1, rate_of(view))


@final
class UcbSpec(LoopPolicy):
    """One k of 1 to 4 per step: each is tried, then the one of most tokens per second taken.

    Hou et al. (2025), "BanditSpec: Adaptive Speculative Decoding via Bandit Algorithms", arXiv
    2505.15141, as released (``generate_utils.py ucb_length_spec_generate`` at a30f56d). There the
    bonus of exploration is divided by the plays of all arms together, so that it is the same for
    all and settles nothing: it is left out here. Their batches start and end together and are all
    that runs; the means know nothing of how large a batch was. k = 0 is no arm. UCB1 with a bonus
    of each arm's own is `bandit`.
    """

    kind: Literal["ucbspec"] = "ucbspec"
    num_arms: int = Field(default=4, ge=1)
    """Draft lengths 1, 2, ... up to it."""

    loops = Loops(Arms, decide=decide, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        """Return arms that have never been played."""
        num_arms = max(1, min(self.num_arms, server.max_draft_len))
        return self.remember(server, means=np.zeros(num_arms), plays=np.zeros(num_arms))
