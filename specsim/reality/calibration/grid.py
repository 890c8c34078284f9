"""The designed grid: which steps are measured to find out what a step costs, in which order."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from specsim.core.step import StepLoad

__all__ = ["Grid", "GridPoint", "Sample"]


class GridPoint(NamedTuple):
    """A step: some sequences that decode, perhaps a prompt that is read, and a draft at its end."""

    num_decodes: int
    draft_len: int
    """Drafts of every decode, verified and made anew, tokens."""
    context_len: int
    """Of every decode, tokens."""
    chunk_len: int = 0
    """Prompt tokens that are read beside them; 0 in a decode-only step."""

    @property
    def load(self) -> StepLoad:
        """The size of the target's forward pass."""
        return StepLoad(
            self.num_decodes * self.context_len,
            self.num_decodes * (self.draft_len + 1) + self.chunk_len,
            self.num_decodes + (self.chunk_len > 0),
            self.chunk_len,
        )


class Sample(NamedTuple):
    """A step that was measured."""

    point: GridPoint
    target_seconds: float
    draft_seconds: float
    probed_at: float = 0.0
    """When the machine's speed was probed, shortly before, on one clock for all samples."""
    probe_seconds: float = 0.0
    """How long that took; 0 if it was not."""


@dataclass(frozen=True)
class Grid:
    """All combinations that a server with these limits can run."""

    num_decodes: tuple[int, ...]
    draft_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    chunk_lens: tuple[int, ...]
    """Of steps with prefill."""
    chunk_decodes: tuple[int, ...]
    """Decodes beside a chunk."""
    max_batched_tokens: int
    rounds: int
    """How often every point is measured before the first case is run."""

    @property
    def points(self) -> list[GridPoint]:
        """Decode-only steps, then those with prefill; without repetitions."""
        decodes = [
            GridPoint(*each)
            for each in product(self.num_decodes, self.draft_lens, self.context_lens)
        ]
        mixed = [
            GridPoint(num, draft_len, self.context_lens[len(self.context_lens) // 2], chunk_len)
            for chunk_len, num, draft_len in product(
                self.chunk_lens, self.chunk_decodes, self.draft_lens
            )
        ]
        fitting = [
            point
            for point in decodes + mixed
            if point.load.batched_tokens <= self.max_batched_tokens
        ]
        return list(dict.fromkeys(fitting))

    def schedule(self, seed: int) -> Iterator[list[GridPoint]]:
        """Yield rounds without end, each with all points in an order of its own.

        So that a machine that gets slower meanwhile does so for all points alike.
        """
        rng = np.random.default_rng(seed)
        points = self.points
        while True:
            yield [points[place] for place in rng.permutation(len(points))]
