"""The three-coefficient latency model, for all steps or for each kind of step."""

from typing import Literal, Self, final

import numpy as np
from pydantic import Field, model_validator

from specsim.core.settings import Settings
from specsim.latency.base import LatencyModel
from specsim.latency.form import COEFFICIENTS, Form


class Coefficients(Settings):
    """T = alpha * N_context + gamma * N_batched + delta.

    Loading the KV cache, computing on the batched tokens, and loading the weights. Source: Liu et
    al. (2024), "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput",
    eq. 7.
    """

    alpha_ns: float = Field(ge=0)
    """Per context token, nanoseconds."""
    gamma_us: float = Field(ge=0)
    """Per batched token, microseconds."""
    delta_ms: float = Field(ge=0)
    """Per forward pass, milliseconds."""

    @model_validator(mode="after")
    def _check_positive(self) -> Self:
        if self.gamma_us == 0 and self.delta_ms == 0:
            raise ValueError("gamma_us and delta_ms are both 0: a forward pass must take time")
        return self

    @property
    def seconds(self) -> tuple[float, float, float]:
        """alpha, gamma and delta, all in seconds."""
        return self.alpha_ns * 1e-9, self.gamma_us * 1e-6, self.delta_ms * 1e-3


@final
class Linear(Coefficients, LatencyModel):
    """T = alpha * N_context + gamma * N_batched + delta, for steps of every kind.

    See `Coefficients`: Liu et al. (2024), "SmartSpec", eq. 7.
    """

    kind: Literal["linear"] = "linear"
    examples = ({"alpha_ns": 39.3, "gamma_us": 21.0, "delta_ms": 5.9},)

    def form(self) -> Form:
        return np.array([COEFFICIENTS, *self.seconds, *self.seconds])


@final
class TwoRegime(LatencyModel):
    """Decode-only steps and steps with prefill each have coefficients of their own.

    A step that carries prefill runs another attention kernel, in which a context token costs about
    1.7 times as much as in a decode-only step, and other matrix sizes. One fit over both kinds of
    step has to miss one of them. Coefficients as in `linear`: Liu et al.
    (2024), "SmartSpec", eq. 7.
    """

    kind: Literal["two_regime"] = "two_regime"
    examples = (
        {
            "decode": {"alpha_ns": 130.0, "gamma_us": 40.0, "delta_ms": 16.0},
            "mixed": {"alpha_ns": 220.0, "gamma_us": 95.0, "delta_ms": 16.0},
        },
    )
    decode: Coefficients
    """Of steps without prefill."""
    mixed: Coefficients
    """Of steps with prefill."""

    def form(self) -> Form:
        return np.array([COEFFICIENTS, *self.decode.seconds, *self.mixed.seconds])
