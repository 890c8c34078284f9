"""CUDA-graph padding around another latency model."""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator

from specsim.core.step import StepLoad
from specsim.hardware.cuda_graphs import capture_sizes, default_largest
from specsim.latency import LatencyModel, NestedLatency, one_by_one
from specsim.latency.form import COMPOSED, STAIRCASE, Form


@final
class CudaGraph(LatencyModel):
    """A staircase: a step is padded to the next size that a CUDA graph was captured for.

    The padding tokens are computed on, but read no context. A step above the largest size runs
    without a graph, unpadded, and may pay for launching its kernels one by one.
    """

    kind: Literal["cuda_graph"] = "cuda_graph"
    examples = (
        {
            "inner": {"kind": "linear", "alpha_ns": 39.3, "gamma_us": 21.0, "delta_ms": 5.9},
            "max_num_seqs": 256,
        },
    )
    inner: NestedLatency
    """Latency model that gives the time of the padded step."""
    capture_sizes: tuple[PositiveInt, ...] | None = None
    """Sizes of the CUDA graphs, rising, tokens; by default vLLM's for `max_num_seqs`."""
    max_num_seqs: int = Field(default=256, gt=0)
    """Max_num_seqs of the engine, from which vLLM derives its default sizes."""
    eager_ms: float = Field(default=0.0, ge=0)
    """Time added to a step that runs without a graph, milliseconds."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        sizes = self.sizes
        if not sizes or list(sizes) != sorted(set(sizes)):
            raise ValueError(f"capture_sizes = {list(sizes)}: name at least one size, rising")
        return self

    @property
    def sizes(self) -> tuple[int, ...]:
        if self.capture_sizes is None:
            return capture_sizes(default_largest(self.max_num_seqs))
        return self.capture_sizes

    @property
    def uses_pieces(self) -> bool:
        return self.inner.uses_pieces

    @cached_property
    def _padded(self) -> NDArray[np.int64]:
        """Size that each number of tokens is padded to, shape (largest size + 1,)."""
        counts = np.arange(self.sizes[-1] + 1)
        sizes = np.array(self.sizes)
        return sizes[np.searchsorted(sizes, counts)]

    def forward_time(self, load: StepLoad) -> float:
        padded, tokens = self._padded, load.batched_tokens
        if any(isinstance(count, np.ndarray) for count in load[:4]):
            return one_by_one(self.forward_time, load)
        if tokens >= len(padded):
            return self.inner.forward_time(load) + self.eager_ms * 1e-3
        return self.inner.forward_time(load._replace(batched_tokens=int(padded[tokens])))

    def in_lock_step(self, data_parallel_size: int, *, expert_parallel: bool) -> "CudaGraph":
        inner = self.inner.in_lock_step(data_parallel_size, expert_parallel=expert_parallel)
        return self.model_copy(update={"inner": inner})

    def lock_step_time(self, loads: Sequence[StepLoad]) -> float:
        """Return the time of a pass whose ranks are all padded to the largest.

        Without padding if a rank has too many tokens for a graph: then no rank uses one (vLLM
        0.32.0 ``v1/worker/dp_utils.py _synchronize_dp_ranks``).
        """
        largest = max(load.batched_tokens for load in loads)
        if largest >= len(self._padded):
            return self.inner.lock_step_time(loads) + self.eager_ms * 1e-3
        size = int(self._padded[largest])
        return self.inner.lock_step_time([load._replace(batched_tokens=size) for load in loads])

    def form(self) -> Form | None:
        inside = self.inner.form()
        if inside is None or inside[0] in (STAIRCASE, COMPOSED):
            return None
        padded = self._padded
        return np.array([STAIRCASE, self.eager_ms * 1e-3, len(padded), *padded, *inside])
