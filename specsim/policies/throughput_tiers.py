"""Tiers of draft lengths, of which the one with most tokens per second is taken."""

from typing import Annotated, Any, Literal, NamedTuple, Protocol, final

import numpy as np
from pydantic import Field

from specsim.core.compiled import Rows, inner
from specsim.core.desk import FloatRows, Ints
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts.everybody import ask_all
from specsim.policies.parts.recent import mean_share, note_shares
from specsim.policies.parts.tiers_by_size import (
    Tiers,
    TiersBySize,
    cut_tiers,
    has_len,
    middle,
    range_of,
    rising_from,
    tiers_desk,
)
from specsim.profile.step_time import priced, put_load


class TierState(Protocol):
    """Where it stands; the last two are the policy's numbers."""

    k: int
    num_steps: int  # verified since it was looked at
    interval: int
    hysteresis: float


class TierMemory(NamedTuple):
    """What it remembers."""

    state: Rows[TierState]  # one row
    shares: FloatRows
    """Of drafts, those accepted up to each position in its last steps, shape (longest, window);"""
    counts: Ints
    """and how many steps these were."""
    tiers: Annotated[Any, Tiers]


@inner
def best_tier(view: View, memory: TierMemory, place: int, held: int, margin: float) -> int:
    """Return the tier of a range that promises most tokens per second.

    `held` is taken unless another promises more than `margin` times what it does, and where nothing
    is known.
    """
    step, num, tokens, first, last = view.step[0], view.step[0].num_decodes, 1.0, np.nan, np.nan
    best, best_rate, held_rate = held, 0.0, 0.0
    put_load(view.pricing, step.next_context_tokens, num, num, 0)
    for k in range(1, step.max_draft_len + 1):
        last = mean_share(memory.shares, memory.counts, k - 1, first, last)
        first = last if k == 1 else first
        tokens += last
        if has_len(memory.tiers, place, k):
            rate = tokens / priced(view.pricing, num * (1 + k), k)
            if rate > best_rate:
                best, best_rate = k, rate
            if k == held:
                held_rate = rate
    return best if best_rate > held_rate * margin else held


@inner
def take(memory: TierMemory, k: int) -> None:
    """Take a tier; forget the positions that it no longer drafts."""
    for place in range(k, memory.state[0].k):
        memory.counts[place] = 0
    memory.state[0].k = k


def decide(view: View, memory: TierMemory) -> None:
    """Draft as a tier of the batch's size says; at the end of an interval choose it anew."""
    step, state = view.step[0], memory.state[0]
    if step.num_decodes:
        place = range_of(memory.tiers.sizes, step.num_decodes)
        if not has_len(memory.tiers, place, state.k):
            take(memory, best_tier(view, memory, place, memory.tiers.middles[place], 0.0))
        if state.num_steps >= state.interval:
            # Windows fill from the first position on, so that the last says whether all are full.
            if not state.k or memory.counts[state.k - 1] >= memory.shares.shape[1]:
                margin = 1.0 + state.hysteresis
                take(memory, best_tier(view, memory, place, state.k, margin))
            state.num_steps = 0
    ask_all(view, state.k)


def observe(view: View, memory: TierMemory) -> None:
    """Note which share of the drafts was accepted up to each position."""
    memory.state[0].num_steps += note_shares(view, memory.shares, memory.counts)


@final
class ThroughputTiers(LoopPolicy):
    """The tier k of the batch size that maximises (1 + sum of accepted shares) / step time.

    SGLang's throughput-aware adaptive speculation (PR 28045:
    ``srt/speculative/throughput_aware_controller.py ThroughputAwarePolicy`` at a12239f, its counter
    of steps as in its tests at 1688f2a; ``throughput_aware_spec_params.py`` at 2357074), with its
    default tiers. The share of drafts accepted up to a position is a mean over its last steps, all
    batch sizes together; positions not seen are extrapolated by the ratio of those before. A batch
    whose size does not have the tier takes another at once, the middle one where nothing is known.
    SGLang rounds sizes up to a CUDA graph's and measures step times once, by size; here sizes are
    as they are, and times the profile's, for the context of the step.
    """

    kind: Literal["throughput_tiers"] = "throughput_tiers"
    examples = ({}, {"tiers": {1: [1, 3, 5, 7], 8: [1, 3, 5], 32: [1, 3], 128: [1]}})
    tiers: Annotated[TiersBySize, rising_from(1)] = Field(default={1: (1, 3, 5, 7)})
    """Draft lengths by the least size of batch that they are for; a list is for all sizes."""
    window: int = Field(default=20, ge=1)
    """Steps that a share is a mean of."""
    interval: int = Field(default=5, ge=1)
    """Verified steps between decisions."""
    hysteresis: float = Field(default=0.1, ge=0)
    """By which share another tier must be faster, to be taken."""

    loops = Loops(TierMemory, decide=decide, observe=observe)

    def start(self, server: ServerView) -> LoopMemory:
        """Return the longest tier, or the middle one of the smallest batches; nothing seen."""
        longest = server.max_draft_len
        _, lens_of = cut_tiers(self.tiers, longest)
        is_tier = any(longest in lens for lens in lens_of)
        k = longest if is_tier else lens_of[0][middle(lens_of[0])]
        state, tiers = row_of(TierState, self, k=k), tiers_desk(self.tiers, longest)
        shares = np.zeros((longest + 1, self.window))
        counts = np.zeros(longest + 1, dtype=np.int64)
        return self.remember(server, state=state, shares=shares, counts=counts, tiers=tiers)
