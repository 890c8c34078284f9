"""TapOut: a bandit over rules by which drafters stop."""

from bisect import bisect_left
from collections.abc import Callable
from math import sqrt
from typing import Literal, NamedTuple, Protocol, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Floats
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.arms import note_reward, ucb1
from specsim.policies.parts.everybody import draft_on, least_entropy

RISE = 3  # the arm that compares two tokens in a row
GAMMA = 0.2  # of AdaEDL's bound


class TapState(Protocol):
    """The arm that is played, and a parameter of the policy."""

    arm: int
    reward_share: float


class TapMemory(NamedTuple):
    """The policy's memory."""

    state: Rows[TapState]  # one row
    limits: Floats  # of each arm: the lowest confidence to draft on, or the steepest rise
    means: Floats  # mean reward of each arm
    plays: Floats  # number of rewards of each arm


@inner
def ends(memory: TapMemory, confidence: float, before: float) -> bool:
    """Return whether the arm's rule ends a draft at a token; `before`: last confidence, or 0."""
    limit = memory.limits[memory.state[0].arm]
    if memory.state[0].arm != RISE:
        return bool(confidence < limit)
    rise = sqrt(least_entropy(confidence)) - sqrt(least_entropy(before))
    return bool(before > 0.0 and rise > limit)


def least_sure(ends: Callable[[float], bool]) -> float:
    """Return the lowest confidence at which a rule does not end a draft; 2 if there is none."""
    return bisect_left(range(2**53), 1, key=lambda place: not ends(place / 2**52)) / 2**52


def decide(view: View, memory: TapMemory) -> None:
    """Choose the rule by which the drafts of the step end."""
    memory.state[0].arm = ucb1(memory.means, memory.plays)
    draft_on(view)


def stop(view: View, memory: TapMemory) -> None:
    """Cut each draft after the first token at which the rule ends it."""
    step = view.step[0]
    step.stop_len = step.max_draft_len
    for row in range(step.num_rows):
        first, last, before = row * step.width, 0, 0.0
        while last + 1 < view.draft_lens[row]:
            confidence = view.confidences[first + last]
            if ends(memory, confidence, before):
                break
            before, last = confidence, last + 1
        view.lens[row] = min(view.lens[row], last + 1)


def observe(view: View, memory: TapMemory) -> None:
    """Reward the rule with the mean reward of the step's drafts."""
    step, state, num, reward = view.step[0], memory.state[0], 0, 0.0
    for row in range(step.num_rows):
        drafted, accepted = view.draft_lens[row], view.accepted_lens[row]
        if drafted:
            num += 1
            reward += state.reward_share * accepted / step.max_draft_len
            reward += (1.0 - state.reward_share) * accepted / drafted
    if num:
        note_reward(memory.means, memory.plays, state.arm, reward / num)


@final
class TapOut(LoopPolicy):
    """Each step plays one of five rules by which drafts end, an arm of UCB1.

    Sridhar et al. (2025), "TapOut: A Bandit-Based Approach to Dynamic Speculative Decoding", arXiv
    2511.02017, its bandit over whole drafts. Each rule has a limit. A draft ends when the
    confidence falls below it; the root of the entropy exceeds it (SVIP); AdaEDL's bound falls below
    it; that root rises by more than it; or the margin to the second likeliest token falls below it.
    The reward mixes accepted / longest and accepted / drafted. Written from summaries of the paper.
    Chosen here: the limits, and that all drafts of a step end by one rule, which gets their mean
    reward. Only the confidence is modelled: entropy and margin are the least possible with it.
    """

    kind: Literal["tapout"] = "tapout"
    uses_confidences = True
    needs_sync = True
    reward_share: float = Field(default=0.5, ge=0, le=1)
    """Weight of accepted / longest in the reward."""
    limits: tuple[float, float, float, float, float] = (0.8, 0.6, 0.4, 0.2, 0.2)
    """Limits of the five rules, in the order above; entropy in nats."""
    loops = Loops(TapMemory, decide=decide, stop=stop, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        """Return a memory in which no arm has been played."""
        state = row_of(TapState, self)
        sure, svip, adaedl, rise, margin = self.limits
        root = least_sure(lambda sure: sqrt(least_entropy(sure)) > svip)
        bound = least_sure(lambda sure: 1.0 - sqrt(GAMMA * least_entropy(sure)) < adaedl)
        gap = (1.0 + margin) / 2.0  # the second likeliest has at most all of the rest
        limits = np.array([sure, root, bound, rise, gap])
        means, plays = np.zeros((2, 5))
        return self.remember(server, state=state, limits=limits, means=means, plays=plays)
