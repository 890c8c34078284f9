"""Lengths with a long tail."""

from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.core.settings import Settings
from specsim.workload.lengths import Lengths, to_tokens
from specsim.workload.trace import Trace


class _Tail(Settings):
    mean: float = Field(ge=1)
    """Of the length itself, tokens."""
    sigma: float = Field(ge=0)
    """Standard deviation of the logarithm of the length."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        mu = np.log(self.mean) - self.sigma**2 / 2
        return to_tokens(rng.lognormal(mu, self.sigma, count))


@final
class Lognormal(Lengths):
    """Lognormal lengths, given by the mean length and the sigma of its logarithm."""

    kind: Literal["lognormal"] = "lognormal"
    examples = ({"prompt": {"mean": 1000, "sigma": 0.5}, "output": {"mean": 250, "sigma": 0.5}},)
    prompt: _Tail
    output: _Tail

    def draw(self, rng: np.random.Generator, count: int) -> Trace:
        """Return lognormal lengths, prompt and output independent."""
        return Trace(self.prompt.draw(rng, count), self.output.draw(rng, count))
