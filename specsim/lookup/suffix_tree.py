"""A suffix tree of token sequences that grow at their ends and leave in the order they came.

The tree holds every run of at most `depth` tokens, and how often it occurred. Runs that always
occurred together share a node (path compression), so there are at most two nodes per token. All of
it lies in a few arrays of int32, and this module is the code, compiled by numba, that works on
them; `specsim.lookup.suffix` owns and grows the arrays.

A tree is the tuple ``(nodes, table, groups, pool, spare)``:

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

All functions are in one file since numba's cache sees changes only of the file that it caches.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = [
    "CURSOR_FIELDS",
    "NODE_COLUMNS",
    "SPARE_FIELDS",
    "UNKNOWN",
    "Arrays",
    "Scratch",
    "append",
    "best_draft",
    "fill_table",
    "remove",
]

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]
Arrays = tuple[Ints, Ints, Ints, Ints, Longs]
"""(nodes, table, groups, pool, spare)"""
Scratch = tuple[Ints, Floats, Ints, Floats, Ints, Ints, Floats]
"""(token_ids and parents of two drafts, their probs, heap items, their probs, matches, budget by
match length, least probability)"""

_Function = TypeVar("_Function", bound=Callable[..., object])


def _compiled(function: _Function) -> _Function:
    """Compile a function that allocates nothing, so without numba's counting of references.

    With it everything took six times as long.
    """
    return _compile(function)


def _inner(function: _Function) -> _Function:
    """Do the same with one that is only called by other compiled ones, never from Python.

    It saves a third of the time to compile that nothing leads from Python to it; such a call
    would crash.
    """
    return _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compile(function: _Function, **options: Any) -> _Function:
    options |= {"cache": True, "error_model": "numpy", "_nrt": False}
    compiled: _Function = njit(**options)(function)
    return compiled


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
SPARE_FIELDS = 5
"""Rows of nodes ever used, first of the chain of freed ones and their number; likewise groups."""
BASE, KNOWN_LEN, SHARED, WINDOW = range(4)
CURSOR_FIELDS = 3
"""Place of its first token, tokens so far, first start of a suffix seen more than once; then the
node where each of the last `depth` suffixes ends, that of start `s` at ``s % depth``."""
REMOVED = -1
"""Base of a sequence that was removed while it grew: the tree ignores it from then on."""

_MIX_PARENT = np.uint64(0x9E3779B97F4A7C15)  # odd, with bits all over
_MIX_KEY = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


# Children: the table


@_inner
def _home(parent: int, token: int, size: int) -> int:
    """Return where the search for a child begins."""
    key = (np.uint64(parent) * _MIX_PARENT + np.uint64(token)) * _MIX_KEY
    return int(np.int64(((key >> _HALF) * np.uint64(size)) >> _HALF))


@_inner
def _slot(tree: Arrays, parent: int, token: int) -> int:
    """Return where a child is in the table, or where it belongs."""
    nodes, table = tree[0], tree[1]
    slot = _home(parent, token, len(table))
    while True:
        child = table[slot]
        if child == NONE or (nodes[child, PARENT] == parent and nodes[child, TOKEN] == token):
            return slot
        slot += 1
        if slot == len(table):
            slot = 0


@_inner
def _enter(tree: Arrays, node: int) -> None:
    nodes, table = tree[0], tree[1]
    table[_slot(tree, nodes[node, PARENT], nodes[node, TOKEN])] = node


@_inner
def _leave(tree: Arrays, node: int) -> None:
    """Take a node out of the table, and move up those that had to give way to it."""
    nodes, table = tree[0], tree[1]
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


@_compiled
def fill_table(tree: Arrays) -> None:
    """Enter all nodes into an empty table.

    Parameters
    ----------
    tree : Arrays
    """
    nodes, spare = tree[0], tree[4]
    for node in range(1, spare[TOP_NODE]):
        if nodes[node, COUNT] and not _is_alone(nodes, node):
            _enter(tree, node)


@_inner
def _is_alone(nodes: Ints, node: int) -> bool:
    """Tell whether a node has no siblings; it is its own predecessor then."""
    return nodes[node, PREV] == node


@_inner
def _child(tree: Arrays, parent: int, token: int) -> int:
    nodes, table = tree[0], tree[1]
    head = nodes[parent, HEAD]
    if head == NONE or nodes[head, TOKEN] == token:
        return head
    if _is_alone(nodes, head):
        return NONE
    return table[_slot(tree, parent, token)]


# Siblings: in order of count, the largest first


@_inner
def _join(tree: Arrays, node: int, other: int, end: int) -> None:
    """Make a node the first or the last in the group of a neighbour of the same count."""
    nodes, groups, spare = tree[0], tree[2], tree[4]
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


@_inner
def _part(tree: Arrays, node: int) -> None:
    """Take a node out of its group, which ends when one is left."""
    nodes, groups, spare = tree[0], tree[2], tree[4]
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


@_inner
def _unlink(nodes: Ints, node: int) -> None:
    """Take a node out of the list of its siblings."""
    parent, before, after = nodes[node, PARENT], nodes[node, PREV], nodes[node, NEXT]
    if nodes[parent, HEAD] == node:
        nodes[parent, HEAD] = after
    else:
        nodes[before, NEXT] = after
    if after != NONE:
        nodes[after, PREV] = before
    elif nodes[parent, HEAD] != NONE:
        nodes[nodes[parent, HEAD], PREV] = before


@_inner
def _link_before(tree: Arrays, node: int, other: int) -> None:
    nodes = tree[0]
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


@_inner
def _link_last(tree: Arrays, node: int) -> None:
    nodes = tree[0]
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


@_inner
def _replace(tree: Arrays, old: int, new: int) -> None:
    """Put a node of the same count and first token in the place of another."""
    nodes, table, groups = tree[0], tree[1], tree[2]
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


@_inner
def _increment(tree: Arrays, node: int) -> None:
    """Count one more, and go before the siblings of the old count.

    A node that has none before it, and so catches up with the group ahead, goes before that group.
    Drafts depend on this order of equals, which is Arctic's.
    """
    nodes, groups = tree[0], tree[2]
    count = nodes[node, COUNT]
    before = nodes[node, PREV]
    if nodes[nodes[node, PARENT], HEAD] == node or nodes[before, COUNT] > count + 1:
        _part(tree, node)
        nodes[node, COUNT] = count + 1
        return
    group = nodes[before, GROUP]
    first = before if group == NONE else groups[group, FIRST]
    _part(tree, node)
    _unlink(nodes, node)
    nodes[node, COUNT] = count + 1
    _link_before(tree, node, first)


@_inner
def _decrement(tree: Arrays, node: int) -> None:
    """Count one less, and go behind the siblings of the old count."""
    nodes, groups = tree[0], tree[2]
    count, after = nodes[node, COUNT], nodes[node, NEXT]
    if after == NONE or nodes[after, COUNT] < count:
        _part(tree, node)
        nodes[node, COUNT] = count - 1
        if after != NONE and nodes[after, COUNT] == count - 1:
            _join(tree, node, after, FIRST)
        return
    after = nodes[groups[nodes[node, GROUP], LAST], NEXT]
    _part(tree, node)
    _unlink(nodes, node)
    nodes[node, COUNT] = count - 1
    if after == NONE:
        _link_last(tree, node)
    else:
        _link_before(tree, node, after)


# Nodes


@_inner
def _new_node(tree: Arrays) -> int:
    nodes, spare = tree[0], tree[4]
    node = spare[FREE_NODE]
    if node == NONE:
        node = spare[TOP_NODE]
        spare[TOP_NODE] += 1
    else:
        spare[FREE_NODE] = nodes[node, NEXT]
        spare[NUM_FREE] -= 1
    return node


@_inner
def _free_node(tree: Arrays, node: int) -> None:
    nodes, spare = tree[0], tree[4]
    nodes[node, COUNT] = 0
    nodes[node, NEXT] = spare[FREE_NODE]
    spare[FREE_NODE] = node
    spare[NUM_FREE] += 1


@_inner
def _add_leaf(tree: Arrays, parent: int, token: int, place: int) -> int:
    nodes = tree[0]
    node = _new_node(tree)
    nodes[node, COUNT] = 1
    nodes[node, PARENT] = parent
    nodes[node, TOKEN] = token
    nodes[node, TEXT] = place
    nodes[node, LENGTH] = OPEN
    nodes[node, HEAD] = NONE
    head = nodes[parent, HEAD]
    if head != NONE:
        if _is_alone(nodes, head):
            _enter(tree, head)
        _enter(tree, node)
    _link_last(tree, node)
    return node


@_inner
def _remove_leaf(tree: Arrays, node: int) -> None:
    nodes = tree[0]
    parent = nodes[node, PARENT]
    _part(tree, node)
    if not _is_alone(nodes, node):
        _leave(tree, node)
    _unlink(nodes, node)
    head = nodes[parent, HEAD]
    if head != NONE and _is_alone(nodes, head):
        _leave(tree, head)
    _free_node(tree, node)


@_inner
def _drop_first(tree: Arrays, node: int) -> None:
    """Give the first token of an only child to its parent."""
    nodes, pool = tree[0], tree[3]
    nodes[node, TEXT] += 1
    nodes[node, TOKEN] = pool[nodes[node, TEXT]]
    if nodes[node, LENGTH] != OPEN:
        nodes[node, LENGTH] -= 1


@_inner
def _split(tree: Arrays, node: int) -> int:
    """Return a new node that holds the first token of another and has it as its only child."""
    nodes = tree[0]
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


@_inner
def _merge(tree: Arrays, node: int) -> None:
    """Let the only child of a node take its place and its text."""
    nodes = tree[0]
    child = nodes[node, HEAD]
    nodes[child, TOKEN] = nodes[node, TOKEN]
    nodes[child, TEXT] -= nodes[node, LENGTH]
    if nodes[child, LENGTH] != OPEN:
        nodes[child, LENGTH] += nodes[node, LENGTH]
    _replace(tree, node, child)
    _free_node(tree, node)


# Sequences


@_inner
def _advance(tree: Arrays, node: int, place: int) -> int:
    """Return where a suffix ends that ended at a node, with one more token."""
    nodes, pool = tree[0], tree[3]
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


@_inner
def _append_token(tree: Arrays, cursor: Longs, token: int) -> None:
    nodes, pool = tree[0], tree[3]
    window = cursor[WINDOW:]
    depth = len(window)
    base, known_len, shared = cursor[BASE], cursor[KNOWN_LEN], cursor[SHARED]
    oldest = max(0, known_len + 1 - depth)
    if oldest:  # the suffix before it is as long as it may get
        node = window[known_len % depth]
        if nodes[node, LENGTH] == OPEN:
            nodes[node, LENGTH] = base + known_len - nodes[node, TEXT]
    shared = max(shared, oldest)
    while shared > oldest and nodes[window[(shared - 1) % depth], LENGTH] != OPEN:
        shared -= 1  # another sequence has caught up with this one
    place = base + known_len
    pool[place] = token
    window[known_len % depth] = ROOT
    slot = shared % depth
    for start in range(shared, known_len + 1):
        node = _advance(tree, window[slot], place)
        window[slot] = node
        if start == shared and nodes[node, LENGTH] == OPEN:
            shared += 1
        slot += 1
        if slot == depth:
            slot = 0
    cursor[KNOWN_LEN] = known_len + 1
    cursor[SHARED] = shared


@_compiled
def append(tree: Arrays, cursor: Longs, token_ids: Ints, known_len: int) -> bool:
    """Take in more of a sequence, as far as there is room for nodes.

    Parameters
    ----------
    tree : Arrays
    cursor : ndarray of int64, shape (CURSOR_FIELDS + depth,)
    token_ids : ndarray of int32, shape (n,)
        The whole sequence.
    known_len : int, tokens
        How much of it to take in.

    Returns
    -------
    bool
        Whether that was possible; if not, the nodes must grow by at least `depth`, and the call be
        made again.
    """
    nodes, spare = tree[0], tree[4]
    depth = len(cursor) - CURSOR_FIELDS
    while cursor[BASE] != REMOVED and cursor[KNOWN_LEN] < known_len:
        if len(nodes) - spare[TOP_NODE] + spare[NUM_FREE] < depth:
            return False
        _append_token(tree, cursor, token_ids[cursor[KNOWN_LEN]])
    return True


@_compiled
def remove(tree: Arrays, cursor: Longs) -> None:
    """Forget the oldest sequence; its slot is free afterwards.

    Parameters
    ----------
    tree : Arrays
    cursor : ndarray of int64, shape (CURSOR_FIELDS + any,)
    """
    nodes, pool = tree[0], tree[3]
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
            and _is_alone(nodes, child)
            and nodes[child, COUNT] == nodes[node, COUNT]
        ):
            _merge(tree, node)
    cursor[BASE], cursor[KNOWN_LEN] = REMOVED, 0


# Drafts


@_inner
def _match_from_root(tree: Arrays, token_ids: Ints, start: int, known_len: int) -> tuple[int, int]:
    """Return where a run of tokens ends: node (none: not in the tree) and tokens into it."""
    nodes, pool = tree[0], tree[3]
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


@_inner
def _match(tree: Arrays, cursor: Longs, token_ids: Ints, known_len: int, matches: Ints) -> int:
    """Note where each suffix of the known text ends in the tree; return the longest length."""
    nodes = tree[0]
    window = cursor[WINDOW:]
    depth, own_len = len(window), cursor[KNOWN_LEN]
    longest = min(known_len, depth) - 1
    for match_len in range(1, longest + 1):
        if match_len <= own_len:
            node = window[(own_len - match_len) % depth]
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


@_inner
def _edge_token(tree: Arrays, node: int, offset: int) -> int:
    """Return a token of a node, `UNKNOWN` at its end."""
    nodes, pool = tree[0], tree[3]
    length = nodes[node, LENGTH]
    if length != OPEN and offset >= length:
        return UNKNOWN
    return pool[nodes[node, TEXT] + offset]


@_inner
def _draft_chain(
    tree: Arrays, match: Ints, budget: int, scratch: Scratch, row: int
) -> tuple[int, np.float32]:
    """Follow the most frequent child; return length and score."""
    nodes = tree[0]
    tokens, probs, least = scratch[0][row], scratch[1][row], scratch[6][0]
    node, offset = match[0], match[1]
    length, score, prob = 0, np.float32(0), np.float32(1)
    while length < budget:
        token = _edge_token(tree, node, offset)
        if token != UNKNOWN:
            tokens[0, length] = token
            probs[length] = prob
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


@_inner
def _copy(items: Ints, source: int, target: int) -> None:
    """Copy a row, which takes longer, and memory, as an assignment of slices."""
    for column in range(3):
        items[target, column] = items[source, column]


@_inner
def _rise(scratch: Scratch, hole: int, prob: np.float32, item: tuple[int, int, int]) -> None:
    """Put an item into a hole of the heap, or above it, but below its equals."""
    items, keys = scratch[2], scratch[3]
    while hole > 0:
        above = (hole - 1) >> 1
        if keys[above] >= prob:
            break
        keys[hole] = keys[above]
        _copy(items, above, hole)
        hole = above
    keys[hole] = prob
    items[hole, 0], items[hole, 1], items[hole, 2] = item


@_inner
def _drop_best(scratch: Scratch, size: int) -> None:
    """Drop the first item of the heap.

    The hole sinks to the bottom, to the right among equals, before the last item fills it, as in
    `heapq` and in C++'s standard library: which of two equal items comes first depends on it.
    """
    items, keys = scratch[2], scratch[3]
    size -= 1
    hole, below = 0, 1
    while below < size:
        if below + 1 < size and keys[below + 1] >= keys[below]:
            below += 1
        keys[hole] = keys[below]
        _copy(items, below, hole)
        hole, below = below, 2 * below + 1
    _rise(scratch, hole, keys[size], (items[size, 0], items[size, 1], items[size, 2]))


@_inner
def _draft_tree(
    tree: Arrays, match: Ints, budget: int, scratch: Scratch, row: int
) -> tuple[int, np.float32]:
    """Take the most probable token that is left, again and again; return length and score.

    A length of -1 says that the heap is too small.
    """
    nodes, items, keys = tree[0], scratch[2], scratch[3]
    tokens, probs, least = scratch[0][row], scratch[1][row], scratch[6][0]
    length, score = 0, np.float32(0)
    _rise(scratch, 0, np.float32(1), (match[0], match[1], -1))
    size = 1
    while length < budget and size:
        prob, node, offset, parent = keys[0], items[0, 0], items[0, 1], items[0, 2]
        _drop_best(scratch, size)
        size -= 1
        token = _edge_token(tree, node, offset)
        if token != UNKNOWN:
            tokens[0, length] = token
            tokens[1, length] = parent
            probs[length] = prob
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
                return -1, score
            _rise(scratch, size, share, (child, 0, parent))
            size += 1
            child = nodes[child, NEXT]
    return length, score


@_inner
def _improve(
    tree: Arrays,
    longest: int,
    max_len: int,
    is_tree: bool,
    scratch: Scratch,
    best: tuple[int, int, int, np.float32],
) -> tuple[int, int, int, np.float32]:
    """Return the best draft of one tree, if it is better than what there is.

    Longer matches go first, since they win ties. A draft scores at most one per token, so the
    search ends where budgets get too small.
    """
    matches, budgets = scratch[4], scratch[5]
    for match_len in range(longest, 0, -1):
        budget = min(max_len, budgets[match_len])
        if budget <= best[3]:
            break
        row = 1 - best[0]
        if is_tree:
            length, score = _draft_tree(tree, matches[match_len], budget, scratch, row)
            if length < 0:
                return row, -1, match_len, score
        else:
            length, score = _draft_chain(tree, matches[match_len], budget, scratch, row)
        if score > best[3]:
            best = (row, length, match_len, score)
    return best


@_compiled
def best_draft(
    trees: tuple[Arrays, Arrays],
    cursors: tuple[Longs, Longs],
    known: Ints,
    max_len: int,
    is_tree: bool,
    scratch: Scratch,
) -> tuple[int, int, int, np.float32]:
    """Return the draft of the highest score; ties go to the first tree, then to the longer match.

    Parameters
    ----------
    trees : tuple of two Arrays
    cursors : tuple of two ndarrays of int64, shape (CURSOR_FIELDS + depth,)
        How far each tree has taken in the end of the text.
    known : ndarray of int32, shape (n,)
        The known text.
    max_len : int, tokens
    is_tree : bool
        Whether the draft may branch.
    scratch : Scratch
        Overwritten.

    Returns
    -------
    row : int
        Where in `scratch` the draft is.
    length : int, tokens
        -1 if the heap in `scratch` is too small.
    match_len : int, tokens
    score : float
    """
    best = (0, 0, 0, np.float32(-1))
    for which in range(2):
        longest = _match(trees[which], cursors[which], known, len(known), scratch[4])
        best = _improve(trees[which], longest, max_len, is_tree, scratch, best)
        if best[1] < 0:
            break
    return best
