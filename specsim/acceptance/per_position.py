"""Acceptance that depends on the place in the draft."""

from itertools import pairwise
from typing import Annotated, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.acceptance.base import DrawnAcceptance, runs_below
from specsim.core.rng import Luck

Rate = Annotated[float, Field(ge=0, le=1)]


@final
class PerPosition(DrawnAcceptance):
    """The j-th token of a draft is accepted with its own probability.

    Two conventions are in use and must be told apart, so exactly one of the fields is given:
    `conditional_rates` are P(token j accepted | all before it were); `unconditional_rates` are
    P(tokens 1..j all accepted), non-increasing, as vLLM reports them
    (``spec_decode_per_position_acceptance_rates``, ``synthetic_acceptance_rates``). Tokens beyond
    the last rate are rejected.
    """

    kind: Literal["per_position"] = "per_position"
    examples = (
        {"conditional_rates": [0.8, 0.7, 0.6]},
        {"unconditional_rates": [0.8, 0.56, 0.34]},
    )
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

    def drawn_lens(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.uint8]:
        """Follow every possible draft token by token; position p + j holds the luck of token j."""
        return runs_below(luck.uniforms(indices, counts), self.rates[:max_draft_len])

    def position_rates(self, num_positions: int) -> list[float]:
        """Return the conditional rates, 0 beyond the last."""
        return (self.rates + [0.0] * num_positions)[:num_positions]
