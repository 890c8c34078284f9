"""Latency models: how long a forward pass lasts, which every one of them answers."""

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
        """Whether it looks at each sequence of a step (`StepLoad.pieces`) where they are given."""
        return False

    def in_lock_step(self, data_parallel_size: int, *, expert_parallel: bool) -> "LatencyModel":
        """Return it as that of data-parallel ranks of a mixture of experts.

        Without a word about experts, a pass takes as long as that of its slowest rank. A
        ProfileError if it does not know what expert parallelism changes.
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
        """Whether it says what a pass takes with a CUDA graph, and what without."""
        return False

    @property
    def leaves_graphs(self) -> bool:
        """Whether the engine decides which CUDA graphs are captured."""
        return False

    def in_graphs(self, sizes: tuple[int, ...] | None, default: tuple[int, ...]) -> "LatencyModel":
        """Return it with the CUDA graphs that an engine captures.

        One that was fitted to steps has its server's. A ProfileError if others are named.

        Args:
            sizes: As the engine's settings name them, tokens; none where it runs eagerly, and None
                where they name none.
            default: Which it captures then.
        """
        if sizes is not None:
            raise ProfileError(
                "engine.enforce_eager, max_cudagraph_capture_size: the profile "
                f"({self.kind}) does not say what passes without a CUDA graph take; leave them "
                "out, or use one composed from kernels (specsim profile build)"
            )
        return self

    def as_drafter(self) -> "LatencyModel":
        """Return it as that of a model which drafts, and verifies nothing."""
        return self

    def lock_step_time(self, loads: Sequence[StepLoad]) -> float:
        """Return how long ranks take that pass through every layer together, seconds.

        Args:
            loads: One of each rank.
        """
        times = [self.forward_time(load) for load in loads]
        return self.time_of_ranks(times, [load.batched_tokens for load in loads])

    def time_of_ranks(self, times: Sequence[float], tokens: Sequence[int]) -> float:
        """Return how long ranks take together, by what each would take by itself, seconds.

        Args:
            times: `forward_time` of each rank.
            tokens: Batched tokens of each.
        """
        return max(times)

    @property
    def slowest_up_to(self) -> float:
        """Batched tokens of each rank up to which that is the time of the slowest by itself."""
        is_own = type(self).time_of_ranks is not LatencyModel.time_of_ranks
        return -inf if is_own else inf

    @property
    def waits_for_slowest(self) -> bool:
        """Whether ranks together take as long as the slowest of them by itself."""
        return type(self).lock_step_time is LatencyModel.lock_step_time

    def form(self) -> Form | None:
        """Return its formula as numbers, which loops compute with; None if it is Python.

        Then every step asks `forward_time`.
        """
        return None

    @cached_property
    def listed_form(self) -> Any:
        """Its form as Python reads it soonest; a ProfileError if it has none."""
        form = self.form()
        if form is None:
            raise ProfileError(
                f"latency model '{self.kind}' says neither `form` nor `forward_time`; write one"
            )
        return form.tolist()

    def forward_time(self, load: StepLoad) -> float:
        """Return how long a forward pass lasts, seconds; by default by its form.

        Positive, and not falling with the context or the batched tokens.

        Args:
            load: With at least one batched token. Any count may be an array, the result then is
                one.
        """
        context, tokens, size, prefill = load[:4]
        if isinstance(context + tokens + size + prefill, np.ndarray):
            if self.listed_form[0] == COEFFICIENTS:
                return _times_of_coefficients(self.listed_form, load)
            return one_by_one(self.forward_time, load)
        return forward_time(self.listed_form, context, tokens, size, prefill)


def _times_of_coefficients(form: Any, load: StepLoad) -> Any:
    """Return the times of a load whose counts are arrays all at once, by the formula of `form`.

    A fit asks for those of ten thousand steps, a thousand times.
    """
    context, tokens, _, prefill = np.broadcast_arrays(*load[:4])
    alpha, numbers = np.where(prefill, 4, 1), np.array(form)
    return numbers[alpha] * context + numbers[alpha + 1] * tokens + numbers[alpha + 2]


def one_by_one(forward_time: Callable[[StepLoad], float], load: StepLoad) -> float:
    """Return the times of a load whose counts are arrays, for a model that takes numbers only.

    Counts that are numbers hold for all; pieces are left out. The result is an array, typed as the
    base class types it: a caller who passes arrays knows what comes back.
    """
    counts = np.broadcast_arrays(*load[:4])
    rows = zip(*(count.ravel().tolist() for count in counts), strict=True)
    times: Any = np.array([forward_time(StepLoad(*row)) for row in rows])
    shaped: float = times.reshape(counts[0].shape)
    return shaped


LATENCY = Family("latency", LatencyModel)
NestedLatency = Annotated[LatencyModel, LATENCY, LATENCY.any_member]
"""Type of a field that holds a member inside a member."""
