"""Acceptance that differs from request to request."""

from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.acceptance.base import DrawnAcceptance, run_lengths
from specsim.core.rng import Luck


@final
class Beta(DrawnAcceptance):
    """Each request has its own alpha, drawn from Beta(a, b); within a request it stays the same.

    The mean of alpha over requests is a / (a + b); the smaller a + b, the more requests differ.
    """

    kind: Literal["beta"] = "beta"
    examples = ({"a": 6.0, "b": 3.0},)
    a: float = Field(gt=0)
    b: float = Field(gt=0)

    def drawn_lens(
        self, luck: Luck, indices: list[int], counts: list[int], max_draft_len: int
    ) -> NDArray[np.uint8]:
        """Return the run of accepted positions from each output position on."""
        from scipy.special import betaincinv  # noqa: PLC0415 - scipy takes 0.2 s

        alphas = betaincinv(self.a, self.b, luck.child("request").per_request(indices))
        accepted = luck.uniforms(indices, counts) < np.repeat(alphas, counts)
        return run_lengths(accepted, max_draft_len)
