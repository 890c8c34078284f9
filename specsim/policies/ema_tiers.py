"""A few draft lengths for each size of batch, chosen by a smoothed accepted length."""

from dataclasses import dataclass
from typing import Annotated, Literal, final

import numpy as np
from pydantic import Field

from specsim.core.step import BatchView, StepOutcome
from specsim.decisions.policy import Policy, ServerView
from specsim.policies.parts.tiers_by_size import (
    TiersBySize,
    cut_tiers,
    middle,
    range_of,
    rising_from,
)


@dataclass(slots=True)
class _Range:
    """State of one range of batch sizes."""

    tiers: list[int]
    tier: int  # place in `tiers`
    accepted_len: float  # smoothed mean accepted length of the batch, without bonus tokens
    down_hysteresis: float
    num_steps: int = 0


@dataclass(slots=True)
class _Memory:
    sizes: list[int]
    ranges: list[_Range]

    def of_size(self, num_requests: int) -> _Range:
        return self.ranges[range_of(self.sizes, num_requests)]


@final
class EmaTiers(Policy[_Memory]):
    """Tiers of k by batch size; the smoothed accepted length moves between them, with hysteresis.

    SGLang's adaptive speculation (``srt/speculative/adaptive_spec_params.py`` and
    ``adaptive_step_router.py`` at 015c872 and a12239f, their defaults). A step belongs to the range
    of the largest size that it reaches. Every `interval` verified steps of a range after its
    warm-up, go down while its smoothed length is at most the next lower tier - 0.5 +
    `down_hysteresis`, else up while it exceeds the current tier - 0.5 + `up_hysteresis`; from tier
    0 always go up, to try again. A change takes effect with the next drafts. Cost enters only
    through the tiers given for each size. Unlike SGLang, the size is not rounded up to a CUDA
    graph, and there is no ``ceiling_coeff``, which SGLang leaves off.
    """

    kind: Literal["ema_tiers"] = "ema_tiers"
    examples = ({}, {"tiers": [0, 2, 4]})
    tiers: Annotated[TiersBySize, rising_from(0)] = Field(
        default={1: (1, 3, 5, 7), 8: (0, 1, 3), 32: (0, 1), 64: (0,)}
    )
    """Draft lengths by the smallest batch size they are for; a list is for all sizes."""
    k_start: int | None = Field(default=None, ge=0)
    """Tier to start at (SGLang's ``speculative_num_steps``); the middle tier by default, and for
    sizes that do not have it."""
    smoothing: float = Field(default=0.2, gt=0, le=1)
    """Weight of the newest step in the smoothed accepted length."""
    interval: int = Field(default=5, ge=1)
    """Verified steps between decisions."""
    warm_up: int = Field(default=10, ge=0)
    """Verified steps before the first decision."""
    down_hysteresis: float | None = None
    """By default -0.25 for the range of the smallest batches and 0 for others."""
    up_hysteresis: float = 0.0

    def start(self, server: ServerView) -> _Memory:
        """Return the ranges at their first tier; tiers above the longest draft are cut to it."""
        ranges = []
        sizes, tiers_of = cut_tiers(self.tiers, server.max_draft_len)
        for number, tiers in enumerate(tiers_of):
            tier = tiers.index(self.k_start) if self.k_start in tiers else middle(tiers)
            usual = 0.0 if number else -0.25
            down = usual if self.down_hysteresis is None else self.down_hysteresis
            ranges.append(_Range(tiers, tier, tiers[tier] - 1.0, down))
        return _Memory(sizes, ranges)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int:
        own = memory.of_size(batch.size)
        return own.tiers[own.tier]

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Smooth the accepted length; at the end of an interval, change the tier."""
        if not len(outcome.accepted_lens):
            return
        own = memory.of_size(len(outcome.accepted_lens))
        if own.tiers[own.tier]:
            drafted = np.count_nonzero(outcome.draft_lens)
            if not drafted:
                return
            mean = int(outcome.accepted_lens.sum()) / drafted
            own.accepted_len += self.smoothing * (mean - own.accepted_len)
        own.num_steps += 1
        since = own.num_steps - self.warm_up
        if since > 0 and since % self.interval == 0:
            own.tier = self._next_tier(own)

    def _next_tier(self, own: _Range) -> int:
        tiers, tier, last = own.tiers, own.tier, len(own.tiers) - 1
        if tiers[tier] == 0:  # without drafts nothing can be learned: try again
            tier = min(tier + 1, last)
            if own.accepted_len < 0:
                own.accepted_len = tiers[tier] - 1.0
            return tier
        while tier > 0:
            lower = tiers[tier - 1]
            limit = (0.5 if lower == 0 else lower - 0.5) + own.down_hysteresis
            if own.accepted_len > limit:
                break
            tier -= 1
        if tier == own.tier:
            while tier < last and own.accepted_len > tiers[tier] - 0.5 + self.up_hysteresis:
                tier += 1
        return tier
