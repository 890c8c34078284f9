"""Step times in a table."""

from typing import Literal, Self, final

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from specsim.core.settings import Settings
from specsim.latency.base import LatencyModel
from specsim.latency.form import TABLE, Form


class TimeTable(Settings):
    """Times on a grid of context tokens and batched tokens."""

    context_tokens: tuple[NonNegativeInt, ...] = Field(min_length=1)
    """Rising."""
    batched_tokens: tuple[NonNegativeInt, ...] = Field(min_length=1)
    """Rising."""
    times_ms: tuple[tuple[PositiveFloat, ...], ...]
    """One row per number of context tokens, in it one time per number of batched tokens."""

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        for name in ("context_tokens", "batched_tokens"):
            axis = list(getattr(self, name))
            if axis != sorted(set(axis)):
                raise ValueError(f"{name} = {axis}: must rise")
        rows, width = len(self.context_tokens), len(self.batched_tokens)
        if len(self.times_ms) != rows or any(len(row) != width for row in self.times_ms):
            raise ValueError(f"times_ms: must be {rows} rows of {width} times, as many as the axes")
        return self

    @property
    def numbers(self) -> list[float]:
        """Lengths of both axes, the axes, and the times row by row."""
        axes = [*self.context_tokens, *self.batched_tokens]
        times = [time for row in self.times_ms for time in row]
        return [len(self.context_tokens), len(self.batched_tokens), *axes, *times]


@final
class Tabulated(LatencyModel):
    """Times interpolated linearly in a table of context tokens x batched tokens.

    Beyond the table its last cell goes on.
    """

    kind: Literal["tabulated"] = "tabulated"
    examples = (
        {
            "decode": {
                "context_tokens": [0, 100_000],
                "batched_tokens": [1, 64, 256],
                "times_ms": [[16.0, 18.0, 25.0], [30.0, 32.0, 39.0]],
            }
        },
    )
    decode: TimeTable
    """Of steps without prefill."""
    mixed: TimeTable | None = None
    """Of steps with prefill; by default the same."""

    def form(self) -> Form:
        decode = self.decode.numbers
        if self.mixed is None:
            return np.array([TABLE, 2.0, *decode])
        return np.array([TABLE, 2.0 + len(decode), *decode, *self.mixed.numbers])
