"""Step times as they were measured: three coefficients, of all steps or each kind, or a table."""

from collections.abc import Sequence
from typing import Literal, Self, final

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from specsim.core.settings import Settings
from specsim.latency import LatencyModel
from specsim.latency.form import COEFFICIENTS, TABLE, Form


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


def check_rising(name: str, axis: Sequence[int]) -> None:
    """Raise a ValueError unless the numbers rise."""
    if list(axis) != sorted(set(axis)):
        raise ValueError(f"{name} = {list(axis)}: must rise")


def check_table(table: Settings, rows: str, columns: str, times: str) -> None:
    """Raise a ValueError unless both axes rise, and there is a time for each pair of them.

    All three are named as fields.
    """
    for name in (rows, columns):
        check_rising(name, getattr(table, name))
    size, width, found = (getattr(table, rows), getattr(table, columns), getattr(table, times))
    if len(found) != len(size) or any(len(row) != len(width) for row in found):
        raise ValueError(
            f"{times}: must be {len(size)} rows of {len(width)} times, as many as the axes"
        )


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
        check_table(self, "context_tokens", "batched_tokens", "times_ms")
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
