"""Lengths around a mean, within bounds."""

from typing import Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.core.settings import Settings
from specsim.workload.lengths import Lengths, to_tokens
from specsim.workload.trace import Trace


class _Bell(Settings):
    mean: float
    """Of the normal distribution before it is truncated, tokens."""
    std: float = Field(ge=0)
    min: int = Field(default=1, ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if not self.min <= self.mean <= self.max:
            raise ValueError(
                f"mean = {self.mean:g} must lie within [min, max] = [{self.min}, {self.max}]"
            )
        return self

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Draw by rejection: with the mean within the bounds most draws are kept."""
        kept = np.empty(0)
        while len(kept) < count:
            values = rng.normal(self.mean, self.std, 2 * count + 16)
            inside = (values >= self.min - 0.5) & (values < self.max + 0.5)
            kept = np.concatenate([kept, values[inside]])
        return np.clip(to_tokens(kept[:count]), self.min, self.max)


@final
class TruncatedNormal(Lengths):
    """Normal lengths, redrawn until they lie within their bounds."""

    kind: Literal["truncated_normal"] = "truncated_normal"
    examples = (
        {
            "prompt": {"mean": 512, "std": 128, "max": 1024},
            "output": {"mean": 128, "std": 64, "min": 16, "max": 512},
        },
    )
    prompt: _Bell
    output: _Bell

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return truncated normal lengths, prompt and output independent."""
        return Trace(self.prompt.draw(rng, count), self.output.draw(rng, count))
