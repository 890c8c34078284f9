"""The three-coefficient model, once for decode-only steps and once for steps with prefill."""

from typing import Any, ClassVar, Literal, Self, final

import numpy as np
from pydantic import Field, model_validator

from specsim.latency.base import LatencyModel
from specsim.settings import Settings
from specsim.step import StepLoad

__all__ = ["Coefficients", "TwoRegime"]


class Coefficients(Settings):
    """T = alpha * N_context + gamma * N_batched + delta."""

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

    def time(self, load: StepLoad) -> float:
        """Return the time of a step, seconds."""
        return (
            self.alpha_ns * 1e-9 * load.context_tokens
            + self.gamma_us * 1e-6 * load.batched_tokens
            + self.delta_ms * 1e-3
        )


@final
class TwoRegime(LatencyModel):
    """Decode-only steps and steps with prefill each have coefficients of their own.

    A step that carries prefill runs another attention kernel, in which a context token costs about
    1.7 times as much as in a decode-only step, and other matrix sizes. One fit over both kinds of
    step has to miss one of them. Coefficients as in `linear`: Liu et al.
    (2024), "SmartSpec", eq. 7.
    """

    kind: Literal["two_regime"] = "two_regime"
    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {
            "decode": {"alpha_ns": 130.0, "gamma_us": 40.0, "delta_ms": 16.0},
            "mixed": {"alpha_ns": 220.0, "gamma_us": 95.0, "delta_ms": 16.0},
        },
    )
    decode: Coefficients
    """Of steps without prefill."""
    mixed: Coefficients
    """Of steps with prefill."""

    def forward_time(self, load: StepLoad) -> float:
        """Return the time by the coefficients of the step's kind."""
        if isinstance(load.prefill_tokens, np.ndarray):
            decode, mixed = self.decode.time(load), self.mixed.time(load)
            return np.where(load.prefill_tokens > 0, mixed, decode)
        return self.mixed.time(load) if load.prefill_tokens else self.decode.time(load)
