"""Tree: the shape of a draft that holds several candidates per position.

A chain is a tree of width 1. The drafter ranks what may come next: its first candidate, its second
and so on; which rank the target's token has at each position decides how far a tree is accepted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import index, le, mul
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Path = tuple[int, ...]
"""Ranks of the candidates along a path from the last known token on; the best candidate is 1."""


@dataclass(frozen=True)
class Tree:
    """Nodes of a draft, all of which are batched for verification.

    Of a tree that is cut, as where the token budget runs out, the first nodes are verified.
    """

    parents: tuple[int, ...]
    """The node that each one follows, or -1 for the last known token. A node comes after its
    parent, and siblings stand in the order of their ranks: of a node's children the first is the
    drafter's best candidate."""
    passes: tuple[int, ...] | None = None
    """Tokens that the drafter reads in each pass after its first, if these are not the nodes that
    have children, depth by depth, as where it looks at more than it hands over."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", tuple(map(index, self.parents)))
        parents = self.parents  # of each of many trees in a step
        if min(parents, default=-1) < -1 or any(map(le, range(len(parents)), parents)):
            raise ValueError(f"parents {parents}: each must be -1 or an earlier node")
        if self.passes is not None and min(self.passes, default=0) < 0:
            raise ValueError(f"passes {self.passes}: each must be at least 0")

    @classmethod
    def chain(cls, length: int) -> "Tree":
        return cls.of_widths((1,) * length)

    @classmethod
    def of_widths(cls, widths: Iterable[int]) -> "Tree":
        """Return the tree in which every node of depth i has widths[i] children.

        Cai et al. (2024), "Medusa": every candidate of a position follows every candidate of the
        one before.
        """
        parents: list[int] = []
        last, widths = [-1], tuple(widths)
        if min(widths, default=0) < 0:
            raise ValueError(f"widths {widths}: each must be at least 0")
        for width in widths:
            first = len(parents)
            parents += [parent for parent in last for _ in range(width)]
            last = list(range(first, len(parents)))
        return cls(tuple(parents))

    @classmethod
    def of_paths(cls, paths: Iterable[Path]) -> "Tree":
        """Return the tree that holds these paths, and whatever they need, shorter ones first.

        A ValueError if a rank is below 1: in the lists of choices of Medusa and EAGLE they count
        from 0, as policy `static_tree` takes them.
        """
        nodes: dict[Path, int] = {(): -1}
        wanted = {path[:length] for path in paths for length in range(1, len(path) + 1)}
        if any(path[-1] < 1 for path in wanted):
            wrong = min(wanted, key=lambda path: path[-1])
            raise ValueError(f"path {wrong}: ranks count from 1, the drafter's best candidate")
        wanted |= {(*path[:-1], rank) for path in wanted for rank in range(1, path[-1])}
        for path in sorted(wanted, key=lambda path: (len(path), path)):
            nodes[path] = len(nodes) - 1
        return cls(tuple(nodes[path[:-1]] for path in nodes if path))

    @property
    def num_nodes(self) -> int:
        return len(self.parents)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        found: list[Path] = []
        for node, parent in enumerate(self.parents):
            rank = self.parents[:node].count(parent) + 1
            found.append((*(found[parent] if parent >= 0 else ()), rank))
        return tuple(found)

    @cached_property
    def depth(self) -> int:
        """Nodes of the longest path, the most that can be accepted."""
        return max(map(len, self.paths), default=0)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """Tokens that the drafter reads in each pass after its first."""
        if self.passes is not None:
            return self.passes
        lens = [len(self.paths[node]) for node in set(self.parents) - {-1}]
        return tuple(lens.count(depth) for depth in range(1, self.depth))

    def accepted_path(self, ranks: Sequence[int], num_nodes: int) -> Path:
        """Return the path that is accepted where the target's tokens have these ranks.

        Args:
            ranks: Of the next positions; 0 for a token that is none of the candidates.
            num_nodes: Nodes that are verified, the first ones.
        """
        parents, node, length = self.parents, -1, 0
        try:
            for rank in ranks:
                if not rank:
                    break
                child = node
                for _ in range(rank):
                    child = parents.index(node, child + 1, num_nodes)
                node, length = child, length + 1
        except ValueError:  # there is no such child
            pass
        return tuple(ranks[:length])

    def tried_widths(self, path: Path, num_nodes: int) -> list[int]:
        """Return how many candidates were tried after each node of a path that was accepted.

        The first number is that of the last known token's; the last may be 0, at the tree's end.
        """
        parents, node, widths = self.parents[:num_nodes], -1, []
        for rank in (*path, 0):
            widths.append(parents.count(node))
            child = node
            for _ in range(rank):
                child = parents.index(node, child + 1)
            node = child
        return widths

    def expected_len(self, rates: Sequence[float]) -> float:
        """Return the tokens that it emits on average, bonus token included.

        One and the sum over its nodes of the chance of their paths (Chen et al. 2024, "Sequoia",
        proposition 3.4).

        Args:
            rates: P(the first, the second, ... candidate is the target's token), whatever stands
                before it; 0 beyond the last.
        """
        chances: list[float] = []
        for parent, path in zip(self.parents, self.paths, strict=True):
            rate = rates[path[-1] - 1] if path[-1] <= len(rates) else 0.0
            chances.append(rate * (chances[parent] if parent >= 0 else 1.0))
        return 1.0 + sum(chances)


def rank_rates(conditional: Iterable[float]) -> list[float]:
    """Return P(a rank is the target's token) from the rates given that no better rank was."""
    rates = list(conditional)
    missed = accumulate([1.0, *(1.0 - rate for rate in rates[:-1])], mul)
    return [rate * left for rate, left in zip(rates, missed, strict=True)]


class Candidates(Protocol):
    """What the drafter thinks of the tokens that may follow; for policies that grow trees by it."""

    def after(self, rows: Ints, paths: Ints) -> NDArray[np.float32]:
        """Return P(each candidate is the target's token, if all before it are), best first.

        As many candidates as the policy's `num_candidates`; shape (n, candidates).

        Args:
            rows: Places of sequences in the batch, shape (n,).
            paths: Ranks of the tokens drafted so far of each, all of one depth: shape (n, depth).
        """
