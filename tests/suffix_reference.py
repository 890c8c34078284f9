"""Suffix decoding as plainly as it can be said: what `specsim.lookup.suffix` must draft.

It takes memory for every token of every suffix, which no run could afford.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from specsim.core.request import Text
from specsim.lookup import NO_DRAFT, Draft, Lookup

__all__ = ["SuffixReference"]


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens that occurred, spelled by the path from the root to here."""

    token: int = -1
    count: int = 0
    """Occurrences."""
    children: dict[int, "Node"] = field(default_factory=dict)
    order: list["Node"] = field(default_factory=list)
    """The children, never less frequent than their successors."""

    def count_one_more(self, token: int) -> "Node":
        """Count a child and move it past the siblings that it was equal to.

        If it was already the first of those, it moves past the siblings that it becomes equal to.
        """
        child = self.children.get(token)
        if child is None:
            child = self.children[token] = Node(token)
            self.order.append(child)
        place = self.order.index(child)
        child.count += 1
        if child.count > 1 and place and self.order[place - 1].count <= child.count:
            passed = self.order[place - 1].count
            first = next(i for i, sibling in enumerate(self.order) if sibling.count == passed)
            self.order.insert(first, self.order.pop(place))
        return child

    def count_one_less(self, token: int) -> "Node":
        """Count a child and move it behind the siblings that it was equal to; drop it at zero."""
        child = self.children[token]
        place = self.order.index(child)
        child.count -= 1
        self.order.pop(place)
        if not child.count:
            del self.children[token]
            return child
        while place < len(self.order) and self.order[place].count > child.count:
            place += 1
        self.order.insert(place, child)
        return child


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a draft."""

    max_len: int
    max_spec_factor: float
    min_token_prob: float
    use_tree: bool


class Trie:
    """Every run of at most `depth` tokens of some sequences.

    Args:
        depth: In tokens.
    """

    def __init__(self, depth: int) -> None:
        self.root = Node()
        self.depth = depth

    def append(self, known: list[int], token: int) -> None:
        """Append to a sequence of which so much is known: every suffix gets longer by one token."""
        known.append(token)
        for start in range(max(0, len(known) - self.depth), len(known)):
            node = self.root
            for passed in known[start:-1]:
                node = node.children[passed]
            node.count_one_more(token)

    def remove(self, known: list[int]) -> None:
        """Forget a sequence, suffix by suffix."""
        for start in range(len(known)):
            node = self.root
            for token in known[start : start + self.depth]:
                node = node.count_one_less(token)

    def draft(self, context: list[int], limits: Limits) -> Draft:
        """Return the draft of the largest score over all matches; the longest match wins ties."""
        best = NO_DRAFT
        for match_len in range(1, len(context)):
            node: Node | None = self.root
            for token in context[-match_len:]:
                node = node.children.get(token) if node else None
            if node is None:
                break
            longest = np.float32(match_len) * np.float32(limits.max_spec_factor)
            budget = min(limits.max_len, int(float(longest) + 1e-6))
            search = _most_probable if limits.use_tree else _chain
            token_ids, parents, probs = search(node, budget, np.float32(limits.min_token_prob))
            score = np.float32(0.0)
            for prob in probs:
                score += prob
            if score >= best.score:
                shape = parents if limits.use_tree else None
                best = Draft(token_ids, shape, [float(p) for p in probs], float(score), match_len)
        return best


_Found = tuple[list[int], list[int], list[np.float32]]


def _chain(node: Node, budget: int, least: np.float32) -> _Found:
    """Follow the first child."""
    token_ids: list[int] = []
    probs: list[np.float32] = []
    prob = np.float32(1.0)
    while len(token_ids) < budget and node.order:
        child = node.order[0]
        prob = prob * (np.float32(child.count) / np.float32(node.count))
        if prob < least:
            break
        token_ids.append(child.token)
        probs.append(prob)
        node = child
    return token_ids, [], probs


@dataclass(frozen=True, slots=True)
class _Item:
    """A place where a tree may grow; ordered by probability alone, the largest first."""

    prob: np.float32
    node: Node
    parent: int
    is_next: bool
    """Whether the node is to be drafted itself; otherwise what follows it."""

    def __lt__(self, other: "_Item") -> bool:
        return bool(self.prob > other.prob)


def _most_probable(start: Node, budget: int, least: np.float32) -> _Found:
    """Take the most probable place, again and again.

    Equal ones come in the order that the heap has them in, so it matters that what follows for
    certain is drafted at once, and goes through the heap once where others pass through twice.
    """
    token_ids: list[int] = []
    parents: list[int] = []
    probs: list[np.float32] = []
    heap = [_Item(np.float32(1.0), start, -1, is_next=False)]
    while len(token_ids) < budget and heap:
        item = heappop(heap)
        node = item.node
        is_certain = len(node.order) == 1 and node.order[0].count == node.count
        if item.is_next or is_certain:
            node = node if item.is_next else node.order[0]
            token_ids.append(node.token)
            parents.append(item.parent)
            probs.append(item.prob)
            heappush(heap, _Item(item.prob, node, len(token_ids) - 1, is_next=False))
            continue
        for child in node.order:
            prob = item.prob * np.float32(child.count) / np.float32(node.count)
            if prob < least:
                break
            heappush(heap, _Item(prob, child, item.parent, is_next=True))
    return token_ids, parents, probs


@dataclass(slots=True, eq=False)
class _Active:
    """A request that is being answered."""

    token_ids: list[int]
    prompt_len: int
    local: list[int] = field(default_factory=list)
    """What its own tree knows of it: prompt and answer."""
    answer: list[int] = field(default_factory=list)
    """What the global tree knows of it."""


class SuffixReference(Lookup):
    """Drafts what `specsim.lookup.suffix.SuffixLookup` does, and takes the same arguments."""

    def __init__(
        self,
        *,
        max_depth: int,
        max_spec_factor: float,
        min_token_prob: float,
        max_cached_requests: int,
        use_tree: bool = False,
        use_global_tree: bool = True,
        use_local_tree: bool = True,
    ) -> None:
        self._depth = max_depth
        self._limits = (max_spec_factor, min_token_prob, use_tree)
        self._max_cached = max_cached_requests if use_global_tree else 0
        self._use_local_tree = use_local_tree
        self._global = Trie(max_depth)
        self._locals: dict[int, Trie] = {}
        self._active: dict[int, _Active] = {}
        self._cached: deque[_Active] = deque()

    def start(self, request: int, text: Text) -> None:
        """Take in the prompt; the oldest answer may have to go."""
        active = _Active(text.token_ids.tolist(), text.prompt_len)
        self._active[request] = active
        self._locals[request] = Trie(self._depth)
        self._learn_local(request, text.prompt_len)
        self._cached.append(active)
        while 0 <= self._max_cached < len(self._cached):
            self._global.remove(self._cached.popleft().answer)

    def reveal(self, request: int, known_len: int) -> None:
        """Append to both trees."""
        active = self._active[request]
        self._learn_local(request, known_len)
        if active in self._cached:
            for place in range(active.prompt_len + len(active.answer), known_len):
                self._global.append(active.answer, active.token_ids[place])

    def draft(self, request: int, max_len: int) -> Draft:
        """Return the draft of the larger score; the local tree wins ties."""
        context = self._active[request].local[-self._depth :]
        limits = Limits(max_len, *self._limits)
        drafts = [self._locals[request].draft(context, limits)] if self._use_local_tree else []
        drafts.append(self._global.draft(context, limits))
        return max(drafts, key=lambda draft: draft.score)

    def end(self, request: int) -> None:
        """Forget the local tree."""
        del self._active[request], self._locals[request]

    @property
    def memory_bytes(self) -> int:
        """Not counted."""
        return 0

    def _learn_local(self, request: int, known_len: int) -> None:
        active = self._active[request]
        for place in range(len(active.local), known_len):
            self._locals[request].append(active.local, active.token_ids[place])
