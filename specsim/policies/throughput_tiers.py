"""Tiers of draft lengths, of which the one with most tokens per second is taken."""

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self, final

import numpy as np
from pydantic import Field, model_validator

from specsim.core.compiled import Rows, inner
from specsim.core.desk import Flags, Floats, Ints
from specsim.decisions.loops import LoopMemory, Loops, View, row_of
from specsim.decisions.policy import LoopPolicy, ServerView
from specsim.policies.parts import ROOMS
from specsim.profile.step_time import priced, put_load


class TierState(Protocol):
    """Where it stands; window and interval are the policy's."""

    k: int
    num_steps: int
    window: int
    interval: int


class TierMemory(NamedTuple):
    """What it remembers."""

    state: Rows[TierState]
    """One row."""
    sizes: Ints
    """Least batch size of each range, rising."""
    may_take: Flags
    """Shape (ranges, longest + 1): whether a range has a tier of that length."""
    shares: Floats
    """Shape (longest, window): share of drafts that were accepted up to each position, a ring."""
    filled: Ints
    """How many of each ring have been put down."""


@inner
def share_at(memory: TierMemory, place: int, first: float, last: float) -> float:
    """Return the mean of a position, or what the positions before it make likely; NaN if none."""
    window, filled = memory.state[0].window, memory.filled[place]
    known: int = min(filled, window)
    total = 0.0
    for age in range(known, 0, -1):
        total += memory.shares[place * window + (filled - age) % window]
    if known:
        return total / known
    if place <= 1:
        return last
    if first <= 0.0:
        return 0.0
    ratio: float = (last / first) ** (1.0 / (place - 1))
    return last * min(1.0, ratio)


@inner
def best_tier(view: View, memory: TierMemory, number: int, num: int) -> int:
    """Return the tier of most expected tokens per second; what it was if nothing is known."""
    step, tokens = view.step[0], 1.0
    best, best_rate, first, last = memory.state[0].k, 0.0, np.nan, np.nan
    put_load(view.pricing, step.next_context_tokens, num, num, 0)
    for k in range(1, step.max_draft_len + 1):
        last = share_at(memory, k - 1, first, last)
        first = last if k == 1 else first
        tokens += last
        if memory.may_take[number * (step.max_draft_len + 1) + k]:
            rate = tokens / priced(view.pricing, num * (1 + k), k)
            if rate > best_rate:
                best, best_rate = k, rate
    return best


def decide(view: View, memory: TierMemory) -> None:
    """Draft as the tier says, which is looked at anew at the end of an interval."""
    step, state = view.step[0], memory.state[0]
    is_known = state.num_steps > 0 and state.num_steps % state.interval == 0
    for place in range(state.k):
        is_known = is_known and memory.filled[place] >= state.window
    if is_known and step.num_decodes:
        number = 0
        while number + 1 < len(memory.sizes) and memory.sizes[number + 1] <= step.num_decodes:
            number += 1
        best = best_tier(view, memory, number, step.num_decodes)
        for place in range(best, state.k):
            memory.filled[place] = 0
        state.k = best
    for row in range(step.num_rows):
        view.lens[row] = state.k


def observe(view: View, memory: TierMemory) -> None:
    """Note which share of the drafts was accepted up to each position."""
    step, state, num, longest = view.step[0], memory.state[0], 0, 0
    for row in range(step.num_rows):
        num += view.draft_lens[row] > 0
        longest = max(longest, view.draft_lens[row])
    state.num_steps += num > 0
    for place in range(longest):
        accepted = 0
        for row in range(step.num_rows):
            accepted += view.accepted_lens[row] > place
        at = place * state.window + memory.filled[place] % state.window
        memory.shares[at] = accepted / num
        memory.filled[place] += 1


@final
class ThroughputTiers(LoopPolicy):
    """The tier k of the batch size that maximises (1 + sum of accepted shares) / step time.

    SGLang's throughput-aware adaptive speculation (``srt/speculative/`` in it,
    ``throughput_aware_controller.py`` at 088c5ab and ``throughput_aware_spec_params.py`` at
    2357074) with the tiers of its example. The share of drafts accepted up to a position is a mean
    over its last steps, all batch sizes together; positions not seen are extrapolated by the ratio
    of those before. SGLang measures step times once, by batch size; here they are the profile's,
    for the context of the step.
    """

    kind: Literal["throughput_tiers"] = "throughput_tiers"
    tiers: dict[Annotated[int, Field(ge=1)], Annotated[tuple[int, ...], Field(min_length=1)]] = (
        Field(default={1: (1, 3, 5, 7), 8: (1, 3, 5), 32: (1, 3), 128: (1,)}, min_length=1)
    )
    """Draft lengths by the least size of batch that they are for."""
    window: int = Field(default=20, ge=1)
    """Steps that a share is a mean of."""
    interval: int = Field(default=10, ge=1)
    """Verified steps between decisions."""

    loops: ClassVar[Loops] = Loops(TierMemory, decide=decide, observe=observe, rooms=ROOMS)

    @model_validator(mode="after")
    def _check_tiers(self) -> Self:
        for lens in self.tiers.values():
            if lens[0] < 1 or any(b <= a for a, b in pairwise(lens)):
                raise ValueError(f"tiers {list(lens)} must be at least 1 and rising")
        return self

    def start(self, server: ServerView) -> LoopMemory:
        """Return the longest tier, or the middle one of the smallest batches; nothing seen."""
        longest, ranges = server.max_draft_len, sorted(self.tiers.items())
        may_take = np.zeros((len(ranges), longest + 1), dtype=np.bool_)
        for place, (_, lens) in enumerate(ranges):
            may_take[place, np.minimum(lens, longest)] = longest > 0
        first = ranges[0][1]
        k = longest if may_take[:, longest].any() else first[len(first) // 2]
        fields: dict[str, Any] = {
            "state": row_of(TierState, k=k, window=self.window, interval=self.interval),
            "sizes": np.array([size for size, _ in ranges]),
            "may_take": may_take.ravel(),
            "shares": np.zeros(longest * self.window + 1),
            "filled": np.zeros(longest + 1, dtype=np.int64),
        }
        return self.remember(server, **fields)
