"""FLy: lone rejections that are passed over."""

from collections.abc import Sequence
from typing import Literal, final

import numpy as np
from pydantic import Field

from specsim.acceptance.base import (
    Acceptance,
    drawn_positions,
    run_lengths,
    shifted_rate,
    split_rows,
)
from specsim.core.request import Request
from specsim.core.rng import Luck


@final
class Fly(Acceptance):
    """Independent tokens of one alpha; a rejection where the target is unsure may be passed over.

    That is so if the next `window` tokens of the draft are accepted by themselves, and there are as
    many ("FLy", arXiv 2511.22972; ``rejection_sample_method: fly`` of vLLM 0.33.0). Answers are not
    the target's own. How often the target is unsure hangs on vLLM's ``fly_entropy_threshold`` and
    on the models, and is to be measured. A draft that is cut short is taken to survive as it would
    have in full length, though its last windows are cut off then.
    """

    kind: Literal["fly"] = "fly"
    examples = (
        {"alpha": 0.8, "unsure": 0.5, "window": 3},
        {"alpha": 0.9, "unsure": 0.3, "window": 2},
    )
    rejection: Literal["fly"] = "fly"
    alpha: float = Field(ge=0, le=1)
    """P(a draft token is accepted by itself | all before it in the draft were)."""
    unsure: float = Field(ge=0, le=1)
    """P(the target is unsure | it would reject the token)."""
    window: int | None = Field(default=None, ge=1)
    """Tokens after it that must be accepted by themselves, vLLM's ``fly_window_size``; by default
    6, but fewer than a draft has (``config/speculative.py``)."""

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        indices, counts = drawn_positions(requests, max_draft_len)
        uniforms = luck.uniforms(indices, counts)
        window = self.window or max(min(6, max_draft_len - 1), 1)
        accepted = uniforms < self.alpha
        following = np.append(run_lengths(accepted, window)[1:], 0)
        is_unsure = uniforms < self.alpha + (1.0 - self.alpha) * self.unsure
        passed = accepted | (is_unsure & (following == window))
        # A window that begins later would reach beyond the draft.
        first = min(window, max_draft_len)
        last = max_draft_len - first
        lens = run_lengths(passed, last)
        whole = lens == last
        tails = np.append(run_lengths(accepted, first), np.zeros(last, dtype=np.uint8))
        lens = lens + np.where(whole, tails[last:], 0).astype(np.uint8)
        return [row[: len(row) - max_draft_len] for row in split_rows(lens.tobytes(), counts)]

    def shifted(self, change: float) -> "Fly":
        return self.model_copy(update={"alpha": shifted_rate(self.alpha, change)})
