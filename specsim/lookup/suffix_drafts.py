"""Drafts from a suffix tree: where a text ends in it, and what followed there most often."""

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import inner
from specsim.lookup.suffix_nodes import (
    BASE,
    COUNT,
    HEAD,
    KNOWN_LEN,
    LENGTH,
    NEXT,
    NONE,
    OPEN,
    ROOT,
    TEXT,
    UNKNOWN,
    WINDOW,
    Arrays,
    Ints,
    Longs,
    Rows,
    find_child,
)

Floats = Annotated[NDArray[np.float32], 1]


class Scratch(NamedTuple):
    """What drafts are made in, whoever they are for, and how."""

    drafts: Rows  # token ids and parents of one draft, then of another, shape (4, longest)
    probs: Annotated[NDArray[np.float32], 2]  # of both, shape (2, longest)
    items: Rows  # heap: node, place in its text, parent
    keys: Floats  # probabilities of the same
    matches: Rows
    """Node and place in its text where each suffix of the known text ends, by its length."""
    budgets: Ints  # most tokens of a draft, by match length
    least: Floats  # probability below which a draft ends
    asked: Longs  # `MAX_LEN`, `IS_TREE`
    found: Longs  # `ROW`, `MATCH_LEN`
    score: Floats


MAX_LEN, IS_TREE = range(2)
ROW, MATCH_LEN = range(2)
NO_ROOM = -1  # length of a draft for which the heap is too small


@inner
def _match_from_root(tree: Arrays, token_ids: Ints, start: int, known_len: int) -> tuple[int, int]:
    """Return where a run of tokens ends: node (none: not in the tree) and tokens into it."""
    nodes, pool = tree.nodes, tree.pool
    node, offset = ROOT, 0
    for place in range(start, known_len):
        token = token_ids[place]
        if node == ROOT or (nodes[node, LENGTH] != OPEN and offset == nodes[node, LENGTH]):
            node, offset = find_child(tree, node, token), 0
            if node == NONE:
                return NONE, 0
        elif pool[nodes[node, TEXT] + offset] != token:
            return NONE, 0
        offset += 1
    return node, offset


@inner
def match(tree: Arrays, cursor: Longs, token_ids: Ints, known_len: int, matches: Rows) -> int:
    """Note where each suffix of the known text ends in the tree; return the longest length."""
    nodes = tree.nodes
    depth, own_len = len(cursor) - WINDOW, cursor[KNOWN_LEN]
    longest = min(known_len, depth) - 1
    for match_len in range(1, longest + 1):
        if match_len <= own_len:
            node = cursor[WINDOW + (own_len - match_len) % depth]
            offset = int(nodes[node, LENGTH])
            if offset == OPEN:
                offset = cursor[BASE] + own_len - nodes[node, TEXT]
        else:
            node, offset = _match_from_root(tree, token_ids, known_len - match_len, known_len)
            if node == NONE:
                return match_len - 1
        matches[match_len, 0] = node
        matches[match_len, 1] = offset
    return longest


@inner
def _edge_token(tree: Arrays, node: int, offset: int) -> int:
    """Return a token of a node, `UNKNOWN` at its end."""
    nodes, pool = tree.nodes, tree.pool
    length = nodes[node, LENGTH]
    if length != OPEN and offset >= length:
        return UNKNOWN
    return pool[nodes[node, TEXT] + offset]


@inner
def _draft_chain(
    tree: Arrays, scratch: Scratch, match_len: int, budget: int, row: int
) -> tuple[int, np.float32]:
    """Follow the most frequent child; return length and score."""
    nodes, drafts, probs, least = tree.nodes, scratch.drafts, scratch.probs, scratch.least[0]
    node, offset = scratch.matches[match_len, 0], scratch.matches[match_len, 1]
    length, score, prob = 0, np.float32(0), np.float32(1)
    while length < budget:
        token = _edge_token(tree, node, offset)
        if token != UNKNOWN:
            drafts[2 * row, length] = token
            probs[row, length] = prob
            score += prob
            length += 1
            offset += 1
            continue
        child = nodes[node, HEAD]
        if child == NONE:
            break
        prob *= np.float32(nodes[child, COUNT]) / np.float32(nodes[node, COUNT])
        if prob < least:
            break
        node, offset = child, 0
    return length, score


