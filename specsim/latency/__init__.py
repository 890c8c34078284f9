"""Latency models: the duration of a forward pass."""

from collections.abc import Callable, Sequence
from functools import cached_property
from math import inf
from typing import Annotated, Any

import numpy as np

from specsim.core.errors import ProfileError
from specsim.core.families import Family, Member
from specsim.core.step import StepLoad
from specsim.latency.form import COEFFICIENTS, Form, forward_time

__all__ = ["COEFFICIENTS", "LATENCY", "LatencyModel", "NestedLatency", "one_by_one"]


class LatencyModel(Member):
    """Duration of one forward pass of one model on one kind of GPU."""

    kind: str

    @property
    def uses_pieces(self) -> bool:
        """Whether the time depends on each sequence of a step (`StepLoad.pieces`)."""
        return False

    def in_lock_step(self, data_parallel_size: int, *, expert_parallel: bool) -> "LatencyModel":
        """Return the model for data-parallel ranks of a mixture of experts.

        By default a pass takes as long as its slowest rank. Raises a ProfileError if the model does
        not know the effect of expert parallelism.
        """
        if expert_parallel:
            raise ProfileError(
                f"engine.enable_expert_parallel: latency model '{self.kind}' does not say what "
                "experts take; use a profile of kind kernels, or one that was built for it "
                "(specsim profile build --ep)"
            )
        return self

    @property
    def knows_graphs(self) -> bool:
        """Whether the time of a pass depends on whether it runs in a CUDA graph."""
        return False

    @property
    def leaves_graphs(self) -> bool:
        """Whether the engine decides which CUDA graphs are captured."""
        return False

    def in_graphs(self, sizes: tuple[int, ...] | None, default: tuple[int, ...]) -> "LatencyModel":
        """Return the model with the CUDA graphs that an engine captures.

        A model fitted to steps has those of its server, and raises a ProfileError for other sizes.

        Args:
            sizes: Sizes in the engine's settings, tokens; empty if it runs eagerly, None if the
                settings have none.
            default: Sizes that the engine captures then.
        """
        if sizes is not None:
            raise ProfileError(
                "engine.enforce_eager, max_cudagraph_capture_size: the profile "
                f"({self.kind}) does not say what passes without a CUDA graph take; leave them "
                "out, or use one composed from kernels (specsim profile build)"
            )
        return self

    def as_drafter(self) -> "LatencyModel":
        """Return the model for use as a drafter, which verifies nothing."""
        return self

    def lock_step_time(self, loads: Sequence[StepLoad]) -> float:
        """Return the seconds of a pass that ranks make together, layer by layer.

        Args:
            loads: Load of each rank.
        """
        times = [self.forward_time(load) for load in loads]
        return self.time_of_ranks(times, [load.batched_tokens for load in loads])

    def time_of_ranks(self, times: Sequence[float], tokens: Sequence[int]) -> float:
        """Return the seconds of a common pass, from the time of each rank by itself.

        Args:
            times: `forward_time` of each rank.
            tokens: Batched tokens of each.
        """
        return max(times)

    @property
    def slowest_up_to(self) -> float:
        """Batched tokens per rank up to which a common pass takes the time of its slowest rank."""
        is_own = type(self).time_of_ranks is not LatencyModel.time_of_ranks
        return -inf if is_own else inf

    @property
    def waits_for_slowest(self) -> bool:
        """Whether a common pass takes as long as the slowest rank by itself."""
        return type(self).lock_step_time is LatencyModel.lock_step_time

    def form(self) -> Form | None:
        """Return the formula as an array for loops (`specsim.latency.form`).

        None if the model is in Python; `forward_time` is then called for every step.
        """
        return None

    @cached_property
    def listed_form(self) -> Any:
        """The form as Python reads it fastest; a ProfileError if there is none."""
        form = self.form()
        if form is None:
            raise ProfileError(
                f"latency model '{self.kind}' says neither `form` nor `forward_time`; write one"
            )
        return form.tolist()

    def forward_time(self, load: StepLoad) -> float:
        """Return the seconds of a forward pass; by default from the form.

        Positive, and never falling with context or batched tokens.

        Args:
            load: At least one batched token. Any count may be an array; the result is then an
                array.
        """
        context, tokens, size, prefill = load[:4]
        if isinstance(context + tokens + size + prefill, np.ndarray):
            if self.listed_form[0] == COEFFICIENTS:
                return _times_of_coefficients(self.listed_form, load)
            return one_by_one(self.forward_time, load)
        return forward_time(self.listed_form, context, tokens, size, prefill)


def _times_of_coefficients(form: Any, load: StepLoad) -> Any:
    """Return the seconds of a load whose counts are arrays, computed at once by the formula.

    Fits evaluate ten thousand steps, a thousand times.
    """
    context, tokens, _, prefill = np.broadcast_arrays(*load[:4])
    alpha, numbers = np.where(prefill, 4, 1), np.array(form)
    return numbers[alpha] * context + numbers[alpha + 1] * tokens + numbers[alpha + 2]


def one_by_one(forward_time: Callable[[StepLoad], float], load: StepLoad) -> float:
    """Return the seconds of a load whose counts are arrays, for a model that takes numbers only.

    Counts that are numbers hold for all steps; pieces are ignored. The result is an array, although
    it is typed as a float, like `forward_time`.
    """
    counts = np.broadcast_arrays(*load[:4])
    rows = zip(*(count.ravel().tolist() for count in counts), strict=True)
    times: Any = np.array([forward_time(StepLoad(*row)) for row in rows])
    shaped: float = times.reshape(counts[0].shape)
    return shaped


LATENCY = Family("latency", LatencyModel)
NestedLatency = Annotated[LatencyModel, LATENCY, LATENCY.any_member]
"""Type of a field that holds a member inside a member."""
