"""Acceptance that changes along the output."""

from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.acceptance.base import DrawnAcceptance, run_lengths
from specsim.core.rng import Luck
from specsim.core.settings import Settings


class Regime(Settings):
    """A stretch of the output that is easy or hard to draft."""

    weight: float = Field(gt=0)
    """Share of the output in this regime, relative to the weights of the others."""
    alpha: float = Field(ge=0, le=1)
    """P(a draft token is accepted | all before it in the draft were)."""


@final
class Markov(DrawnAcceptance):
    """Regimes with an alpha each take turns along the output, as a hidden Markov chain.

    At every output token the regime is drawn anew with probability 1 / regime_len, by the weights,
    and stays otherwise: the chain is stationary from the first token on, and the correlation of
    two tokens at distance d is (1 - 1 / regime_len)^d. Two regimes in this form are every
    two-state chain that does not oscillate.
    """

    kind: Literal["markov"] = "markov"
    examples = (
        {
            "regimes": [{"weight": 0.7, "alpha": 0.2}, {"weight": 0.3, "alpha": 0.95}],
            "regime_len": 20.0,
        },
    )
    regimes: tuple[Regime, ...] = Field(min_length=1)
    regime_len: float = Field(ge=1)
    """Mean number of tokens until the regime is drawn anew."""

    def drawn_lens(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.uint8]:
        """Return the run of accepted positions from each output position on."""
        shares = np.cumsum([regime.weight for regime in self.regimes])
        shares /= shares[-1]
        drawn = luck.child("regime").renewed(indices, counts, self.regime_len)
        # Rounding may leave the last share a little below 1.
        chosen = np.searchsorted(shares[:-1], drawn, side="right")
        alphas = np.array([regime.alpha for regime in self.regimes])[chosen]
        accepted = luck.uniforms(indices, counts) < alphas
        return run_lengths(accepted, max_draft_len)
