"""Trees that grow where the drafter is sure."""

from typing import Annotated, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.acceptance.base import MAX_DRAFT_LEN
from specsim.core.step import BatchView
from specsim.core.trees import Ints, Tree
from specsim.decisions.policy import DraftsTrees, ServerView

Floats = NDArray[np.float32]


@final
class Eagle2Tree(DraftsTrees[ServerView]):
    """Expand the likeliest nodes of each depth, and verify the likeliest of all that were drafted.

    Li et al. (2024), "EAGLE-2", section 4: a node is worth the product of the confidences along its
    path. Its depth is ``num_speculative_tokens``, 6 in the paper. With `batch_tokens` the nodes are
    the likeliest of the whole batch, so that sure sequences get more of them. With ``goodput`` as
    many are verified as bring most tokens per second (Liu et al. 2024, "SmartSpec", eq. 7): the
    product of confidences is the chance that a node is accepted.
    """

    kind: Literal["eagle2_tree"] = "eagle2_tree"
    examples = ({"total_tokens": 20, "top_k": 4}, {})
    top_k: int = Field(default=10, ge=1)
    """Nodes of each depth that are expanded, and candidates of each."""
    total_tokens: int = Field(default=60, ge=1, le=MAX_DRAFT_LEN)
    """Most nodes of a sequence that are verified; 60 for 7B models in the paper, 50 for 13B."""
    batch_tokens: Annotated[int, Field(ge=0)] | Literal["goodput"] | None = None
    """Most nodes of all sequences of a step; by default there is no such limit."""

    @property
    def num_candidates(self) -> int:
        """Candidates drafted after each node."""
        return self.top_k

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        """Return the most nodes verified per sequence."""
        drafted = self.top_k + (num_speculative_tokens - 1) * self.top_k**2
        return min(self.total_tokens, drafted)

    def draft_lens(self, batch: BatchView, memory: ServerView) -> list[Tree]:
        """Return a tree for each sequence; none in mid-prefill, where it would be ignored."""
        trees = [Tree(())] * batch.size
        rows = np.flatnonzero(~batch.in_prefill)
        if not len(rows):
            return trees
        values, parents = self._grow(batch, rows, memory.max_depth)
        chosen = np.argsort(-values, axis=1, kind="stable")[:, : memory.max_draft_len]
        worth = np.take_along_axis(values, chosen, axis=1)
        is_kept = worth > 0
        if self.batch_tokens is not None:
            most = self.batch_tokens
            is_kept &= _likeliest(
                worth, _best_size(worth, batch, memory) if most == "goodput" else most
            )
        passes = (self.top_k,) * (memory.max_depth - 1)
        for row, nodes, kept, above in zip(rows.tolist(), chosen, is_kept, parents, strict=True):
            trees[row] = _tree_of(np.sort(nodes[kept]), above, passes)
        return trees

    def _grow(self, batch: BatchView, rows: Ints, depth: int) -> tuple[Floats, Ints]:
        """Return the value and the parent of every node drafted for some sequences of the batch.

        Both have shape (sequences, nodes), depth by depth.
        """
        assert batch.candidates is not None
        num, top_k, first = len(rows), self.top_k, 0
        paths = np.zeros((num, 1, 0), dtype=np.int64)
        reached = np.ones((num, 1), dtype=np.float32)
        above = np.full((num, 1), -1)
        ranks = np.arange(1, top_k + 1)
        values, parents = [], []
        for length in range(depth):
            width = paths.shape[1]
            asked = np.repeat(rows, width), paths.reshape(num * width, length)
            found = batch.candidates.after(*asked).reshape(num, width, top_k)
            level = (reached[:, :, np.newaxis] * found).reshape(num, width * top_k)
            values.append(level)
            parents.append(np.repeat(above, top_k, axis=1))
            best = np.sort(np.argsort(-level, axis=1, kind="stable")[:, :top_k], axis=1)
            reached, above = np.take_along_axis(level, best, axis=1), first + best
            kept = np.take_along_axis(paths, best[:, :, np.newaxis] // top_k, axis=1)
            paths = np.concatenate([kept, ranks[best % top_k][:, :, np.newaxis]], axis=2)
            first += level.shape[1]
        return np.concatenate(values, axis=1), np.concatenate(parents, axis=1)


def _best_size(values: Floats, batch: BatchView, server: ServerView) -> int:
    """Return how many of the likeliest nodes of a step bring most tokens per second."""
    load, gains = batch.decode_load(), -np.sort(-values, axis=None)
    emitted = load.num_requests + np.cumsum([0.0, *gains.tolist()])
    verified = load.num_requests + np.arange(len(emitted))
    return int((emitted / server.step_times(load, verified, server.max_depth)).argmax())


def _likeliest(values: Floats, most: int) -> NDArray[np.bool_]:
    """Mark the largest values of all rows together; those of one row are sorted, largest first."""
    order = np.argsort(-values.T.ravel(), kind="stable")[:most]  # ties: the first in a row
    marks = np.zeros(values.size, dtype=bool)
    marks[order] = True
    return marks.reshape(values.T.shape).T


def _tree_of(nodes: Ints, parents: Ints, passes: tuple[int, ...]) -> Tree:
    """Return the tree of some of the nodes that were drafted, which stand depth by depth."""
    places = {-1: -1, **{node: place for place, node in enumerate(nodes.tolist())}}
    return Tree(tuple(places[parent] for parent in parents[nodes].tolist()), passes)
