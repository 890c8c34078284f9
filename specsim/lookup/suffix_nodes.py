"""Nodes of a suffix tree: finding, ordering, splitting and merging them.

A tree is a tuple of arrays, `Arrays`:

- `nodes`, a row per node with the columns below; row 0 is the root and "none" at once.
- `table`, a hash table of nodes by parent and first token; it holds those that have siblings.
- `groups`, the first and last of siblings of equal count, where there are at least two.
- `pool`, the text. A sequence has one contiguous slot, ended by `UNKNOWN`, in order of arrival.
- `spare`, what is unused of the arrays (`TOP_NODE` ...).

An only child is found through its parent, so the table is touched where text branches and nowhere
else. Everything here is compiled (`specsim.core.compiled`).
"""

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import inner

Ints = Annotated[NDArray[np.int32], 1]
Rows = Annotated[NDArray[np.int32], 2]
Longs = Annotated[NDArray[np.int64], 1]


class Arrays(NamedTuple):
    """A suffix tree; see above."""

    nodes: Rows
    table: Ints
    groups: Rows
    pool: Ints
    spare: Longs


COUNT, PARENT, TOKEN, TEXT, LENGTH, HEAD, NEXT, PREV, GROUP = range(9)
NODE_COLUMNS = 9
"""Occurrences (0: unused row), parent, first token, place of its text in the pool, length of it,
first child, next and previous sibling (that of the first is the last), group of equal count."""
ROOT = NONE = 0
OPEN = 0  # length of a leaf that reaches as far as its sequence is known
UNKNOWN = -1  # stands in the pool where a sequence is not known yet, and after its end
FIRST, LAST = range(2)
TOP_NODE, FREE_NODE, NUM_FREE, TOP_GROUP, FREE_GROUP = range(5)
"""Rows of nodes ever used, first of the chain of freed ones and their number; likewise groups."""
BASE, KNOWN_LEN, SHARED, WINDOW = range(4)
CURSOR_FIELDS = 3
"""Place of its first token, tokens so far, first start of a suffix seen more than once; then the
node where each of the last `depth` suffixes ends, that of start `s` at ``s % depth``."""

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
def _slot(tree: Arrays, parent: int, token: int) -> int:
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
def enter(tree: Arrays, node: int) -> None:
    """Put a node into the table."""
    nodes, table = tree.nodes, tree.table
    table[_slot(tree, nodes[node, PARENT], nodes[node, TOKEN])] = node


@inner
def _leave(tree: Arrays, node: int) -> None:
    """Take a node out of the table, and move up those that had to give way to it."""
    nodes, table = tree.nodes, tree.table
    size = len(table)
    hole = _slot(tree, nodes[node, PARENT], nodes[node, TOKEN])
    slot = hole
    while True:
        slot = (slot + 1) % size
        other = table[slot]
        if other == NONE:
            break
        home = _home(nodes[other, PARENT], nodes[other, TOKEN], size)
        if (slot - home) % size >= (slot - hole) % size:
            table[hole] = other
            hole = slot
    table[hole] = NONE


@inner
def is_alone(tree: Arrays, node: int) -> bool:
    """Tell whether a node has no siblings; it is its own predecessor then."""
    return bool(tree.nodes[node, PREV] == node)


@inner
def find_child(tree: Arrays, parent: int, token: int) -> int:
    """Return the child that begins with a token, or `NONE`."""
    nodes, table = tree.nodes, tree.table
    head = nodes[parent, HEAD]
    if head == NONE or nodes[head, TOKEN] == token:
        return head
    if is_alone(tree, head):
        return NONE
    return table[_slot(tree, parent, token)]


# Siblings: in order of count, the largest first


@inner
def _join(tree: Arrays, node: int, other: int, end: int) -> None:
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
def _part(tree: Arrays, node: int) -> None:
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
def _unlink(tree: Arrays, node: int) -> None:
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
def _link_before(tree: Arrays, node: int, other: int) -> None:
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
def _link_last(tree: Arrays, node: int) -> None:
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
def _replace(tree: Arrays, old: int, new: int) -> None:
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
def increment(tree: Arrays, node: int) -> None:
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
def decrement(tree: Arrays, node: int) -> None:
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
def _new_node(tree: Arrays) -> int:
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
def _free_node(tree: Arrays, node: int) -> None:
    nodes, spare = tree.nodes, tree.spare
    nodes[node, COUNT] = 0
    nodes[node, NEXT] = spare[FREE_NODE]
    spare[FREE_NODE] = node
    spare[NUM_FREE] += 1


@inner
def add_leaf(tree: Arrays, parent: int, token: int, place: int) -> int:
    """Return a new, open leaf whose text begins at a place of the pool."""
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
        if is_alone(tree, head):
            enter(tree, head)
        enter(tree, node)
    _link_last(tree, node)
    return node


@inner
def remove_leaf(tree: Arrays, node: int) -> None:
    """Take a leaf out of the tree; a sibling that is alone now leaves the table."""
    nodes = tree.nodes
    parent = nodes[node, PARENT]
    _part(tree, node)
    if not is_alone(tree, node):
        _leave(tree, node)
    _unlink(tree, node)
    head = nodes[parent, HEAD]
    if head != NONE and is_alone(tree, head):
        _leave(tree, head)
    _free_node(tree, node)


@inner
def drop_first(tree: Arrays, node: int) -> None:
    """Give the first token of an only child to its parent."""
    nodes, pool = tree.nodes, tree.pool
    nodes[node, TEXT] += 1
    nodes[node, TOKEN] = pool[nodes[node, TEXT]]
    if nodes[node, LENGTH] != OPEN:
        nodes[node, LENGTH] -= 1


@inner
def split(tree: Arrays, node: int) -> int:
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
    drop_first(tree, node)
    return upper


@inner
def merge(tree: Arrays, node: int) -> None:
    """Let the only child of a node take its place and its text."""
    nodes = tree.nodes
    child = nodes[node, HEAD]
    nodes[child, TOKEN] = nodes[node, TOKEN]
    nodes[child, TEXT] -= nodes[node, LENGTH]
    if nodes[child, LENGTH] != OPEN:
        nodes[child, LENGTH] += nodes[node, LENGTH]
    _replace(tree, node, child)
    _free_node(tree, node)
