"""Lengths that are all the same."""

from typing import Literal, final

import numpy as np
from pydantic import Field

from specsim.workload.lengths import Lengths
from specsim.workload.trace import Trace


@final
class ConstantLengths(Lengths):
    """Every prompt and every output has the same length."""

    kind: Literal["constant"] = "constant"
    examples = ({"prompt": 512, "output": 128},)
    prompt: int = Field(ge=1)
    """Tokens."""
    output: int = Field(ge=1)
    """Tokens."""

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return equal requests."""
        return Trace(np.full(count, self.prompt), np.full(count, self.output))
