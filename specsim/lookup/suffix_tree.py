"""A suffix tree of token sequences that grow at their ends and leave in order, and drafts from it.

The tree holds every run of at most `depth` tokens, and how often it occurred. Runs that always
occurred together share a node (path compression), so there are at most two nodes per token. It lies
in a few arrays (`specsim.lookup.suffix_nodes`), which `specsim.lookup.suffix` owns and grows; this
module has the compiled loops over them (`specsim.core.compiled`).

A cursor is an array of int64 for one sequence: its slot, its length, and where its last `depth`
suffixes end in the tree.

Two rules keep an append short:

- A suffix seen once ends in a leaf of count 1, and so does any longer one. Such a leaf is *open*:
  it reaches as far as its sequence is known, so it grows without being touched.
- A node's text is noted where its newest sequence has it. The oldest leaves first, so no note ever
  dangles.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import Loop, inner, types_of
from specsim.lookup.suffix_nodes import (
    BASE,
    COUNT,
    HEAD,
    KNOWN_LEN,
    LENGTH,
    NEXT,
    NONE,
    NUM_FREE,
    OPEN,
    ROOT,
    SHARED,
    TEXT,
    TOP_NODE,
    UNKNOWN,
    WINDOW,
    Arrays,
    Ints,
    Longs,
    Rows,
    add_leaf,
    decrement,
    drop_first,
    enter,
    find_child,
    increment,
    is_alone,
    merge,
    remove_leaf,
    split,
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
def _match(tree: Arrays, cursor: Longs, token_ids: Ints, known_len: int, matches: Rows) -> int:
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
def _improve(
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


class RequestArrays(NamedTuple):
    """A request with what both trees know of it; trees and scratch are `Pointers` to theirs."""

    local: Annotated[Any, Arrays]  # the tree of its own text
    answers: Annotated[Any, Arrays]  # the tree of all answers
    cursor: Longs
    answer_cursor: Longs
    token_ids: Ints  # of prompt and answer
    lens: Longs  # `PROMPT_LEN`, `KNOWN`
    scratch: Annotated[Any, Scratch]


class Removal(NamedTuple):
    """A sequence to be forgotten."""

    tree: Annotated[Any, Arrays]
    cursor: Longs


_ROOMS = ("specsim.lookup.suffix_tree", "specsim.lookup.suffix_nodes")

REMOVED = -1
"""Base of a sequence that was removed while it grew, or never began: the tree ignores it."""
PROMPT_LEN, KNOWN = range(2)
LOCAL, ANSWERS = 1, 2  # which tree has to grow


def _fill_table(tree: Arrays) -> int:
    """Enter all nodes into an empty table."""
    for node in range(1, tree.spare[TOP_NODE]):
        if tree.nodes[node, COUNT] and not is_alone(tree, node):
            enter(tree, node)
    return 0


fill_table = Loop(_fill_table, types_of(Arrays), name="suffix-tree", rooms=_ROOMS)


@inner
def _advance(tree: Arrays, node: int, place: int) -> int:
    """Return where a suffix ends that ended at a node, with one more token."""
    nodes, pool = tree.nodes, tree.pool
    child = find_child(tree, node, pool[place])
    if child == NONE:
        if node != ROOT and nodes[node, COUNT] == 1:  # nobody shares it any more
            nodes[node, LENGTH] = OPEN
            return node
        return add_leaf(tree, node, pool[place], place)
    length = nodes[child, LENGTH]
    is_single = length == 1 or (length == OPEN and pool[nodes[child, TEXT] + 1] == UNKNOWN)
    if node != ROOT and nodes[node, COUNT] == nodes[child, COUNT] + 1:
        # Nothing but this suffix ended here, so nothing will: the node moves along.
        if is_single:
            nodes[child, LENGTH] = 1
            nodes[child, COUNT] += 1
            newest = nodes[node, TEXT]
            merge(tree, node)
            nodes[child, TEXT] = newest
            return child
        nodes[node, LENGTH] += 1
        drop_first(tree, child)
        return node
    if is_single:
        nodes[child, LENGTH] = 1
    else:
        child = split(tree, child)
    if nodes[child, TEXT] < place:
        nodes[child, TEXT] = place
    increment(tree, child)
    return child


@inner
def _append_token(tree: Arrays, cursor: Longs, token: int) -> None:
    nodes = tree.nodes
    depth = len(cursor) - WINDOW
    base, known_len, shared = cursor[BASE], cursor[KNOWN_LEN], cursor[SHARED]
    oldest = max(0, known_len + 1 - depth)
    if oldest:  # the suffix before it is as long as it may get
        node = cursor[WINDOW + known_len % depth]
        if nodes[node, LENGTH] == OPEN:
            nodes[node, LENGTH] = base + known_len - nodes[node, TEXT]
    shared = max(shared, oldest)
    while shared > oldest and nodes[cursor[WINDOW + (shared - 1) % depth], LENGTH] != OPEN:
        shared -= 1  # another sequence has caught up with this one
    place = base + known_len
    tree.pool[place] = token
    cursor[WINDOW + known_len % depth] = ROOT
    slot = shared % depth
    for start in range(shared, known_len + 1):
        node = _advance(tree, cursor[WINDOW + slot], place)
        cursor[WINDOW + slot] = node
        if start == shared and nodes[node, LENGTH] == OPEN:
            shared += 1
        slot += 1
        if slot == depth:
            slot = 0
    cursor[KNOWN_LEN] = known_len + 1
    cursor[SHARED] = shared


@inner
def _append(tree: Arrays, cursor: Longs, token_ids: Ints, start: int, known_len: int) -> bool:
    """Take in more of a sequence that begins at `start`; tell whether there was room for it all."""
    depth = len(cursor) - WINDOW
    while cursor[BASE] != REMOVED and cursor[KNOWN_LEN] < known_len:
        if len(tree.nodes) - tree.spare[TOP_NODE] + tree.spare[NUM_FREE] < depth:
            return False
        _append_token(tree, cursor, token_ids[start + cursor[KNOWN_LEN]])
    return True


def _learn(request: RequestArrays) -> int:
    """Take in what is known of a request.

    Returns 0, or which tree has no room: its nodes must grow by at least the depth, and the loop
    be run again.
    """
    prompt_len, known_len = request.lens[PROMPT_LEN], request.lens[KNOWN]
    if not _append(request.local, request.cursor, request.token_ids, 0, known_len):
        return LOCAL
    answer_len = known_len - prompt_len
    if not _append(
        request.answers, request.answer_cursor, request.token_ids, prompt_len, answer_len
    ):
        return ANSWERS
    return 0


learn = Loop(_learn, types_of(RequestArrays), name="suffix-tree", rooms=_ROOMS)


def _remove(removal: Removal) -> int:
    """Forget the oldest sequence; its slot is free afterwards."""
    tree, cursor = removal.tree, removal.cursor
    nodes, pool = tree.nodes, tree.pool
    end = cursor[BASE] + cursor[KNOWN_LEN]
    for start in range(cursor[BASE], end):
        node, place = ROOT, start
        while place < end:
            child = find_child(tree, node, pool[place])
            if child == NONE:
                break
            if nodes[child, COUNT] == 1:
                remove_leaf(tree, child)
                break
            decrement(tree, child)
            place += nodes[child, LENGTH]
            node = child
        child = nodes[node, HEAD]
        if (
            node != ROOT
            and child != NONE
            and is_alone(tree, child)
            and nodes[child, COUNT] == nodes[node, COUNT]
        ):
            merge(tree, node)
    cursor[BASE], cursor[KNOWN_LEN] = REMOVED, 0
    return 0


remove = Loop(_remove, types_of(Removal), name="suffix-tree", rooms=_ROOMS)


def _draft(request: RequestArrays) -> int:
    """Make the draft of the highest score; ties go to the local tree, then to the longer match.

    Returns its length, or `NO_ROOM`; where it is in `Scratch.drafts`, the length of its match and
    its score are in the scratch, too.
    """
    scratch, token_ids, known_len = request.scratch, request.token_ids, request.lens[KNOWN]
    best = (0, 0, 0, np.float32(-1))
    longest = _match(request.local, request.cursor, token_ids, known_len, scratch.matches)
    best = _improve(request.local, scratch, longest, best)
    if best[1] != NO_ROOM:
        longest = _match(
            request.answers, request.answer_cursor, token_ids, known_len, scratch.matches
        )
        best = _improve(request.answers, scratch, longest, best)
    scratch.found[ROW], scratch.found[MATCH_LEN], scratch.score[0] = best[0], best[2], best[3]
    return best[1]


draft = Loop(_draft, types_of(RequestArrays), name="suffix-tree", rooms=_ROOMS)
