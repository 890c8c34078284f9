"""SSSD lookup: the request's own text and a datastore, fused by estimated probability."""

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.request import Text
from specsim.lookup import NO_DRAFT, Draft, KnownTexts, jit
from specsim.lookup.datastore import Corpus, build_corpus, longest_match, occurrences

Nodes = tuple[list[int], list[int], list[float], int]
"""Tokens, parents and probabilities of a draft, and the tree that its first token came from."""


def discounts(
    source: float, match: float, depth: float, *, longest: int, branch_len: int
) -> NDArray[np.float64]:
    """Return the factors that dampen the pseudo-probabilities of one source.

    By length of the match and by depth from 1, shape (longest + 1, branch_len): `source`, times
    `match` per token of a prefix shorter than `longest`, times `depth` per token after the first.
    """
    by_match = match ** np.arange(longest, -1, -1)
    return np.asarray(source * np.outer(by_match, depth ** np.arange(branch_len)))


Candidate = tuple[float, int, int, int, int]
"""Negative probability, negative tree, node, depth from 0, parent in the draft."""


class _Grams(NamedTuple):
    """Where each n-gram of a request's known text stands, for n from 1 to P; it only grows.

    The ends of equal n-grams form a chain, the latest one first. A hash table with open addressing
    holds the heads; it needs no keys, because the text before a head is the key.
    """

    heads: NDArray[np.int32]  # shape (P, a power of two), row n - 1 for n; 0 where nothing is
    older: NDArray[np.int32]
    """Shape (P, text length): the end before each end; 0 where there is none."""

    @property
    def nbytes(self) -> int:
        return self.heads.nbytes + self.older.nbytes


class _Trees(NamedTuple):
    """Candidate trees, weighted by occurrences; made anew for each draft.

    Node 0 is none. Node 1 is the root of the datastore's tree, and node 1 + n that of the input's
    tree for prefixes of n tokens.
    """

    tokens: NDArray[np.int64]
    counts: NDArray[np.int64]
    children: NDArray[np.int64]  # first child; 0 if there is none
    siblings: NDArray[np.int64]  # next sibling; 0 if there is none
    size: NDArray[np.int64]  # shape (1,): nodes in use
    weights: NDArray[np.float64]  # shape (1 + P, branch_len): discounts, by tree and depth from 1


class _Limits(NamedTuple):
    max_prefix_len: int
    branch_len: int
    max_continuations: int


@jit
def _mix(mixed: np.uint64, token: int) -> np.uint64:
    """Add a token to the hash of those after it."""
    return (mixed ^ np.uint64(token + 1)) * np.uint64(0x9E3779B97F4A7C15)


@jit
def _find(
    grams: _Grams, row: int, text: NDArray[np.int32], end: int, mixed: np.uint64
) -> tuple[int, int]:
    """Return the slot of the n-gram that ends at `end`, and its latest end; 0 if it is new."""
    mask = grams.heads.shape[1] - 1
    slot = np.int64(mixed >> np.uint64(33)) & mask
    while True:
        head = int(grams.heads[row, slot])
        same = 0
        while head and same <= row and text[head - 1 - same] == text[end - 1 - same]:
            same += 1
        if not head or same > row:
            return slot, head
        slot = (slot + 1) & mask


@jit
def _take_in(grams: _Grams, text: NDArray[np.int32], begin: int, end: int) -> None:
    """Add the n-grams that end at `begin` or later and before `end`: something follows them."""
    for at in range(max(begin, 1), end):
        mixed = np.uint64(0)
        for row in range(min(len(grams.heads), at)):
            mixed = _mix(mixed, text[at - 1 - row])
            slot, head = _find(grams, row, text, at, mixed)
            grams.older[row, at] = head
            grams.heads[row, slot] = at


@jit
def _insert(trees: _Trees, root: int, text: NDArray[np.int32], begin: int, end: int) -> None:
    """Count one continuation, as far as the border of its text."""
    node = root
    trees.counts[root] += 1
    for at in range(begin, end):
        token = text[at]
        if token < 0:
            break
        last, child = 0, trees.children[node]
        while child and trees.tokens[child] != token:
            last, child = child, trees.siblings[child]
        if not child:
            child = trees.size[0]
            trees.size[0] += 1
            trees.tokens[child] = token
            trees.counts[child] = trees.children[child] = trees.siblings[child] = 0
            if last:
                trees.siblings[last] = child
            else:
                trees.children[node] = child
        trees.counts[child] += 1
        node = child


