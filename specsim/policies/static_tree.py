"""A fixed tree of candidates."""

from typing import Literal, Self, final

from pydantic import Field, PositiveInt, model_validator

from specsim.acceptance.base import MAX_DRAFT_LEN
from specsim.core.step import BatchView
from specsim.core.trees import Tree
from specsim.decisions.policy import DraftsTrees, ServerView
from specsim.policies.parts.growth import checked_nodes


@final
class StaticTree(DraftsTrees[Tree]):
    """Draft one tree for every sequence in every step.

    The tree is given by `choices`, the paths to its nodes, as in Medusa's and EAGLE's lists (Cai et
    al. 2024; Li et al. 2024), or by `widths`, the children of every node of a depth. Widths of 1
    are a chain, which behaves as policy ``static``.
    """

    kind: Literal["static_tree"] = "static_tree"
    examples = ({"widths": [2, 2, 1]}, {"choices": [[0], [1], [0, 0], [0, 1], [0, 0, 0]]})
    widths: tuple[PositiveInt, ...] | None = Field(default=None, min_length=1)
    """Number of children of every node, by depth."""
    choices: tuple[tuple[int, ...], ...] | None = Field(default=None, min_length=1)
    """Paths of ranks from 0; the prefixes and better siblings of a path are always drafted, too."""

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        if (self.widths is None) == (self.choices is None):
            raise ValueError("give either widths or choices")
        if any(
            not path or min(path) < 0 or max(path) > MAX_DRAFT_LEN for path in self.choices or ()
        ):
            raise ValueError(f"choices: each must be a path of ranks from 0 to {MAX_DRAFT_LEN}")
        return self

    @property
    def tree(self) -> Tree:
        if self.widths is not None:
            return Tree.of_widths(self.widths)
        return Tree.of_paths(tuple(rank + 1 for rank in path) for path in self.choices or ())

    def max_draft_len(self, num_speculative_tokens: int) -> int:
        """Return the nodes of the tree; a ValueError if they are too many, or a path too long."""
        lens = [len(self.widths)] if self.widths else map(len, self.choices or ())
        if (depth := max(lens)) > num_speculative_tokens:
            raise ValueError(
                f"the tree of policy '{self.kind}' is {depth} tokens deep, more than "
                f"engine.speculative_config.num_speculative_tokens = {num_speculative_tokens}; "
                "raise that, it is the longest draft of any policy"
            )
        return checked_nodes(self.widths) if self.widths else self.tree.num_nodes

    def start(self, server: ServerView) -> Tree:
        return self.tree

    def draft_lens(self, batch: BatchView, memory: Tree) -> Tree:
        return memory
