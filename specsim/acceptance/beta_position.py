"""Acceptance that differs from request to request and with the place in the draft."""

from typing import Annotated, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.acceptance.base import DrawnAcceptance, runs_below
from specsim.core.rng import Luck

Factor = Annotated[float, Field(ge=0, le=1)]


@final
class BetaPosition(DrawnAcceptance):
    """The j-th token of a draft is accepted with the request's own alpha times the j-th factor.

    Alpha is drawn once per request from Beta(a, b). P(token j accepted | all before it were) is
    alpha * factors[j - 1]; the last factor holds for all tokens after it.
    """

    kind: Literal["beta_position"] = "beta_position"
    examples = ({"a": 6.0, "b": 2.0, "factors": [1.0, 0.9, 0.8]},)
    a: float = Field(gt=0)
    b: float = Field(gt=0)
    factors: tuple[Factor, ...] = Field(min_length=1)

    def drawn_lens(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.uint8]:
        """Follow every possible draft token by token; position p + j holds the luck of token j."""
        from scipy.special import betaincinv  # noqa: PLC0415 - scipy takes 0.2 s

        alphas = betaincinv(self.a, self.b, luck.child("request").per_request(indices))
        # Dividing the luck once, not multiplying alpha anew for every token of the draft.
        needed = luck.uniforms(indices, counts) / np.repeat(np.maximum(alphas, 1e-300), counts)
        last = self.factors[-1:] * max(max_draft_len - len(self.factors), 0)
        return runs_below(needed, (self.factors + last)[:max_draft_len])
