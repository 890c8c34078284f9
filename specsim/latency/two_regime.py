"""The three-coefficient model, once for decode-only steps and once for steps with prefill."""

from typing import Literal, final

import numpy as np

from specsim.core.step import StepLoad
from specsim.latency._form import COEFFICIENTS, Form
from specsim.latency.base import LatencyModel
from specsim.latency.linear import Coefficients


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

    def forward_time(self, load: StepLoad) -> float:
        if isinstance(load.prefill_tokens, np.ndarray):
            decode, mixed = self.decode.forward_time(load), self.mixed.forward_time(load)
            return np.where(load.prefill_tokens > 0, mixed, decode)
        return (
            self.mixed.forward_time(load) if load.prefill_tokens else self.decode.forward_time(load)
        )

    def form(self) -> Form:
        return np.array([COEFFICIENTS, *self.decode.seconds, *self.mixed.seconds])
