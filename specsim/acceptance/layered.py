"""Acceptance that changes along the output: regimes in turn, and luck in layers."""

from collections.abc import Sequence
from functools import partial, reduce
from math import asin, pi
from typing import Annotated, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.acceptance.base import (
    DrawnAcceptance,
    Rates,
    drawn_positions,
    run_lengths,
    runs_below,
    shifted_rate,
)
from specsim.core.request import Request
from specsim.core.rng import Luck, normals
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
        alphas = np.array([regime.alpha for regime in self.regimes])
        accepted = luck.uniforms(indices, counts) < alphas[self._chosen(luck, indices, counts)]
        return run_lengths(accepted, max_draft_len)

    @property
    def state_share(self) -> float:
        alphas = np.array([regime.alpha for regime in self.regimes])
        mean = float((self._shares * alphas).sum())
        variance = float((self._shares * (alphas - mean) ** 2).sum())
        return variance / max(mean * (1.0 - mean), 1e-300)

    def scores(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.float64]:
        alphas = np.array([regime.alpha for regime in self.regimes])
        return _normal_quantiles(alphas)[np.newaxis, self._chosen(luck, indices, counts)]

    def _chosen(self, luck: Luck, indices: list[int], counts: list[int]) -> NDArray[np.intp]:
        """Return the regime of every position, end to end."""
        drawn = luck.child("regime").renewed(indices, counts, self.regime_len)
        # Rounding may leave the last share a little below 1.
        return np.searchsorted(np.cumsum(self._shares)[:-1], drawn, side="right")

    @property
    def _shares(self) -> NDArray[np.float64]:
        weights = np.array([regime.weight for regime in self.regimes])
        return np.asarray(weights / weights.sum())

    def known_rates(self, requests: Sequence[Request], luck: Luck, max_draft_len: int) -> Rates:
        """Return what the regime of the last token makes likely of the next ones."""
        indices, counts = drawn_positions(requests, max_draft_len)
        starts = np.cumsum([0, *counts])
        chosen, shares = self._chosen(luck, indices, counts), self._shares
        alphas = np.array([regime.alpha for regime in self.regimes])
        stays = 1.0 - 1.0 / self.regime_len

        def rates(
            indices: NDArray[np.int64], positions: NDArray[np.int64]
        ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            is_first = positions == 0
            believed = np.eye(len(shares))[chosen[starts[indices] + np.maximum(positions - 1, 0)]]
            believed[is_first] = shares
            found, squares = np.empty((2, len(indices), max_draft_len))
            for place in range(max_draft_len):
                believed = stays * believed + (1.0 - stays) * shares
                likely = believed * alphas  # no products of matrices: BLAS rounds as it will
                found[:, place] = likely.sum(axis=1)
                squares[:, place] = (likely * alphas).sum(axis=1)
                believed = likely / np.maximum(found[:, place], 1e-300)[:, np.newaxis]
            return found, squares

        return rates

    def shifted(self, change: float) -> "Markov":
        regimes = tuple(
            each.model_copy(update={"alpha": shifted_rate(each.alpha, change)})
            for each in self.regimes
        )
        return self.model_copy(update={"regimes": regimes})


_NODES = 7  # of the quadrature over luck that is drawn anew
REFERENCE_POSITION = 100  # output position at which `Layered.rates` hold

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

    where z, s_i and e are normal. Of these z is drawn once per request, s_i anew with probability 1
    / mean_len_i at every output token, and e is each token's own. q = p + 1 for a token at output
    position p (`REFERENCE_POSITION` is the 100). The levels are chosen so that averaged over all
    luck a fresh j-th token at q = 100 would be accepted with probability rates[j - 1]; the last
    rate holds for all tokens after it. A variance-components probit: what `beta_position` and
    `markov` can do, together.
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
        lacking = self.own_luck(luck, indices, counts) - self._state(luck, indices, counts)
        return runs_below(lacking, self._levels(max_draft_len))

    def own_luck(self, luck: Luck, indices: list[int], counts: list[int]) -> NDArray[np.float64]:
        return -super().own_luck(luck, indices, counts)

    def scores(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.float64]:
        state = self._state(luck, indices, counts)
        return self.levels[:max_draft_len, np.newaxis] + state

    def _state(self, luck: Luck, indices: list[int], counts: list[int]) -> NDArray[np.float64]:
        """Return the sum of all layers but each token's own luck."""
        own = self.request_spread * normals(luck.child("request").per_request(indices))
        state = np.repeat(own, counts)
        for number, regime in enumerate(self.regimes):
            regime_luck = luck.child(f"regime {number}")
            drawn = regime_luck.renewed(indices, counts, regime.mean_len, normals)
            state += regime.spread * drawn
        return state + self.drift * _log_positions(counts) if self.drift else state

    @property
    def state_share(self) -> float:
        state = sum(regime.spread**2 for regime in self.regimes)
        return asin(state / (1.0 + state)) * 2.0 / pi

    def _levels(self, max_draft_len: int) -> list[float]:
        levels: list[float] = self.levels.tolist()
        return (levels + levels[-1:] * (max_draft_len - len(levels)))[:max_draft_len]

    def known_rates(self, requests: Sequence[Request], luck: Luck, max_draft_len: int) -> Rates:
        """Return what the layers' luck at the last token makes likely of the next ones.

        Each layer stays as it is or is drawn anew, which Gauss-Hermite quadrature integrates over;
        a token that is accepted makes easy text likelier.
        """
        from scipy.special import ndtr

        indices, counts = drawn_positions(requests, max_draft_len)
        starts = np.cumsum([0, *counts])
        own = self.request_spread * normals(luck.child("request").per_request(indices))
        layers = [
            luck.child(f"regime {number}").renewed(indices, counts, regime.mean_len, normals)
            for number, regime in enumerate(self.regimes)
        ]
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        fresh = np.append(0.0, weights / weights.sum())
        levels, num_layers = self._levels(max_draft_len), len(layers)
        along = partial(_along, num_layers=num_layers)

        def rates(
            indices: NDArray[np.int64], positions: NDArray[np.int64]
        ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            num = len(indices)
            last = starts[indices] + np.maximum(positions - 1, 0)
            known = np.where(positions == 0, 0.0, 1.0)[:, np.newaxis]
            states = [np.column_stack([layer[last], np.tile(nodes, (num, 1))]) for layer in layers]
            begin = known * np.eye(_NODES + 1)[0] + (1.0 - known) * fresh
            believed = reduce(
                np.multiply,
                (along(begin, layer) for layer in range(num_layers)),
                np.ones((num, *(1 for _ in layers))),
            )
            score = along(own[indices][:, np.newaxis], 0) if layers else own[indices]
            for layer, (regime, values) in enumerate(zip(self.regimes, states, strict=True)):
                score = score + regime.spread * along(values, layer)
            axes = tuple(range(1, 1 + num_layers))
            found, squares = np.empty((2, num, max_draft_len))
            for place, level in enumerate(levels):
                for layer, regime in enumerate(self.regimes):
                    total = believed.sum(axis=1 + layer, keepdims=True)
                    renewed = along(fresh, layer) / regime.mean_len
                    believed = (1.0 - 1.0 / regime.mean_len) * believed + total * renewed
                drift = self.drift * np.log((positions + 1 + place) / REFERENCE_POSITION)
                shift = (level + drift).reshape(num, *(1 for _ in layers))
                chances = ndtr(score + shift)
                squares[:, place] = np.sum(believed * chances**2, axis=axes)
                believed = believed * chances
                found[:, place] = total = np.sum(believed, axis=axes)
                believed = believed / np.maximum(total, 1e-300).reshape(shift.shape)
            return found, squares

        return rates

    def shifted(self, change: float) -> "Layered":
        rates = tuple(shifted_rate(rate, change) for rate in self.rates)
        return self.model_copy(update={"rates": rates})


def _normal_quantiles(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.special import ndtri

    return np.asarray(ndtri(shares))


def _log_positions(counts: list[int]) -> NDArray[np.float64]:
    """Return ln(q / 100) for every position of every request."""
    logs = np.log(np.arange(1, max(counts) + 1) / REFERENCE_POSITION)
    return np.concatenate([logs[:count] for count in counts])


def _along(values: NDArray[np.float64], layer: int, num_layers: int) -> NDArray[np.float64]:
    """Return values of shape (..., states) with an axis for each layer."""
    shape = [*(values.shape[:-1] or (1,)), *[1] * num_layers]
    shape[1 + layer] = values.shape[-1]
    return values.reshape(shape)
