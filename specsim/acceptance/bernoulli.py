"""Independent draft tokens: one probability, one per request or position, or both; and FLy."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.acceptance.base import (
    Acceptance,
    DrawnAcceptance,
    Rates,
    drawn_positions,
    run_lengths,
    runs_below,
    shifted_rate,
    split_rows,
)
from specsim.core.request import Request
from specsim.core.rng import Luck


class IndependentTokens(DrawnAcceptance):
    """The j-th token of a draft is accepted with the request's alpha times the j-th factor."""

    @abstractmethod
    def alphas(self, luck: Luck, indices: list[int]) -> NDArray[np.float64]:
        """Return alpha of each request."""

    @property
    def place_factors(self) -> tuple[float, ...]:
        """Factor on alpha by place in the draft; the last holds for all later places."""
        return (1.0,)

    def position_rates(self, num_positions: int) -> list[float]:
        """Return the factor of each place."""
        factors = self.place_factors[:num_positions]
        return [*factors, *factors[-1:] * (num_positions - len(factors))]

    def drawn_lens(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.uint8]:
        """Follow every possible draft token by token; position p + j holds the luck of token j."""
        alphas = self.alphas(luck, indices)
        # Dividing the luck once, not multiplying alpha anew for every token of the draft.
        needed = luck.uniforms(indices, counts) / np.repeat(np.maximum(alphas, 1e-300), counts)
        return runs_below(needed, self.position_rates(max_draft_len))

    def scores(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.float64]:
        from scipy.special import ndtri

        factors = np.array(self.place_factors[:max_draft_len])
        rates = factors[:, np.newaxis] * self.alphas(luck, indices)
        return np.repeat(np.asarray(ndtri(rates)), counts, axis=1)

    def known_rates(self, requests: Sequence[Request], luck: Luck, max_draft_len: int) -> Rates:
        alphas = self.alphas(luck, [request.index for request in requests])
        table = alphas[:, np.newaxis] * np.array(self.position_rates(max_draft_len))
        return lambda requests, positions: (table[requests], table[requests] ** 2)


@final
class Bernoulli(IndependentTokens):
    """Every draft token is accepted with probability `alpha`, given that all before it were.

    The i.i.d. model of Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via
    Speculative Decoding", under which a draft of k tokens emits (1 - alpha^(k+1)) / (1 - alpha)
    tokens on average (eq. 1; Liu et al. 2024, "SmartSpec", eq. 8).
    """

    kind: Literal["bernoulli"] = "bernoulli"
    examples = ({"alpha": 0.7},)
    alpha: float = Field(ge=0, le=1)
    """P(a draft token is accepted | all before it in the draft were)."""

    def alphas(self, luck: Luck, indices: list[int]) -> NDArray[np.float64]:
        return np.full(len(indices), self.alpha)

    def drawn_lens(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.uint8]:
        # One rate for all needs no luck divided, which takes half as long again.
        return run_lengths(luck.uniforms(indices, counts) < self.alpha, max_draft_len)

    def shifted(self, change: float) -> "Bernoulli":
        return self.model_copy(update={"alpha": shifted_rate(self.alpha, change)})


class BetaAlphas(IndependentTokens):
    """Each request has its own alpha, drawn from Beta(a, b); within a request it stays the same."""

    a: float = Field(gt=0)
    b: float = Field(gt=0)

    def alphas(self, luck: Luck, indices: list[int]) -> NDArray[np.float64]:
        from scipy.special import betaincinv

        drawn = luck.child("request").per_request(indices)
        return np.asarray(betaincinv(self.a, self.b, drawn))

    def shifted(self, change: float) -> Self | None:
        """Return the model with a + b and all factors as they were; the first token's moves."""
        if not self.place_factors[0]:
            return None
        total = self.a + self.b
        mean = shifted_rate(self.a / total, change / self.place_factors[0])
        return self.model_copy(update={"a": mean * total, "b": (1.0 - mean) * total})


