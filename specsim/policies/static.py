"""Draft lengths that are fixed: none, one, or one per batch size."""

from typing import Annotated, Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from specsim.core.step import BatchView
from specsim.decisions.policy import BySize, Policy, ServerView
from specsim.policies.parts.tiers_by_size import range_of


def _some(given: Any) -> Any:
    if given == 0:
        raise PydanticCustomError("no_draft", "Should be at least 1; policy off drafts nothing")
    return given


@final
class Static(Policy[ServerView]):
    """Draft k tokens for every sequence in every step: a server started with that k.

    Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via Speculative Decoding".
    """

    kind: Literal["static"] = "static"
    examples = ({"k": 3}, {})
    k: Annotated[int | None, BeforeValidator(_some)] = Field(default=None, ge=1)
    """Draft length, tokens; by default num_speculative_tokens."""

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        """Return k: look-ahead slots and padding are those of a server started with it."""
        k = num_speculative_tokens if self.k is None else self.k
        if k > num_speculative_tokens:
            raise ValueError(
                f"policy.k = {k} exceeds engine.speculative_config.num_speculative_tokens = "
                f"{num_speculative_tokens}; raise that, it is the longest draft of any policy"
            )
        return k

    @property
    def is_dynamic(self) -> bool:
        return False

    def draft_lens(self, batch: BatchView, memory: ServerView) -> int:
        return memory.max_draft_len


@final
class Off(Policy):
    """Never draft: a server started without ``speculative_config``, the baseline of comparisons.

    No look-ahead slots, no draft weights; not to be confused with ``static`` at k = 0, which is
    not allowed, or with a dynamic policy that happens to choose 0.
    """

    kind: Literal["off"] = "off"

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        return 0

    @property
    def is_dynamic(self) -> bool:
        return False

    def draft_lens(self, batch: BatchView, memory: Any) -> int:
        return 0


@final
class Schedule(BySize[tuple[list[int], list[int]]]):
    """k by the number of sequences scheduled in the step, prefills included.

    vLLM's ``num_speculative_tokens_per_batch_size`` (0.32.0 ``v1/spec_decode/dynamic/utils.py``):
    inclusive ranges; gaps between them and the sizes beyond the last carry the previous k.
    """

    kind: Literal["schedule"] = "schedule"
    examples = ({"ranges": [[1, 8, 3], [9, 32, 1], [33, 256, 0]]},)
    ranges: tuple[tuple[int, int, int], ...] = Field(min_length=1)
    """(first batch size, last batch size, k), in any order."""

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        previous_end = 0
        for first, last, k in sorted(self.ranges):
            if k < 0:
                raise ValueError(f"range [{first}, {last}, {k}]: k must be at least 0")
            if first > last:
                raise ValueError(f"range [{first}, {last}, {k}]: first must not exceed last")
            if previous_end == 0 and first != 1:
                raise ValueError(
                    f"the ranges start at batch size {first}; the first must start at 1"
                )
            if first <= previous_end:
                raise ValueError(
                    f"range [{first}, {last}, {k}] overlaps the one that ends at {previous_end}"
                )
            previous_end = last
        return self

    def start(self, server: ServerView) -> tuple[list[int], list[int]]:
        """Return the first batch size of each range, and its k capped at the longest draft."""
        ranges = sorted(self.ranges)
        firsts = [first for first, _, _ in ranges]
        return firsts, [min(k, server.max_draft_len) for _, _, k in ranges]

    def draft_lens(self, batch: BatchView, memory: tuple[list[int], list[int]]) -> int:
        """Return the k of the range that the batch falls in, or that it lies beyond."""
        firsts, ks = memory
        return ks[range_of(firsts, batch.size)]

    def lens_by_size(self, largest: int, memory: tuple[list[int], list[int]]) -> NDArray[np.int64]:
        """Return the k of every batch size."""
        firsts, lens = memory
        ranges = np.searchsorted(firsts, np.arange(largest + 1), side="right") - 1
        return np.array(lens, dtype=np.int64)[np.maximum(ranges, 0)]
