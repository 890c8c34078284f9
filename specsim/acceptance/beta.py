"""Acceptance that differs from request to request."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, final

import numpy as np
from pydantic import Field

from specsim.acceptance.base import Acceptance, run_lengths, split_tables
from specsim.core.request import Request
from specsim.core.rng import Luck

__all__ = ["Beta"]


@final
class Beta(Acceptance):
    """Each request has its own alpha, drawn from Beta(a, b); within a request it stays the same.

    The mean of alpha over requests is a / (a + b); the smaller a + b, the more requests differ.
    """

    kind: Literal["beta"] = "beta"
    examples: ClassVar[tuple[dict[str, Any], ...]] = ({"a": 6.0, "b": 3.0},)
    a: float = Field(gt=0)
    b: float = Field(gt=0)

    def survival_lens(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes]:
        """Return the run of accepted positions from each output position on."""
        from scipy.special import betaincinv  # noqa: PLC0415 - scipy takes 0.2 s

        indices = [request.index for request in requests]
        counts = [request.output_len + max_draft_len for request in requests]
        alphas = betaincinv(self.a, self.b, luck.child("request").per_request(indices))
        accepted = luck.uniforms(indices, counts) < np.repeat(alphas, counts)
        # A run that leaves a request's positions does so only beyond its output.
        lens = run_lengths(accepted, max_draft_len)
        return split_tables(lens, requests, stride_extra=max_draft_len)