@final
class Beta(BetaAlphas):
    """Each request has its own alpha, drawn from Beta(a, b); within a request it stays the same.

    The mean of alpha over requests is a / (a + b); the smaller a + b, the more requests differ.
    """

    kind: Literal["beta"] = "beta"
    examples = ({"a": 6.0, "b": 3.0},)


Rate = Annotated[float, Field(ge=0, le=1)]


@final
class BetaPosition(BetaAlphas):
    """The j-th token of a draft is accepted with the request's own alpha times the j-th factor.

    Alpha is drawn once per request from Beta(a, b). P(token j accepted | all before it were) is
    alpha * factors[j - 1]; the last factor holds for all tokens after it.
    """

    kind: Literal["beta_position"] = "beta_position"
    examples = ({"a": 6.0, "b": 2.0, "factors": [1.0, 0.9, 0.8]},)
    factors: tuple[Rate, ...] = Field(min_length=1)

    @property
    def place_factors(self) -> tuple[float, ...]:
        return self.factors


@final
class PerPosition(IndependentTokens):
    """The j-th token of a draft is accepted with its own probability.

    Two conventions are in use and must be told apart, so exactly one of the fields is given:
    `conditional_rates` are P(token j accepted | all before it were); `unconditional_rates` are
    P(tokens 1..j all accepted), non-increasing, as vLLM reports them
    (``spec_decode_per_position_acceptance_rates``, ``synthetic_acceptance_rates``). Tokens beyond
    the last rate are rejected.
    """

    kind: Literal["per_position"] = "per_position"
    examples = ({"conditional_rates": [0.8, 0.7, 0.6]}, {"unconditional_rates": [0.8, 0.56, 0.34]})
    conditional_rates: tuple[Rate, ...] | None = None
    unconditional_rates: tuple[Rate, ...] | None = None

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        given = [r for r in (self.conditional_rates, self.unconditional_rates) if r is not None]
        if len(given) != 1 or not given[0]:
            raise ValueError("give either conditional_rates or unconditional_rates, not empty")
        rates = self.unconditional_rates or ()
        if any(later > earlier for earlier, later in pairwise(rates)):
            raise ValueError(
                f"unconditional_rates {list(rates)} must not increase: to accept token j + 1 "
                "token j must have been accepted; use conditional_rates for conditional ones"
            )
        return self

    @property
    def rates(self) -> list[float]:
        """Conditional rates, whichever way they were given."""
        if self.conditional_rates is not None:
            return list(self.conditional_rates)
        assert self.unconditional_rates is not None
        before = (1.0, *self.unconditional_rates)
        return [
            now / last if last > 0 else 0.0
            for last, now in zip(before, self.unconditional_rates, strict=False)
        ]

    @property
    def place_factors(self) -> tuple[float, ...]:
        return (*self.rates, 0.0)

    def alphas(self, luck: Luck, indices: list[int]) -> NDArray[np.float64]:
        return np.ones(len(indices))

    def shifted(self, change: float) -> "PerPosition":
        rates = tuple(shifted_rate(rate, change) for rate in self.rates)
        return self.model_copy(update={"conditional_rates": rates, "unconditional_rates": None})


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
        is_unsure = uniforms < self.alpha + (1.0 - self.alpha) * self.unsure
        # Of its own luck: else a draft would begin where a window has been seen to fail.
        windows = luck.child("window").uniforms(indices, counts) < self.alpha**window
        starts = len(uniforms) - max_draft_len
        alive, in_window = np.ones(starts, dtype=bool), np.zeros(starts, dtype=np.int64)
        lens = np.zeros(len(uniforms), dtype=np.uint8)
        for offset in range(max_draft_len):
            here = slice(offset, offset + starts)
            by_itself = accepted[here] | (in_window > 0)
            passed = (
                ~by_itself & is_unsure[here] & windows[here] & (offset + window < max_draft_len)
            )
            alive &= by_itself | passed
            in_window = np.where(passed, window, np.maximum(in_window - 1, 0))
            lens[:starts] += alive
        return [row[: len(row) - max_draft_len] for row in split_rows(lens.tobytes(), counts)]

    def shifted(self, change: float) -> "Fly":
        return self.model_copy(update={"alpha": shifted_rate(self.alpha, change)})
