"""Independent acceptance with one probability."""

from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.acceptance.base import DrawnAcceptance, run_lengths
from specsim.core.rng import Luck


@final
class Bernoulli(DrawnAcceptance):
    """Every draft token is accepted with probability `alpha`, given that all before it were.

    The i.i.d. model of Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via
    Speculative Decoding", under which a draft of k tokens emits (1 - alpha^(k+1)) / (1 - alpha)
    tokens on average (eq. 1; Liu et al. 2024, "SmartSpec", eq. 8).
    """

    kind: Literal["bernoulli"] = "bernoulli"
    examples = ({"alpha": 0.7},)
    alpha: float = Field(ge=0, le=1)
    """P(a draft token is accepted | all before it in the draft were)."""

    def drawn_lens(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.uint8]:
        """Return the run of accepted positions from each output position on."""
        accepted = luck.uniforms(indices, counts) < self.alpha
        return run_lengths(accepted, max_draft_len)

    def position_rates(self, num_positions: int) -> list[float]:
        """Return alpha for every position."""
        return [self.alpha] * num_positions