@jit
def _ask_datastore(
    trees: _Trees, corpus: Corpus, text: NDArray[np.int32], known_len: int, limits: _Limits
) -> int:
    """Make the datastore's tree, and return the length of the longest match.

    From there to shorter prefixes, until there are enough continuations; of each as many as are
    missing, at regular intervals of the sorted suffixes, which keeps their distribution.
    """
    longest = longest_match(corpus, text, known_len, limits.max_prefix_len)
    for shorter in range(longest):
        missing = limits.max_continuations - trees.counts[1]
        if not missing:
            break
        match_len = longest - shorter
        low, high = occurrences(corpus, text, known_len, match_len)
        taken = min(high - low, missing)
        for number in range(taken):
            begin = corpus.suffixes[low + number * (high - low) // taken] + match_len
            end = min(begin + limits.branch_len, len(corpus.token_ids))
            _insert(trees, 1, corpus.token_ids, begin, end)
    return longest


@jit
def _ask_input(
    trees: _Trees, grams: _Grams, text: NDArray[np.int32], known_len: int, limits: _Limits
) -> None:
    """Make the input's trees, of the latest continuations of each prefix."""
    mixed = np.uint64(0)
    for row in range(min(len(grams.heads), known_len)):
        mixed = _mix(mixed, text[known_len - 1 - row])
        _, end = _find(grams, row, text, known_len, mixed)
        if not end:
            break  # longer prefixes stand nowhere, either
        root = row + 2
        while end and trees.counts[root] < limits.max_continuations:
            _insert(trees, root, text, end, min(end + limits.branch_len, known_len))
            end = grams.older[row, end]


@jit
def _ask_all(
    trees: _Trees,
    corpus: Corpus,
    grams: _Grams,
    text: NDArray[np.int32],
    known_len: int,
    limits: _Limits,
) -> int:
    """Make all candidate trees; return the length of the datastore's longest match."""
    roots = 1 + len(trees.weights)
    trees.size[0] = roots
    trees.counts[:roots] = 0
    trees.children[:roots] = 0
    longest = 0
    if len(corpus.suffixes):
        longest = _ask_datastore(trees, corpus, text, known_len, limits)
    _ask_input(trees, grams, text, known_len, limits)
    return longest


@jit
def _push_children(
    heap: list[Candidate], trees: _Trees, node: int, tree: int, depth: int, parent: int
) -> None:
    """Add the next tokens after a node of a candidate tree."""
    root, child = tree + 1, int(trees.children[node])
    while child:
        prob = trees.counts[child] / trees.counts[root] * trees.weights[tree, depth]
        heappush(heap, (-prob, -tree, child, depth, parent))
        child = int(trees.siblings[child])


@jit
def _fuse_tree(trees: _Trees, max_nodes: int) -> Nodes:
    """Merge the trees (algorithm 1); ties go to the input's longest prefix, then the latest."""
    tokens, parents, probs = [0] * 0, [0] * 0, [0.0] * 0
    first = 0
    heap = [(0.0, 0, 0, 0, 0)] * 0
    for tree in range(len(trees.weights)):
        _push_children(heap, trees, tree + 1, tree, 0, -1)
    while heap and len(tokens) < max_nodes:
        negative_prob, negative_tree, node, depth, parent = heappop(heap)
        token = int(trees.tokens[node])
        place = parent + 1
        while place < len(tokens) and (parents[place] != parent or tokens[place] != token):
            place += 1
        if place == len(tokens):  # no tree has brought it before
            first = first if tokens else -negative_tree
            tokens.append(token)
            parents.append(parent)
            probs.append(-negative_prob)
        _push_children(heap, trees, node, -negative_tree, depth + 1, place)
    return tokens, parents, probs, first


@jit
def _best_child(trees: _Trees, nodes: NDArray[np.int64], depth: int) -> tuple[float, int, int]:
    """Return the most probable token after one node of each tree, and the tree; 0.0 if none."""
    best_prob, best_token, best_tree = 0.0, 0, 0
    for tree in range(len(nodes) - 1, -1, -1):
        child = trees.children[nodes[tree]]
        while child:
            prob = trees.counts[child] / trees.counts[tree + 1] * trees.weights[tree, depth]
            if prob > best_prob:
                best_prob, best_token, best_tree = prob, int(trees.tokens[child]), tree
            child = trees.siblings[child]
    return best_prob, best_token, best_tree


@jit
def _fuse_chain(trees: _Trees, max_len: int) -> Nodes:
    """Merge by the most probable candidate of each depth; a tree without it drops out."""
    tokens, parents, probs = [0] * 0, [0] * 0, [0.0] * 0
    first = 0
    nodes = np.arange(1, len(trees.weights) + 1)
    for depth in range(max_len):
        prob, token, tree = _best_child(trees, nodes, depth)
        if not prob:
            break
        first = first if tokens else tree
        tokens.append(token)
        parents.append(depth - 1)
        probs.append(prob)
        for place, node in enumerate(nodes):
            child = trees.children[node]
            while child and trees.tokens[child] != token:
                child = trees.siblings[child]
            nodes[place] = child
    return tokens, parents, probs, first


class SssdLookup(KnownTexts):
    """The token-level mode of `specsim.proposers.lookups.Sssd`.

    Args:
        corpus: Sorted by at least ``max_prefix_len + branch_len`` tokens; None for no datastore.
        input_discounts: From `discounts`; P = 0 for no input trees. Of shape (P + 1, branch_len).
        corpus_discounts: Of shape (max_prefix_len + 1, branch_len).
        max_continuations: Of each tree.
    """

    def __init__(
        self,
        *,
        corpus: Corpus | None,
        input_discounts: NDArray[np.float64],
        corpus_discounts: NDArray[np.float64],
        max_continuations: int,
        use_tree: bool,
    ) -> None:
        super().__init__()
        self._corpus = corpus or build_corpus([], 1)
        self._corpus_discounts = corpus_discounts
        self._input_len = len(input_discounts) - 1
        branch_len = input_discounts.shape[1]
        self._limits = _Limits(len(corpus_discounts) - 1, branch_len, max_continuations)
        num_trees = len(input_discounts)
        num_nodes = 1 + num_trees * (1 + max_continuations * branch_len)
        tokens, counts, children, siblings = np.zeros((4, num_nodes), dtype=np.int64)
        size, weights = np.zeros(1, dtype=np.int64), input_discounts.copy()
        self._trees = _Trees(tokens, counts, children, siblings, size, weights)
        self._use_tree = use_tree
        fixed = (self._corpus, *self._trees, corpus_discounts)
        self._fixed_bytes = sum(each.nbytes for each in fixed)
        self._grams_bytes = 0
        self._grams: dict[int, _Grams] = {}
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile everything before anybody takes the time."""
        text = np.zeros(3, dtype=np.int32)
        grams = _new_grams(1, 3)
        _take_in(grams, text, 1, 2)
        _ask_all(self._trees, build_corpus([text], 1), grams, text, 2, _Limits(1, 1, 1))
        _fuse_tree(self._trees, 1)
        _fuse_chain(self._trees, 1)

    def start(self, request: int, text: Text) -> None:
        super().start(request, text)
        grams = _new_grams(self._input_len, len(text.token_ids))
        self._grams[request] = grams
        self._grams_bytes += grams.nbytes
        self._known_lens[request] = 0
        self.reveal(request, text.prompt_len)

    def reveal(self, request: int, known_len: int) -> None:
        """Index what is new; an n-gram is indexed once something follows it."""
        token_ids = self._texts[request].token_ids
        _take_in(self._grams[request], token_ids, self._known_lens[request], known_len)
        super().reveal(request, known_len)

    def draft(self, request: int, max_len: int) -> Draft:
        known_len, trees = self._known_lens[request], self._trees
        if max_len < 1 or not known_len:
            return NO_DRAFT
        longest = _ask_all(
            trees,
            self._corpus,
            self._grams[request],
            self._texts[request].token_ids,
            known_len,
            self._limits,
        )
        trees.weights[0] = self._corpus_discounts[longest]
        if self._use_tree:
            tokens, parents, probs, first = _fuse_tree(trees, max_len)
        else:
            tokens, parents, probs, first = _fuse_chain(
                trees, min(max_len, self._limits.branch_len)
            )
        if not tokens:
            return NO_DRAFT
        match_len = first if first else longest
        return Draft(tokens, parents if self._use_tree else None, probs, sum(probs), match_len)

    def end(self, request: int) -> None:
        self._grams_bytes -= self._grams.pop(request).nbytes
        super().end(request)

    @property
    def memory_bytes(self) -> int:
        return self._fixed_bytes + self._grams_bytes


def _new_grams(longest: int, text_len: int) -> _Grams:
    """Return room for a whole text, so that no table has to be rebuilt; at most half is used."""
    width = 1 << max(1, 2 * text_len - 1).bit_length()
    return _Grams(
        np.zeros((longest, width if longest else 1), dtype=np.int32),
        np.zeros((longest, text_len), dtype=np.int32),
    )
