"""A suffix tree of token sequences that grow at their ends and leave in the order they came.

The tree holds every run of at most `depth` tokens, and how often it occurred. Runs that always
occurred together share a node (path compression), so there are at most two nodes per token. All of
it lies in a few arrays of int32, and this module is the code that works on
them, compiled (`specsim.core.compiled`); `specsim.lookup.suffix` owns and grows the arrays.

A `Tree` is a tuple of arrays:

- `nodes`, a row per node with the columns below; row 0 is the root and "none" at once.
- `table`, a hash table of nodes by parent and first token; it holds those that have siblings.
- `groups`, the first and last of siblings of equal count, where there are at least two.
- `pool`, the text. A sequence has one contiguous slot, ended by `UNKNOWN`, in order of arrival.
- `spare`, what is unused of the arrays (`TOP_NODE` ...).

A cursor is an array of int64 for one sequence: its slot, its length, and where its last `depth`
suffixes end in the tree.

Three rules keep an append short and the nodes small:

- A suffix seen once ends in a leaf of count 1, and so does any longer one. Such a leaf is *open*:
  it reaches as far as its sequence is known, so it grows without being touched.
- A node's text is noted where its newest sequence has it. The oldest leaves first, so no note ever
  dangles.
- An only child is found through its parent, so the table is touched where text branches and
  nowhere else.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import Loop, Types, inner

__all__ = [
    "CURSOR_FIELDS",
    "LOCAL",
    "NODE_COLUMNS",
    "NO_ROOM",
    "REMOVAL_TYPES",
    "REMOVED",
    "REQUEST_TYPES",
    "SCRATCH_TYPES",
    "TREE_TYPES",
    "UNKNOWN",
    "Removal",
    "Request",
    "Scratch",
    "Tree",
    "draft",
    "fill_table",
    "learn",
    "remove",
]

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]


_INT, _LONG, _FLOAT = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.float32)


class Tree(NamedTuple):
    """One suffix tree; see above."""

    nodes: Ints
    table: Ints
    groups: Ints
    pool: Ints
    spare: Longs


TREE_TYPES: Types = {
    "nodes": (_INT, 2),
    "table": (_INT, 1),
    "groups": (_INT, 2),
    "pool": (_INT, 1),
    "spare": (_LONG, 1),
}


class Scratch(NamedTuple):
    """What drafts are made in, whoever they are for, and how."""

    drafts: Ints
    """Token ids and parents of one draft, then of another, shape (4, longest)."""
    probs: Floats
    """Of both, shape (2, longest)."""
    items: Ints
    """Heap: node, place in its text, parent."""
    keys: Floats
    """Probabilities of the same."""
    matches: Ints
    """Node and place in its text where each suffix of the known text ends, by its length."""
    budgets: Ints
    """Most tokens of a draft, by match length."""
    least: Floats
    """Probability below which a draft ends."""
    asked: Longs
    """`MAX_LEN`, `IS_TREE`."""
    found: Longs
    """`ROW`, `MATCH_LEN`."""
    score: Floats


SCRATCH_TYPES: Types = {
    "drafts": (_INT, 2),
    "probs": (_FLOAT, 2),
    "items": (_INT, 2),
    "keys": (_FLOAT, 1),
    "matches": (_INT, 2),
    "budgets": (_INT, 1),
    "least": (_FLOAT, 1),
    "asked": (_LONG, 1),
    "found": (_LONG, 1),
    "score": (_FLOAT, 1),
}


class Request(NamedTuple):
    """A request with what both trees know of it; trees and scratch are `Pointers` to theirs."""

    local: Any
    """Tree of its own text."""
    answers: Any
    """Tree of all answers."""
    cursor: Longs
    answer_cursor: Longs
    token_ids: Ints
    """Of prompt and answer."""
    lens: Longs
    """`PROMPT_LEN`, `KNOWN`."""
    scratch: Any


REQUEST_TYPES: Types = {
    "local": TREE_TYPES,
    "answers": TREE_TYPES,
    "cursor": (_LONG, 1),
    "answer_cursor": (_LONG, 1),
    "token_ids": (_INT, 1),
    "lens": (_LONG, 1),
    "scratch": SCRATCH_TYPES,
}


class Removal(NamedTuple):
    """A sequence to be forgotten."""

    tree: Any
    cursor: Longs


REMOVAL_TYPES: Types = {"tree": TREE_TYPES, "cursor": (_LONG, 1)}

_ROOMS = ("specsim.lookup.suffix_tree",)

COUNT, PARENT, TOKEN, TEXT, LENGTH, HEAD, NEXT, PREV, GROUP = range(9)
NODE_COLUMNS = 9
"""Occurrences (0: unused row), parent, first token, place of its text in the pool, length of it,
first child, next and previous sibling (that of the first is the last), group of equal count."""
ROOT = NONE = 0
OPEN = 0
"""Length of a leaf that reaches as far as its sequence is known."""
UNKNOWN = -1
"""Stands in the pool where a sequence is not known yet, and after its end."""
FIRST, LAST = range(2)
TOP_NODE, FREE_NODE, NUM_FREE, TOP_GROUP, FREE_GROUP = range(5)
"""Rows of nodes ever used, first of the chain of freed ones and their number; likewise groups."""
BASE, KNOWN_LEN, SHARED, WINDOW = range(4)
CURSOR_FIELDS = 3
"""Place of its first token, tokens so far, first start of a suffix seen more than once; then the
node where each of the last `depth` suffixes ends, that of start `s` at ``s % depth``."""
REMOVED = -1
"""Base of a sequence that was removed while it grew, or never began: the tree ignores it."""
PROMPT_LEN, KNOWN = range(2)
MAX_LEN, IS_TREE = range(2)
ROW, MATCH_LEN = range(2)
LOCAL, ANSWERS = 1, 2  # which tree has to grow
NO_ROOM = -1
"""Length of a draft for which the heap is too small."""

_LOW = 0xFFFFFFFF
_MIX_PARENT, _MIX_KEY = 0x9E3779B1, 0x2C1B3C6D  # odd, with bits all over; no product needs 64 bits


# Children: the table


@inner
def _home(parent: int, token: int, size: int) -> int:
    """Return where the search for a child begins."""
    key = (int(parent) * _MIX_PARENT + int(token)) & _LOW
    key = ((key ^ (key >> 15)) * _MIX_KEY) & _LOW
    return ((key ^ (key >> 16)) >> 1) * size >> 31


@inner
def _slot(tree: Tree, parent: int, token: int) -> int:
    """Return where a child is in the table, or where it belongs."""
    nodes, table = tree.nodes, tree.table
    slot = _home(parent, token, len(table))
    while True:
        child = table[slot]
        if child == NONE or (nodes[child, PARENT] == parent and nodes[child, TOKEN] == token):
            return slot
        slot += 1
        if slot == len(table):
            slot = 0


@inner
def _enter(tree: Tree, node: int) -> None:
    nodes, table = tree.nodes, tree.table
    table[_slot(tree, nodes[node, PARENT], nodes[node, TOKEN])] = node


@inner
def _leave(tree: Tree, node: int) -> None:
    """Take a node out of the table, and move up those that had to give way to it."""
    nodes, table = tree.nodes, tree.table
    size = len(table)
    hole = _slot(tree, nodes[node, PARENT], nodes[node, TOKEN])
    slot = hole
    while True:
        slot += 1
        if slot == size:
            slot = 0
        other = table[slot]
        if other == NONE:
            break
        from_home = slot - _home(nodes[other, PARENT], nodes[other, TOKEN], size)
        from_hole = slot - hole
        if from_home < 0:
            from_home += size
        if from_hole < 0:
            from_hole += size
        if from_home >= from_hole:
            table[hole] = other
            hole = slot
    table[hole] = NONE


def _fill_table(tree: Tree) -> int:
    """Enter all nodes into an empty table."""
    for node in range(1, tree.spare[TOP_NODE]):
        if tree.nodes[node, COUNT] and not _is_alone(tree, node):
            _enter(tree, node)
    return 0


fill_table = Loop(_fill_table, TREE_TYPES, name="suffix-tree", rooms=_ROOMS)


@inner
def _is_alone(tree: Tree, node: int) -> bool:
    """Tell whether a node has no siblings; it is its own predecessor then."""
    return bool(tree.nodes[node, PREV] == node)


@inner
def _child(tree: Tree, parent: int, token: int) -> int:
    nodes, table = tree.nodes, tree.table
    head = nodes[parent, HEAD]
    if head == NONE or nodes[head, TOKEN] == token:
        return head
    if _is_alone(tree, head):
        return NONE
    return table[_slot(tree, parent, token)]


# Siblings: in order of count, the largest first


@inner
def _join(tree: Tree, node: int, other: int, end: int) -> None:
    """Make a node the first or the last in the group of a neighbour of the same count."""
    nodes, groups, spare = tree.nodes, tree.groups, tree.spare
    group = nodes[other, GROUP]
    if group == NONE:
        group = spare[FREE_GROUP]
        if group == NONE:
            group = spare[TOP_GROUP]
            spare[TOP_GROUP] += 1
        else:
            spare[FREE_GROUP] = groups[group, FIRST]
        groups[group, FIRST] = groups[group, LAST] = other
        nodes[other, GROUP] = group
    groups[group, end] = node
    nodes[node, GROUP] = group


@inner
def _part(tree: Tree, node: int) -> None:
    """Take a node out of its group, which ends when one is left."""
    nodes, groups, spare = tree.nodes, tree.groups, tree.spare
    group = nodes[node, GROUP]
    if group == NONE:
        return
    nodes[node, GROUP] = NONE
    if groups[group, FIRST] == node:
        groups[group, FIRST] = nodes[node, NEXT]
    elif groups[group, LAST] == node:
        groups[group, LAST] = nodes[node, PREV]
    last = groups[group, LAST]
    if groups[group, FIRST] == last:
        nodes[last, GROUP] = NONE
        groups[group, FIRST] = spare[FREE_GROUP]
        spare[FREE_GROUP] = group


@inner
def _unlink(tree: Tree, node: int) -> None:
    """Take a node out of the list of its siblings."""
    nodes = tree.nodes
    parent, before, after = nodes[node, PARENT], nodes[node, PREV], nodes[node, NEXT]
    if nodes[parent, HEAD] == node:
        nodes[parent, HEAD] = after
    else:
        nodes[before, NEXT] = after
    if after != NONE:
        nodes[after, PREV] = before
    elif nodes[parent, HEAD] != NONE:
        nodes[nodes[parent, HEAD], PREV] = before


@inner
def _link_before(tree: Tree, node: int, other: int) -> None:
    nodes = tree.nodes
    parent, before = nodes[node, PARENT], nodes[other, PREV]
    is_head = nodes[parent, HEAD] == other
    nodes[node, NEXT] = other
    nodes[node, PREV] = before
    nodes[other, PREV] = node
    if is_head:
        nodes[parent, HEAD] = node
    else:
        nodes[before, NEXT] = node
    if not is_head and nodes[before, COUNT] == nodes[node, COUNT]:
        _join(tree, node, before, LAST)
    elif nodes[other, COUNT] == nodes[node, COUNT]:
        _join(tree, node, other, FIRST)


@inner
def _link_last(tree: Tree, node: int) -> None:
    nodes = tree.nodes
    parent = nodes[node, PARENT]
    head = nodes[parent, HEAD]
    nodes[node, NEXT] = nodes[node, GROUP] = NONE
    if head == NONE:
        nodes[parent, HEAD] = nodes[node, PREV] = node
        return
    before = nodes[head, PREV]
    nodes[before, NEXT] = nodes[head, PREV] = node
    nodes[node, PREV] = before
    if nodes[before, COUNT] == nodes[node, COUNT]:
        _join(tree, node, before, LAST)


@inner
def _replace(tree: Tree, old: int, new: int) -> None:
    """Put a node of the same count and first token in the place of another."""
    nodes, table, groups = tree.nodes, tree.table, tree.groups
    parent, before, after = nodes[old, PARENT], nodes[old, PREV], nodes[old, NEXT]
    group = nodes[old, GROUP]
    if before == old:
        before = new
    else:
        table[_slot(tree, parent, nodes[old, TOKEN])] = new
    nodes[new, PARENT], nodes[new, PREV], nodes[new, NEXT] = parent, before, after
    nodes[new, GROUP] = group
    if nodes[parent, HEAD] == old:
        nodes[parent, HEAD] = new
    else:
        nodes[before, NEXT] = new
    if after != NONE:
        nodes[after, PREV] = new
    else:
        nodes[nodes[parent, HEAD], PREV] = new
    if group != NONE:
        if groups[group, FIRST] == old:
            groups[group, FIRST] = new
        if groups[group, LAST] == old:
            groups[group, LAST] = new


@inner
def _increment(tree: Tree, node: int) -> None:
    """Count one more, and go before the siblings of the old count.

    A node that has none before it, and so catches up with the group ahead, goes before that group.
    Drafts depend on this order of equals, which is Arctic's.
    """
    nodes, groups = tree.nodes, tree.groups
    count = nodes[node, COUNT]
    before = nodes[node, PREV]
    if nodes[nodes[node, PARENT], HEAD] == node or nodes[before, COUNT] > count + 1:
        _part(tree, node)
        nodes[node, COUNT] = count + 1
        return
    group = nodes[before, GROUP]
    first = before if group == NONE else groups[group, FIRST]
    _part(tree, node)
    _unlink(tree, node)
    nodes[node, COUNT] = count + 1
    _link_before(tree, node, first)


@inner
def _decrement(tree: Tree, node: int) -> None:
    """Count one less, and go behind the siblings of the old count."""
    nodes, groups = tree.nodes, tree.groups
    count, after = nodes[node, COUNT], nodes[node, NEXT]
    if after == NONE or nodes[after, COUNT] < count:
        _part(tree, node)
        nodes[node, COUNT] = count - 1
        if after != NONE and nodes[after, COUNT] == count - 1:
            _join(tree, node, after, FIRST)
        return
    after = nodes[groups[nodes[node, GROUP], LAST], NEXT]
    _part(tree, node)
    _unlink(tree, node)
    nodes[node, COUNT] = count - 1
    if after == NONE:
        _link_last(tree, node)
    else:
        _link_before(tree, node, after)


# Nodes


@inner
def _new_node(tree: Tree) -> int:
    nodes, spare = tree.nodes, tree.spare
    node = spare[FREE_NODE]
    if node == NONE:
        node = spare[TOP_NODE]
        spare[TOP_NODE] += 1
    else:
        spare[FREE_NODE] = nodes[node, NEXT]
        spare[NUM_FREE] -= 1
    return node


@inner
def _free_node(tree: Tree, node: int) -> None:
    nodes, spare = tree.nodes, tree.spare
    nodes[node, COUNT] = 0
    nodes[node, NEXT] = spare[FREE_NODE]
    spare[FREE_NODE] = node
    spare[NUM_FREE] += 1


@inner
def _add_leaf(tree: Tree, parent: int, token: int, place: int) -> int:
    nodes = tree.nodes
    node = _new_node(tree)
    nodes[node, COUNT] = 1
    nodes[node, PARENT] = parent
    nodes[node, TOKEN] = token
    nodes[node, TEXT] = place
    nodes[node, LENGTH] = OPEN
    nodes[node, HEAD] = NONE
    head = nodes[parent, HEAD]
    if head != NONE:
        if _is_alone(tree, head):
            _enter(tree, head)
        _enter(tree, node)
    _link_last(tree, node)
    return node


@inner
def _remove_leaf(tree: Tree, node: int) -> None:
    nodes = tree.nodes
    parent = nodes[node, PARENT]
    _part(tree, node)
    if not _is_alone(tree, node):
        _leave(tree, node)
    _unlink(tree, node)
    head = nodes[parent, HEAD]
    if head != NONE and _is_alone(tree, head):
        _leave(tree, head)
    _free_node(tree, node)


@inner
def _drop_first(tree: Tree, node: int) -> None:
    """Give the first token of an only child to its parent."""
    nodes, pool = tree.nodes, tree.pool
    nodes[node, TEXT] += 1
    nodes[node, TOKEN] = pool[nodes[node, TEXT]]
    if nodes[node, LENGTH] != OPEN:
        nodes[node, LENGTH] -= 1


@inner
def _split(tree: Tree, node: int) -> int:
    """Return a new node that holds the first token of another and has it as its only child."""
    nodes = tree.nodes
    upper = _new_node(tree)
    nodes[upper, COUNT] = nodes[node, COUNT]
    nodes[upper, TOKEN] = nodes[node, TOKEN]
    nodes[upper, TEXT] = nodes[node, TEXT]
    nodes[upper, LENGTH] = 1
    nodes[upper, HEAD] = node
    _replace(tree, node, upper)
    nodes[node, PARENT] = upper
    nodes[node, PREV] = node
    nodes[node, NEXT] = nodes[node, GROUP] = NONE
    _drop_first(tree, node)
    return upper


@inner
def _merge(tree: Tree, node: int) -> None:
    """Let the only child of a node take its place and its text."""
    nodes = tree.nodes
    child = nodes[node, HEAD]
    nodes[child, TOKEN] = nodes[node, TOKEN]
    nodes[child, TEXT] -= nodes[node, LENGTH]
    if nodes[child, LENGTH] != OPEN:
        nodes[child, LENGTH] += nodes[node, LENGTH]
    _replace(tree, node, child)
    _free_node(tree, node)


# Sequences


@inner
def _advance(tree: Tree, node: int, place: int) -> int:
    """Return where a suffix ends that ended at a node, with one more token."""
    nodes, pool = tree.nodes, tree.pool
    child = _child(tree, node, pool[place])
    if child == NONE:
        if node != ROOT and nodes[node, COUNT] == 1:  # nobody shares it any more
            nodes[node, LENGTH] = OPEN
            return node
        return _add_leaf(tree, node, pool[place], place)
    length = nodes[child, LENGTH]
    is_single = length == 1 or (length == OPEN and pool[nodes[child, TEXT] + 1] == UNKNOWN)
    if node != ROOT and nodes[node, COUNT] == nodes[child, COUNT] + 1:
        # Nothing but this suffix ended here, so nothing will: the node moves along.
        if is_single:
            nodes[child, LENGTH] = 1
            nodes[child, COUNT] += 1
            newest = nodes[node, TEXT]
            _merge(tree, node)
            nodes[child, TEXT] = newest
            return child
        nodes[node, LENGTH] += 1
        _drop_first(tree, child)
        return node
    if is_single:
        nodes[child, LENGTH] = 1
    else:
        child = _split(tree, child)
    if nodes[child, TEXT] < place:
        nodes[child, TEXT] = place
    _increment(tree, child)
    return child


@inner
def _append_token(tree: Tree, cursor: Longs, token: int) -> None:
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
def _append(tree: Tree, cursor: Longs, token_ids: Ints, start: int, known_len: int) -> bool:
    """Take in more of a sequence that begins at `start`; tell whether there was room for it all."""
    depth = len(cursor) - WINDOW
    while cursor[BASE] != REMOVED and cursor[KNOWN_LEN] < known_len:
        if len(tree.nodes) - tree.spare[TOP_NODE] + tree.spare[NUM_FREE] < depth:
            return False
        _append_token(tree, cursor, token_ids[start + cursor[KNOWN_LEN]])
    return True


def _learn(request: Request) -> int:
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


learn = Loop(_learn, REQUEST_TYPES, name="suffix-tree", rooms=_ROOMS)


def _remove(removal: Removal) -> int:
    """Forget the oldest sequence; its slot is free afterwards."""
    tree, cursor = removal.tree, removal.cursor
    nodes, pool = tree.nodes, tree.pool
    end = cursor[BASE] + cursor[KNOWN_LEN]
    for start in range(cursor[BASE], end):
        node, place = ROOT, start
        while place < end:
            child = _child(tree, node, pool[place])
            if child == NONE:
                break
            if nodes[child, COUNT] == 1:
                _remove_leaf(tree, child)
                break
            _decrement(tree, child)
            place += nodes[child, LENGTH]
            node = child
        child = nodes[node, HEAD]
        if (
            node != ROOT
            and child != NONE
            and _is_alone(tree, child)
            and nodes[child, COUNT] == nodes[node, COUNT]
        ):
            _merge(tree, node)
    cursor[BASE], cursor[KNOWN_LEN] = REMOVED, 0
    return 0


remove = Loop(_remove, REMOVAL_TYPES, name="suffix-tree", rooms=_ROOMS)


# Drafts


@inner
def _match_from_root(tree: Tree, token_ids: Ints, start: int, known_len: int) -> tuple[int, int]:
    """Return where a run of tokens ends: node (none: not in the tree) and tokens into it."""
    nodes, pool = tree.nodes, tree.pool
    node, offset = ROOT, 0
    for place in range(start, known_len):
        token = token_ids[place]
        if node == ROOT or (nodes[node, LENGTH] != OPEN and offset == nodes[node, LENGTH]):
            node, offset = _child(tree, node, token), 0
            if node == NONE:
                return NONE, 0
        elif pool[nodes[node, TEXT] + offset] != token:
            return NONE, 0
        offset += 1
    return node, offset


@inner
def _match(tree: Tree, cursor: Longs, token_ids: Ints, known_len: int, matches: Ints) -> int:
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
def _edge_token(tree: Tree, node: int, offset: int) -> int:
    """Return a token of a node, `UNKNOWN` at its end."""
    nodes, pool = tree.nodes, tree.pool
    length = nodes[node, LENGTH]
    if length != OPEN and offset >= length:
        return UNKNOWN
    return pool[nodes[node, TEXT] + offset]


@inner
def _draft_chain(
    tree: Tree, scratch: Scratch, match_len: int, budget: int, row: int
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
def _copy(items: Ints, source: int, target: int) -> None:
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
    tree: Tree, scratch: Scratch, match_len: int, budget: int, row: int
) -> tuple[int, np.float32]:
    """Take the most probable token that is left, again and again; return length and score.

    `NO_ROOM` as the length says that the heap is too small.
    """
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
    tree: Tree, scratch: Scratch, longest: int, best: tuple[int, int, int, np.float32]
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


def _draft(request: Request) -> int:
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


draft = Loop(_draft, REQUEST_TYPES, name="suffix-tree", rooms=_ROOMS)
