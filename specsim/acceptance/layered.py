"""Acceptance that changes along the output: regimes in turn, and luck in layers."""

from typing import Annotated, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.acceptance.base import DrawnAcceptance, run_lengths, runs_below
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


REFERENCE_POSITION = 100
"""Output position at which `Layered.rates` hold."""

Share = Annotated[float, Field(gt=0, lt=1)]


class RegimeLayer(Settings):
    """Stretches of the output that are easier or harder to draft than others."""

    spread: float = Field(ge=0)
    """How much regimes differ, in units of the spread of a single token's own luck."""
    mean_len: float = Field(ge=1)
    """Mean number of tokens until the regime's luck is drawn anew."""


@final
class Layered(DrawnAcceptance):
    """Luck in layers: the request's own, that of short and long regimes, and each token's.

    The j-th token of a draft is accepted, given that all before it were, if

        level_j + request_spread * z + sum of spread_i * s_i + drift * ln(q / 100) + e > 0

    where z is normal and drawn once per request, s_i is normal and drawn anew with probability
    1 / mean_len_i at every output token, e is normal and each token's own, and q = p + 1 for a
    token at output position p (`REFERENCE_POSITION` is the 100). The levels are chosen so that
    averaged over all luck a fresh j-th token at q = 100 would be accepted with probability
    rates[j - 1]; the last rate holds for all tokens after it. A variance-components probit: what
    `beta_position` and `markov` can do, together.
    """

    kind: Literal["layered"] = "layered"
    examples = (
        {
            "rates": [0.75, 0.65, 0.6],
            "request_spread": 0.4,
            "regimes": [{"spread": 0.8, "mean_len": 3.0}, {"spread": 0.3, "mean_len": 30.0}],
            "drift": 0.1,
        },
    )
    rates: tuple[Share, ...] = Field(min_length=1)
    request_spread: float = Field(default=0.0, ge=0)
    """How much requests differ, in units of the spread of a single token's own luck."""
    regimes: tuple[RegimeLayer, ...] = ()
    drift: float = 0.0
    """Score gained whenever the output grows by a factor e: positive if text becomes easier."""

    @property
    def levels(self) -> NDArray[np.float64]:
        """Score of the j-th token before any luck, shape (len(rates),)."""
        spreads = [1.0, self.request_spread, *(regime.spread for regime in self.regimes)]
        return np.asarray(_normal_quantiles(np.array(self.rates)) * np.linalg.norm(spreads))

    def drawn_lens(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.uint8]:
        """Follow every possible draft token by token; position p + j holds the luck of token j."""
        own = self.request_spread * _normals(luck.child("request").per_request(indices))
        # A token fails if its own luck falls short of what the other layers leave to it.
        lacking = -_normals(luck.uniforms(indices, counts)) - np.repeat(own, counts)
        for number, regime in enumerate(self.regimes):
            drawn = luck.child(f"regime {number}").renewed(indices, counts, regime.mean_len)
            lacking -= regime.spread * _normals(drawn)
        if self.drift:
            lacking -= self.drift * _log_positions(counts)
        levels = self.levels.tolist()
        levels += levels[-1:] * (max_draft_len - len(levels))
        return runs_below(lacking, levels[:max_draft_len])


def _normals(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return standard normal numbers, all finite."""
    return _normal_quantiles(np.maximum(uniforms, 2.0**-54))


def _normal_quantiles(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.special import ndtri  # noqa: PLC0415 - scipy takes 0.2 s

    return np.asarray(ndtri(shares))


def _log_positions(counts: list[int]) -> NDArray[np.float64]:
    """Return ln(q / 100) for every position of every request."""
    logs = np.log(np.arange(1, max(counts) + 1) / REFERENCE_POSITION)
    return np.concatenate([logs[:count] for count in counts])