@inner
def _copy(items: Rows, source: int, target: int) -> None:
    """Copy a row, which takes longer, and memory, as an assignment of slices."""
    for column in range(3):
        items[target, column] = items[source, column]


@inner
def _rise(scratch: Scratch, hole: int, prob: np.float32, item: tuple[int, int, int]) -> None:
    """Put an item into a hole of the heap, or above it, but below its equals."""
    items, keys = scratch.items, scratch.keys
    while hole > 0:
        above = (hole - 1) >> 1
        if keys[above] >= prob:
            break
        keys[hole] = keys[above]
        _copy(items, above, hole)
        hole = above
    keys[hole] = prob
    items[hole, 0], items[hole, 1], items[hole, 2] = item


@inner
def _drop_best(scratch: Scratch, size: int) -> None:
    """Drop the first item of the heap.

    The hole sinks to the bottom, to the right among equals, before the last item fills it, as in
    `heapq` and in C++'s standard library: which of two equal items comes first depends on it.
    """
    items, keys = scratch.items, scratch.keys
    size -= 1
    hole, below = 0, 1
    while below < size:
        if below + 1 < size and keys[below + 1] >= keys[below]:
            below += 1
        keys[hole] = keys[below]
        _copy(items, below, hole)
        hole, below = below, 2 * below + 1
    _rise(scratch, hole, keys[size], (items[size, 0], items[size, 1], items[size, 2]))


@inner
def _draft_tree(
    tree: Arrays, scratch: Scratch, match_len: int, budget: int, row: int
) -> tuple[int, np.float32]:
    """Take the best token that is left, again and again; length (or `NO_ROOM`) and score."""
    nodes, items, keys = tree.nodes, scratch.items, scratch.keys
    drafts, probs, least = scratch.drafts, scratch.probs, scratch.least[0]
    match = scratch.matches[match_len, 0], scratch.matches[match_len, 1]
    length, score = 0, np.float32(0)
    _rise(scratch, 0, np.float32(1), (match[0], match[1], -1))
    size = 1
    while length < budget and size:
        prob, node, offset, parent = keys[0], items[0, 0], items[0, 1], items[0, 2]
        _drop_best(scratch, size)
        size -= 1
        token = _edge_token(tree, node, offset)
        if token != UNKNOWN:
            drafts[2 * row, length] = token
            drafts[2 * row + 1, length] = parent
            probs[row, length] = prob
            score += prob
            _rise(scratch, size, prob, (node, offset + 1, length))
            size += 1
            length += 1
            continue
        child = nodes[node, HEAD]
        while child != NONE:
            share = prob * np.float32(nodes[child, COUNT]) / np.float32(nodes[node, COUNT])
            if share < least:
                break
            if size == len(keys):
                return NO_ROOM, score
            _rise(scratch, size, share, (child, 0, parent))
            size += 1
            child = nodes[child, NEXT]
    return length, score


@inner
def improve(
    tree: Arrays, scratch: Scratch, longest: int, best: tuple[int, int, int, np.float32]
) -> tuple[int, int, int, np.float32]:
    """Return the best draft of one tree, if it is better than what there is.

    Longer matches go first, since they win ties. A draft scores at most one per token, so the
    search ends where budgets get too small.
    """
    max_len, is_tree = scratch.asked[MAX_LEN], scratch.asked[IS_TREE]
    for match_len in range(longest, 0, -1):
        budget = min(max_len, scratch.budgets[match_len])
        if budget <= best[3]:
            break
        row = 1 - best[0]
        if is_tree:
            length, score = _draft_tree(tree, scratch, match_len, budget, row)
            if length == NO_ROOM:
                return row, NO_ROOM, match_len, score
        else:
            length, score = _draft_chain(tree, scratch, match_len, budget, row)
        if score > best[3]:
            best = (row, length, match_len, score)
    return best
