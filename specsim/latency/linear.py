"""The three-coefficient latency model."""

from typing import Any, ClassVar, Literal, final

import numpy as np

from specsim.latency._coefficients import Coefficients
from specsim.latency._form import COEFFICIENTS, Form
from specsim.latency.base import LatencyModel

__all__ = ["Linear"]


@final
class Linear(Coefficients, LatencyModel):
    """T = alpha * N_context + gamma * N_batched + delta, for steps of every kind.

    Loading the KV cache, computing on the batched tokens, and loading the weights. Source: Liu et
    al. (2024), "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput",
    eq. 7.
    """

    kind: Literal["linear"] = "linear"
    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {"alpha_ns": 39.3, "gamma_us": 21.0, "delta_ms": 5.9},
    )

    def form(self) -> Form:
        """Return the coefficients, the same for steps of every kind."""
        return np.array([COEFFICIENTS, *self.seconds, *self.seconds])
