"""Tiers of draft lengths, of which the one with most tokens per second is taken."""

from typing import Annotated, Any, Literal, NamedTuple, Protocol, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import FloatRows, Ints
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.estimate import put_decodes, time_of_k
from specsim.policies.parts.everybody import ask_all
from specsim.policies.parts.recent import mean_share, note_shares
from specsim.policies.parts.tiers_by_size import (
    Tiers,
    TiersBySize,
    first_tier,
    has_len,
    range_of,
    rising_from,
    tiers_desk,
)


class TierState(Protocol):
    """The current tier, and parameters of the policy."""

    k: int
    num_steps: int  # verified since it was looked at
    interval: int
    hysteresis: float


class TierMemory(NamedTuple):
    """The policy's memory."""

    state: Rows[TierState]  # one row
    shares: FloatRows  # share of drafts accepted up to each position, shape (longest, window)
    counts: Ints  # steps noted for each position
    tiers: Annotated[Any, Tiers]


@inner
def best_tier(view: View, memory: TierMemory, place: int, held: int, margin: float) -> int:
    """Return the range's tier of most tokens per second; `held` if that gains under `margin`."""
    tokens, first, last, best, best_rate, held_rate = 1.0, np.nan, np.nan, held, 0.0, 0.0
    put_decodes(view)
    for k in range(1, view.step[0].max_draft_len + 1):
        last = mean_share(memory.shares, memory.counts, k - 1, first, last)
        first = last if k == 1 else first
        tokens += last
        if has_len(memory.tiers, place, k):
            rate = tokens / time_of_k(view, k)
            held_rate = rate if k == held else held_rate
            if rate > best_rate:
                best, best_rate = k, rate
    return best if best_rate > held_rate * margin else held


@inner
def take(memory: TierMemory, k: int) -> None:
    """Switch to a tier; forget the shares of positions that it no longer drafts."""
    for place in range(k, memory.state[0].k):
        memory.counts[place] = 0
    memory.state[0].k = k


def decide(view: View, memory: TierMemory) -> None:
    """Draft the current tier of the batch's size; choose it anew after an interval."""
    step, state = view.step[0], memory.state[0]
    if step.num_decodes:
        place = range_of(memory.tiers.sizes, step.num_decodes)
        if not has_len(memory.tiers, place, state.k):
            take(memory, best_tier(view, memory, place, memory.tiers.middles[place], 0.0))
        if state.num_steps >= state.interval:
            state.num_steps = 0
            # Windows fill from the first position on: all are full if the last one is.
            if not state.k or memory.counts[state.k - 1] >= memory.shares.shape[1]:
                take(memory, best_tier(view, memory, place, state.k, 1.0 + state.hysteresis))
    ask_all(view, state.k)


def observe(view: View, memory: TierMemory) -> None:
    """Note the share of the step's drafts accepted up to each position."""
    memory.state[0].num_steps += note_shares(view, memory.shares, memory.counts)


@final
class ThroughputTiers(LoopPolicy):
    """The tier k of the batch size that maximises (1 + sum of accepted shares) / step time.

    SGLang's throughput-aware adaptive speculation (PR 28045:
    ``srt/speculative/throughput_aware_controller.py ThroughputAwarePolicy`` at a12239f, its counter
    of steps as in its tests at 1688f2a; ``throughput_aware_spec_params.py`` at 2357074), with its
    default tiers. The share of drafts accepted up to a position is a mean over the last steps of
    all sizes; positions not seen yet continue the mean ratio of the shares before. A size that
    lacks the current tier switches at once, to its middle tier if no share is known. SGLang rounds
    sizes up to a CUDA graph and measures step times once; here the profile gives them.
    """

    kind: Literal["throughput_tiers"] = "throughput_tiers"
    examples = ({}, {"tiers": {1: [1, 3, 5, 7], 8: [1, 3, 5], 32: [1, 3], 128: [1]}})
    tiers: Annotated[TiersBySize, rising_from(1)] = Field(default={1: (1, 3, 5, 7)})
    """Draft lengths by the smallest batch size they are for; a list is for all sizes."""
    window: int = Field(default=20, ge=1)
    """Steps over which a share is averaged."""
    interval: int = Field(default=5, ge=1)
    """Verified steps between decisions."""
    hysteresis: float = Field(default=0.1, ge=0)
    """Share by which another tier must be faster to be chosen."""

    loops = Loops(TierMemory, decide=decide, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        longest = server.max_draft_len
        k = first_tier(self.tiers, longest)
        state, tiers = row_of(TierState, self, k=k), tiers_desk(self.tiers, longest)
        shares, counts = np.zeros((longest + 1, self.window)), np.zeros(longest + 1, np.int64)
        return self.remember(server, state=state, shares=shares, counts=counts, tiers=tiers)
