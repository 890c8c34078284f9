"""A few draft lengths, chosen by a smoothed accepted length."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self, final

import numpy as np
from pydantic import Field, model_validator

from specsim.core.step import BatchView, StepOutcome
from specsim.policies.base import Policy, ServerView


@dataclass(slots=True)
class _Memory:
    tiers: list[int]
    tier: int
    """Place in `tiers`."""
    accepted_len: float
    """Smoothed mean accepted length of the batch, without bonus tokens."""
    num_steps: int = 0


@final
class EmaTiers(Policy):
    """Tiers of k; the smoothed accepted length moves between them, with hysteresis.

    SGLang's adaptive speculation (``srt/speculative/adaptive_spec_params.py``, its first
    defaults): every `interval` verified steps after the warm-up, go down while the smoothed length
    is at most the next lower tier - 0.5 + `down_hysteresis`, else up while it exceeds the current
    tier - 0.5 + `up_hysteresis`. A change takes effect with the next drafts. Blind to cost.
    """

    kind: Literal["ema_tiers"] = "ema_tiers"
    examples: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"tiers": [0, 2, 4]})
    tiers: tuple[int, ...] = Field(default=(1, 3, 7), min_length=1)
    smoothing: float = Field(default=0.2, gt=0, le=1)
    """Weight of the newest step."""
    interval: int = Field(default=5, ge=1)
    """Verified steps between decisions."""
    warm_up: int = Field(default=10, ge=0)
    """Verified steps before the first."""
    down_hysteresis: float = -0.25
    up_hysteresis: float = 0.0

    @model_validator(mode="after")
    def _check_tiers(self) -> Self:
        if self.tiers[0] < 0 or any(b <= a for a, b in pairwise(self.tiers)):
            raise ValueError(f"tiers {list(self.tiers)} must be at least 0 and rising")
        return self

    def start(self, server: ServerView) -> _Memory:
        """Return the middle tier; tiers beyond the longest draft are cut to it."""
        tiers = sorted({min(k, server.max_draft_len) for k in self.tiers})
        tier = len(tiers) // 2
        return _Memory(tiers, tier, tiers[tier] - 1.0)

    def draft_lens(self, batch: BatchView, memory: _Memory) -> int:
        """Return the k of the tier."""
        return memory.tiers[memory.tier]

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Smooth the accepted length; at the end of an interval, change the tier."""
        if not len(outcome.accepted_lens):
            return
        k = memory.tiers[memory.tier]
        if k:
            drafted = np.count_nonzero(outcome.draft_lens)
            if not drafted:
                return
            mean = int(outcome.accepted_lens.sum()) / drafted
            memory.accepted_len += self.smoothing * (mean - memory.accepted_len)
        memory.num_steps += 1
        since = memory.num_steps - self.warm_up
        if since > 0 and since % self.interval == 0:
            memory.tier = self._next_tier(memory)

    def _next_tier(self, memory: _Memory) -> int:
        tiers, tier = memory.tiers, memory.tier
        if tiers[tier] == 0:  # without drafts there is nothing to learn from: try again
            return min(tier + 1, len(tiers) - 1)
        while tier > 0:
            lower = tiers[tier - 1]
            limit = (0.5 if lower == 0 else lower - 0.5) + self.down_hysteresis
            if memory.accepted_len > limit:
                break
            tier -= 1
        if tier == memory.tier:
            while tier < len(tiers) - 1:
                if memory.accepted_len <= tiers[tier] - 0.5 + self.up_hysteresis:
                    break
                tier += 1
        return tier
