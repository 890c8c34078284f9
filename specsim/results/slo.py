"""Slo: the limits that a request must keep."""

from typing import Self

from pydantic import Field, model_validator

from specsim.core.settings import Settings


class Slo(Settings):
    """Limits that a request must keep, all of them, to count as good."""

    ttft_ms: float | None = Field(default=None, gt=0)
    """Time to first token."""
    tpot_ms: float | None = Field(default=None, gt=0)
    """Time per output token after the first."""
    e2el_ms: float | None = Field(default=None, gt=0)
    """End-to-end latency."""

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("names no limit; give ttft_ms, tpot_ms or e2el_ms")
        return self
