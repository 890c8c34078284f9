"""Independent acceptance with one probability."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, final

from pydantic import Field

from specsim.acceptance.base import Acceptance, run_lengths, split_tables
from specsim.core.request import Request
from specsim.core.rng import Luck

__all__ = ["Bernoulli"]


@final
class Bernoulli(Acceptance):
    """Every draft token is accepted with probability `alpha`, given that all before it were.

    The i.i.d. model of Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via
    Speculative Decoding", under which a draft of k tokens emits (1 - alpha^(k+1)) / (1 - alpha)
    tokens on average (eq. 1; Liu et al. 2024, "SmartSpec", eq. 8).
    """

    kind: Literal["bernoulli"] = "bernoulli"
    examples: ClassVar[tuple[dict[str, Any], ...]] = ({"alpha": 0.7},)
    alpha: float = Field(ge=0, le=1)
    """P(a draft token is accepted | all before it in the draft were)."""

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        """Return the run of accepted positions from each output position on."""
        indices = [request.index for request in requests]
        counts = [request.output_len + max_draft_len for request in requests]
        accepted = luck.uniforms(indices, counts) < self.alpha
        # A run that leaves a request's positions does so only beyond its output.
        lens = run_lengths(accepted, max_draft_len)
        return split_tables(lens, requests, stride_extra=max_draft_len)

    def position_rates(self, num_positions: int) -> list[float]:
        """Return alpha for every position."""
        return [self.alpha] * num_positions
