"""A suffix tree of token sequences that grow at their ends and leave in the order they came.

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

from specsim.core.compiled import Loop, inner, types_of
from specsim.lookup.suffix_drafts import MATCH_LEN, NO_ROOM, ROW, Scratch, improve, match
from specsim.lookup.suffix_nodes import (
    BASE,
    COUNT,
    HEAD,
    KNOWN_LEN,
    LENGTH,
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


_ROOMS = tuple(f"specsim.lookup.suffix_{part}" for part in ("tree", "nodes", "drafts"))

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
    longest = match(request.local, request.cursor, token_ids, known_len, scratch.matches)
    best = improve(request.local, scratch, longest, best)
    if best[1] != NO_ROOM:
        longest = match(
            request.answers, request.answer_cursor, token_ids, known_len, scratch.matches
        )
        best = improve(request.answers, scratch, longest, best)
    scratch.found[ROW], scratch.found[MATCH_LEN], scratch.score[0] = best[0], best[2], best[3]
    return best[1]


draft = Loop(_draft, types_of(RequestArrays), name="suffix-tree", rooms=_ROOMS)
