"""Lengths that are equally likely within bounds."""

from typing import Annotated, Literal, Self, final

import numpy as np
from pydantic import Field, model_validator

from specsim.workload.lengths import Lengths
from specsim.workload.trace import Trace

Bound = Annotated[int, Field(ge=1)]


@final
class Uniform(Lengths):
    """Every length between two bounds, both included, is equally likely."""

    kind: Literal["uniform"] = "uniform"
    examples = ({"prompt": [256, 768], "output": [64, 192]},)
    prompt: tuple[Bound, Bound]
    """(shortest, longest), tokens."""
    output: tuple[Bound, Bound]
    """(shortest, longest), tokens."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        for name in ("prompt", "output"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} = [{low}, {high}]: the shortest comes first")
        return self

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return uniform lengths, prompt and output independent."""
        return Trace(
            rng.integers(*self.prompt, count, endpoint=True),
            rng.integers(*self.output, count, endpoint=True),
        )
