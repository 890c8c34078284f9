"""What GPUs take to exchange tensors: one measured table per operation and number of GPUs."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from specsim.core.settings import Settings

Operation = Literal["all_reduce", "all_gather", "reduce_scatter"]


class Collective(Settings):
    """Measured times of one operation between some GPUs."""

    operation: Operation
    gpus: int = Field(ge=2)
    measured: str = Field(min_length=1)
    """Engine, version and kernel, or where else the times come from."""
    message_bytes: Annotated[tuple[PositiveFloat, ...], Field(min_length=2)]
    """What is summed up, or what each GPU has after an all-gather or before a reduce-scatter."""
    us: tuple[PositiveFloat, ...]

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        if len(self.us) != len(self.message_bytes):
            raise ValueError(f"us has {len(self.us)} numbers, message_bytes "
                             f"{len(self.message_bytes)}; give one time per size")  # fmt: skip
        if any(np.diff(self.message_bytes) <= 0):
            raise ValueError("message_bytes must rise; sort the rows")
        return self

    @property
    def version(self) -> str:
        """ENGINE/VERSION of the measurement, if `measured` names a kernel table."""
        return "/".join(self.measured.split()[1:3])

    def time(self, message_bytes: float, gpus: int) -> float:
        """Return the time for a message, microseconds.

        Straight between measured sizes; beyond the largest as from the last to it. Among another
        number of GPUs than measured, as for the message of which each of those sends as much in
        NCCL's rings (nccl-tests ``doc/PERFORMANCE.md``).
        """
        share = (gpus - 1) / gpus * self.gpus / (self.gpus - 1)
        size, (last, largest), us = message_bytes * share, self.message_bytes[-2:], self.us
        if size > largest:
            rise = max(us[-1] - us[-2], 0.0)  # a larger message never takes less
            return us[-1] + (size - largest) * rise / (largest - last)
        return float(np.interp(size, self.message_bytes, us))


def of_operation(
    collectives: Sequence[Collective], operation: Operation, gpus: int
) -> Collective | None:
    """Return the table of an operation among so many GPUs, or the nearest number; None without."""
    found = [each for each in collectives if each.operation == operation]
    return min(found, key=lambda each: abs(each.gpus - gpus), default=None)
