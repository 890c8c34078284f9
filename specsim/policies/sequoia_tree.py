"""Trees of the shape that is best on average, by how likely each rank of the candidates is."""

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specsim.acceptance.base import MAX_DRAFT_LEN
from specsim.core.step import BatchView, StepOutcome
from specsim.core.trees import Path, Tree, rank_rates
from specsim.decisions.policy import DraftsTrees, ServerView
from specsim.policies.parts.estimate import PRIOR_TRIALS
from specsim.policies.parts.growth import outcomes_of


@dataclass(slots=True)
class _Memory:
    server: ServerView
    hits: NDArray[np.float64]  # by rank: candidates accepted, fading
    trials: NDArray[np.float64]  # by rank: candidates tried after all better ones failed, fading
    steps: int  # until the trees are computed anew
    trees: list[list[Tree]]  # by depth, then by nodes
    lens: NDArray[np.float64]
    """Mean tokens that each tree emits, bonus token included; shape (depths, nodes)."""


@final
class SequoiaTree(DraftsTrees[_Memory]):
    """The tree that emits most tokens, of the size and depth of the highest goodput.

    Chen et al. (2024), "Sequoia", sections 3.1 and 3.3: a candidate's chance of acceptance depends
    on its rank alone. These chances tell which tree of each size and depth emits most tokens, and
    step times tell which of these trees to draft. The paper finds the trees by a dynamic program
    over chances measured beforehand. Here the chances are learned during the run; as they never
    rise with the rank, the nodes of the likeliest paths form that tree.
    """

    kind: Literal["sequoia_tree"] = "sequoia_tree"
    examples = ({}, {"num_nodes": 6, "max_width": 3})
    num_nodes: int | None = Field(default=None, ge=1, le=MAX_DRAFT_LEN)
    """Nodes of the tree, fixed; by default goodput decides, up to `max_nodes`."""
    max_nodes: int = Field(default=64, ge=1, le=MAX_DRAFT_LEN)
    """Most nodes that goodput considers."""
    max_width: int = Field(default=8, ge=1, le=MAX_DRAFT_LEN)
    """Most candidates after one node."""
    window: int = Field(default=100, ge=1)
    """Steps after which an observation of acceptance has faded to 1/e."""
    interval: int = Field(default=50, ge=1)
    """Steps after which the trees are computed anew."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """Chance of the first candidate before any verification; that of rank r is prior / r."""

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        return self.num_nodes or self.max_nodes

    def start(self, server: ServerView) -> _Memory:
        hits = PRIOR_TRIALS * self.prior / np.arange(1, self.max_width + 1)
        trials = np.full(self.max_width, PRIOR_TRIALS)
        memory = _Memory(server, hits, trials, 0, [], np.zeros((0, 0)))
        self._remake(memory)
        return memory

    def draft_lens(self, batch: BatchView, memory: _Memory) -> Tree:
        if memory.steps >= self.interval:
            self._remake(memory)
        memory.steps += 1
        load = batch.decode_load()
        if self.num_nodes is not None or not load.num_requests:
            return memory.trees[-1][-1]
        num, server = load.num_requests, memory.server
        verified = num * np.arange(1, memory.lens.shape[1] + 1)
        times = [server.step_times(load, verified, depth + 1) for depth in range(len(memory.trees))]
        rates: NDArray[np.float64] = memory.lens / np.array(times)
        rates[:, 0] = 1.0 / server.step_time(load, 0)
        depth, size = divmod(int(rates.argmax()), rates.shape[1])
        tree: Tree = memory.trees[int(depth)][int(size)]
        return tree

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Count the rank accepted at each node reached, and the ranks that failed there."""
        keep = 1.0 - 1.0 / self.window
        ranks = np.arange(1, self.max_width + 1)
        prior = PRIOR_TRIALS * (1.0 - keep)
        memory.hits = keep * memory.hits + prior * self.prior / ranks
        memory.trials = keep * memory.trials + prior
        for tree, nodes, path, times in outcomes_of(outcome):
            for width, rank in zip(tree.tried_widths(path, nodes), (*path, 0), strict=True):
                memory.trials[: rank or width] += times
                if rank:
                    memory.hits[rank - 1] += times

    def alpha_estimate(self, memory: _Memory) -> float:
        """Return the acceptance rate of the first candidate."""
        return float(memory.hits[0] / memory.trials[0])

    def _remake(self, memory: _Memory) -> None:
        memory.steps = 0
        chances = np.minimum.accumulate(rank_rates((memory.hits / memory.trials).tolist()))
        depths = range(1, memory.server.max_depth + 1)
        if self.num_nodes is not None:
            depths = depths[-1:]
        memory.trees, lens = [], []
        for depth in depths:
            nodes, values = best_nodes(chances.tolist(), depth, memory.server.max_draft_len)
            memory.trees.append([Tree(nodes[:size]) for size in range(len(nodes) + 1)])
            grown = np.cumsum([1.0, *values])
            lens.append(np.pad(grown, (0, memory.server.max_draft_len + 1 - len(grown))))
        memory.lens = np.array(lens)


def best_nodes(chances: list[float], depth: int, most: int) -> tuple[Path, list[float]]:
    """Return the parents of the likeliest nodes, most likely first, and each node's chance.

    The first n of them are the tree of n nodes that emits most tokens on average.

    Args:
        chances: P(the candidate of a rank is accepted), by rank, never rising.
        depth: Most tokens on a path.
        most: Number of nodes.
    """
    heap = [(-chances[0], 1, -1, 1, 1.0)]  # chance, rank, parent, depth, chance of the parent
    parents: list[int] = []
    values: list[float] = []
    while heap and len(parents) < most:
        negative, rank, parent, length, before = heappop(heap)
        node = len(parents)
        parents.append(parent)
        values.append(-negative)
        if rank < len(chances):
            heappush(heap, (-before * chances[rank], rank + 1, parent, length, before))
        if length < depth:
            heappush(heap, (negative * chances[0], 1, node, length + 1, -negative))
    return tuple(parents), values
