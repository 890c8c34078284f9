"""The three coefficients that `linear` has once and `two_regime` twice."""

from typing import Self

from pydantic import Field, model_validator

from specsim.core.settings import Settings
from specsim.core.step import StepLoad

__all__ = ["Coefficients"]


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

    def forward_time(self, load: StepLoad) -> float:
        """Return alpha * context tokens + gamma * batched tokens + delta, seconds."""
        return (
            self.alpha_ns * 1e-9 * load.context_tokens
            + self.gamma_us * 1e-6 * load.batched_tokens
            + self.delta_ms * 1e-3
        )
