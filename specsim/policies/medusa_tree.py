"""Trees of candidates, their widths chosen by goodput."""

from dataclasses import dataclass
from itertools import count, product
from typing import Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.core.step import BatchView, StepOutcome
from specsim.core.trees import Tree
from specsim.decisions.policy import DraftsTrees, ServerView
from specsim.policies.parts.estimate import PRIOR_TRIALS
from specsim.policies.parts.growth import checked_nodes, nodes_of, outcomes_of


@dataclass(slots=True)
class _Memory:
    server: ServerView
    trees: list[Tree]
    verified: NDArray[np.int64]
    """Batched tokens of a sequence with each tree: its nodes and the last token."""
    lens: "TreeLens"
    alpha: float
    hits: list[float]  # by width: positions at which a candidate was accepted, fading
    trials: list[float]  # by width: positions tried, fading


@final
class MedusaTree(DraftsTrees[_Memory]):
    """Top-k_h candidates of each head h, all linked; goodput picks k_1..k_H, or they are fixed.

    Liu et al. (2024), "SmartSpec", sections 4.4 and 7.2.2, after Cai et al. (2024), "Medusa". A
    tree of widths k_1..k_H batches sum over h of k_1 * ... * k_h tokens, of which at most H can be
    accepted, so that it pays at low load only.
    """

    kind: Literal["medusa_tree"] = "medusa_tree"
    examples = ({}, {"widths": [2, 2, 2]})
    widths: tuple[int, ...] | None = Field(default=None, min_length=1)
    """Candidates per head, fixed; by default goodput decides."""
    max_width: int | None = Field(default=None, ge=1)
    """Most candidates per head that goodput considers; by default 3."""
    window: int = Field(default=50, ge=1)
    """Steps after which an observation of acceptance has faded to 1/e."""
    prior: float = Field(default=0.7, ge=0, le=1)
    """alpha before any draft has been verified."""

    @model_validator(mode="after")
    def _check_widths(self) -> Self:
        if self.widths is not None and self.max_width is not None:
            raise ValueError("max_width is not used where widths are fixed; give one of them")
        return self

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        """Return the nodes of the widest tree; a ValueError if its widths are not possible."""
        widths = self.widths or (self._widest,) * num_speculative_tokens
        if len(widths) > num_speculative_tokens:
            raise ValueError(
                f"policy.widths {list(widths)} names {len(widths)} heads, but "
                f"engine.speculative_config.num_speculative_tokens = {num_speculative_tokens}; "
                "raise that or shorten widths"
            )
        if min(widths) < 1:
            raise ValueError(f"policy.widths {list(widths)}: each must be at least 1")
        return checked_nodes(widths)

    def start(self, server: ServerView) -> _Memory:
        if self.widths is not None:
            shapes = [self.widths]
        else:
            widest, most = self._widest, server.max_draft_len
            depth = next(d for d in count() if nodes_of((widest,) * d) >= most)
            shapes = [
                widths
                for length in range(depth + 1)
                for widths in product(range(1, widest + 1), repeat=length)
            ]
        trees = [Tree.of_widths(widths) for widths in shapes]
        depth = max(map(len, shapes))
        padded = [widths + (0,) * (depth - len(widths)) for widths in shapes]
        verified = np.array([1 + tree.num_nodes for tree in trees])
        table = np.array(padded).reshape(-1, depth)
        hits, trials = np.zeros((2, table.max() + 1)).tolist()
        return _Memory(server, trees, verified, TreeLens(table), self.prior, hits, trials)

    @property
    def _widest(self) -> int:
        return 3 if self.max_width is None else self.max_width

    def draft_lens(self, batch: BatchView, memory: _Memory) -> Tree:
        if len(memory.trees) == 1:
            return memory.trees[0]
        load = batch.decode_load()
        if not load.num_requests:
            return memory.trees[0]
        emitted = memory.lens(memory.alpha)
        tokens = load.num_requests * memory.verified
        rates = emitted / memory.server.step_times(load, tokens, 1)
        rates[0] = emitted[0] / memory.server.step_time(load, 0)  # the tree without nodes
        return memory.trees[int(rates.argmax())]

    def observe(self, outcome: StepOutcome, memory: _Memory) -> None:
        """Fit alpha to the share of positions at which one of the candidates was accepted.

        With w candidates that chance is p = 1 - (1 - alpha)^w: the observed p of each width gives
        an alpha, and these are averaged, weighted by trials. The prior counts for a few trials, and
        steps without drafts fade the past as well, so that speculation is tried again.
        """
        keep = 1.0 - 1.0 / self.window
        hits = [keep * number for number in memory.hits]
        trials = [keep * number for number in memory.trials]
        for tree, nodes, path, times in outcomes_of(outcome):
            for position, width in enumerate(tree.tried_widths(path, nodes)):
                if width:
                    hits[width] += times * (position < len(path))
                    trials[width] += times
        memory.hits, memory.trials = hits, trials
        seen = [width for width, number in enumerate(trials) if number]
        misses = np.array([1.0 - min(hits[width] / trials[width], 1.0) for width in seen])
        weights = np.array([trials[width] for width in seen])
        alphas = 1.0 - misses ** np.array([1.0 / width for width in seen])
        evidence = float(np.add.reduce(alphas * weights)) + PRIOR_TRIALS * self.prior
        memory.alpha = evidence / (float(np.add.reduce(weights)) + PRIOR_TRIALS)

    def alpha_estimate(self, memory: _Memory) -> float:
        return memory.alpha


class TreeLens:
    """The mean number of tokens that each of some trees emits, bonus token included.

    1 + sum over i of the product over j <= i of [1 - (1 - alpha)^k_j]. SmartSpec's eq. 10 means
    the same but, as printed, lacks the term of no accepted token and takes 1 - alpha_{i+1} where
    the failure of all candidates, (1 - alpha_{i+1})^k_{i+1}, is meant.

    Args:
        widths: Candidates per head; 0 where a tree has ended. Of shape (trees, heads).
    """

    def __init__(self, widths: NDArray[np.int64]) -> None:
        self._widths = widths
        self._numbers = np.arange(widths.max(initial=0) + 1)

    def __call__(self, alpha: float) -> NDArray[np.float64]:
        """Return them, shape (trees,), given P(a candidate is accepted | its parent was)."""
        rates = 1.0 - (1.0 - alpha) ** self._numbers
        reached: NDArray[np.float64] = np.cumprod(rates[self._widths], axis=1).sum(axis=1)
        return 1.0 + reached
