"""Suffix decoding: what followed, most often, after the longest runs that the text ends with."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specsim.core.compiled import Pointers, address_of, types_of
from specsim.core.errors import CapacityError
from specsim.core.request import Text
from specsim.lookup import NO_DRAFT, Draft, Lookup
from specsim.lookup.suffix_nodes import CURSOR_FIELDS, NODE_COLUMNS, UNKNOWN, Arrays
from specsim.lookup.suffix_tree import (
    LOCAL,
    NO_ROOM,
    REMOVED,
    Removal,
    RequestArrays,
    Scratch,
    draft,
    fill_table,
    learn,
    remove,
)

Cursor = NDArray[np.int64]

_TREE_TYPES, _SCRATCH_TYPES = types_of(Arrays), types_of(Scratch)
_REQUEST_TYPES, _REMOVAL_TYPES = types_of(RequestArrays), types_of(Removal)

_GROWTH = 1.2  # little slack: nodes are most of the memory, and realloc moves them cheaply
_SLOTS_PER_NODE = 1.4
_CURSOR_BYTES = 136  # of a sequence that has ended, with what Python needs for an array
FIRST_TOKENS = 1024  # room in the global tree at first
MAX_TOKENS = 2**30  # of one tree; at most two nodes each, so that all numbers are int32


class SuffixTree:
    """The arrays of a suffix tree of runs of up to `depth` tokens; they grow as needed."""

    def __init__(self, depth: int, num_tokens: int) -> None:
        self._depth = depth
        self._cursors: deque[Cursor] = deque()
        self._used = 0
        num_nodes = int(1.3 * num_tokens) + depth + 2  # of text that repeats itself as much as most
        self._nodes = np.empty((num_nodes, NODE_COLUMNS), dtype=np.int32)
        self._groups = np.empty((_num_groups(num_nodes), 2), dtype=np.int32)
        self._pool = np.full(num_tokens + 1, UNKNOWN, dtype=np.int32)
        self._table = np.zeros(int(_SLOTS_PER_NODE * num_nodes), dtype=np.int32)
        # Row 0 of nodes is the root, and means "none", as that of groups does.
        self._nodes[0] = 0
        self.spare = np.array([1, 0, 0, 1, 0], dtype=np.int64)
        # All arrays grow in place, so this stays as it is.
        self._arrays = Arrays(self._nodes, self._table, self._groups, self._pool, self.spare)
        self.pointers = Pointers(self._arrays, _TREE_TYPES)
        """What loops see of it."""

    def start(self, num_tokens: int) -> Cursor:
        """Reserve a slot for so many tokens; a CapacityError if int32 cannot count them all."""
        self._make_room(num_tokens + 1)
        cursor = np.zeros(CURSOR_FIELDS + self._depth, dtype=np.int64)
        cursor[0] = self._used
        self._used += num_tokens + 1
        self._cursors.append(cursor)
        return cursor

    def grow(self) -> int:
        """Make room for more nodes; return the memory that it takes, bytes."""
        before = self.memory_bytes
        size = int(_GROWTH * len(self._nodes)) + self._depth
        self._nodes.resize((size, NODE_COLUMNS), refcheck=False)
        self._groups.resize((_num_groups(size), 2), refcheck=False)
        self._table.resize(int(_SLOTS_PER_NODE * size), refcheck=False)
        self._table[:] = 0
        self.pointers.update()
        fill_table.bind(self.pointers)()
        return self.memory_bytes - before

    @staticmethod
    def close(cursor: Cursor) -> None:
        """Keep no more of a cursor than what it takes to remove its sequence."""
        cursor.resize(CURSOR_FIELDS, refcheck=False)

    def remove_oldest(self) -> None:
        """Forget the sequence that was started first; whatever its cursor appends is ignored."""
        remove.bind(Pointers(Removal(self.pointers, self._cursors.popleft()), _REMOVAL_TYPES))()

    @property
    def num_sequences(self) -> int:
        return len(self._cursors)

    @property
    def memory_bytes(self) -> int:
        return sum(array.nbytes for array in self._arrays) + _CURSOR_BYTES * len(self._cursors)

    def _make_room(self, num_tokens: int) -> None:
        gone = int(self._cursors[0][0]) if self._cursors else self._used
        needed = self._used + num_tokens
        if needed > len(self._pool) and (2 * gone >= self._used or needed > MAX_TOKENS):
            self._move_text(gone)
            needed -= gone
        if needed > MAX_TOKENS:
            raise CapacityError(
                f"the suffix tree holds {self._used} tokens and has no room for {num_tokens} more "
                f"(at most {MAX_TOKENS}); lower suffix_decoding_max_cached_requests"
            )
        old = len(self._pool)
        if needed > old:
            size = min(max(needed, int(_GROWTH * old)), MAX_TOKENS)
            self._pool.resize(size, refcheck=False)
            self._pool[old:] = UNKNOWN
            self.pointers.update()

    def _move_text(self, gone: int) -> None:
        """Move the text to the front of the pool, over what has been removed."""
        left = self._used - gone
        self._pool[:left] = self._pool[gone : self._used]
        self._pool[left : self._used] = UNKNOWN
        self._nodes[1 : self.spare[0], 3] -= gone
        for cursor in self._cursors:
            cursor[0] -= gone
        self._used = left


def _num_groups(num_nodes: int) -> int:
    """Return how many groups so many nodes can form at most."""
    return num_nodes // 2 + 2


@dataclass(slots=True, eq=False)
class _Active:
    """A request that is being answered, and how far the trees know it."""

    lens: NDArray[np.int64]
    tree: SuffixTree
    answer_cursor: Cursor
    learn: Callable[[], int]
    draft: Callable[[], int]


class SuffixLookup(Lookup):
    """The token-level mode of `specsim.proposers.lookups.Suffix`, whose fields it is given.

    There is a local tree per request, of its prompt and answer, and one global tree of all answers,
    finished or not. Each match of the end of the text in one of them, of whatever length, yields a
    draft; the one of the largest expected accepted length is taken.

    References:
        Oliaro et al. (2024), "SuffixDecoding: Extreme Speculative Decoding for Emerging AI
        Applications". Drafts are those of Arctic Inference 0.3.0 ``SuffixDecodingCache``, down to
        the order of equally frequent tokens and to its arithmetic in single precision.
    """

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
        address_of(draft)  # compiled now, not where somebody measures how long drafting takes
        self._depth = max_depth
        self._max_cached = max_cached_requests
        self._is_tree = use_tree
        self._has_global = use_global_tree and max_cached_requests != 0
        self._has_local = use_local_tree
        self._no_tree = SuffixTree(max_depth, 0)
        self._no_cursor = np.zeros(CURSOR_FIELDS + max_depth, dtype=np.int64)
        self._no_cursor[0] = REMOVED
        self.answers = SuffixTree(max_depth, FIRST_TOKENS) if self._has_global else self._no_tree
        self.active: dict[int, _Active] = {}
        self._local_bytes = 0
        with np.errstate(over="ignore"):
            lens = np.arange(max_depth, dtype=np.float32) * np.float32(max_spec_factor)
        budgets = np.minimum(lens.astype(np.float64) + 1e-6, 2**31 - 1).astype(np.int32)
        self._most = int(budgets[-1])
        self._scratch = Scratch(
            drafts=np.empty((4, max_depth), dtype=np.int32),
            probs=np.empty((2, max_depth), dtype=np.float32),
            items=np.empty((max_depth, 3), dtype=np.int32),
            keys=np.empty(max_depth, dtype=np.float32),
            matches=np.zeros((max_depth, 2), dtype=np.int32),
            budgets=budgets,
            least=np.array([min_token_prob], dtype=np.float32),
            asked=np.array([0, use_tree], dtype=np.int64),
            found=np.zeros(2, dtype=np.int64),
            score=np.zeros(1, dtype=np.float32),
        )
        self._pointers = Pointers(self._scratch, _SCRATCH_TYPES)

    def start(self, request: int, text: Text) -> None:
        """Make a local tree of the prompt and a place for the answer; the oldest may have to go."""
        token_ids = np.require(text.token_ids, dtype=np.int32, requirements=["C"])
        tree, cursor, answer_cursor = self._no_tree, self._no_cursor, self._no_cursor
        if self._has_local:
            tree = SuffixTree(self._depth, len(token_ids))
            cursor = tree.start(len(token_ids))
            self._local_bytes += tree.memory_bytes
        if self._has_global:
            if self.answers.num_sequences == self._max_cached:
                self.answers.remove_oldest()
            answer_cursor = self.answers.start(text.output_len)
        lens = np.array([text.prompt_len, text.prompt_len], dtype=np.int64)
        arrays = RequestArrays(
            tree.pointers,
            self.answers.pointers,
            cursor,
            answer_cursor,
            token_ids,
            lens,
            self._pointers,
        )
        pointers = Pointers(arrays, _REQUEST_TYPES)
        active = _Active(lens, tree, answer_cursor, learn.bind(pointers), draft.bind(pointers))
        self.active[request] = active
        self._learn(active)

    def reveal(self, request: int, known_len: int) -> None:
        active = self.active[request]
        active.lens[1] = known_len
        self._learn(active)

    def _learn(self, active: _Active) -> None:
        while full := active.learn():
            if full == LOCAL:
                self._local_bytes += active.tree.grow()
            else:
                self.answers.grow()

    def draft(self, request: int, max_len: int) -> Draft:
        """Return the draft of the largest score; the local tree wins ties, then longer matches."""
        make, scratch = self.active[request].draft, self._scratch
        scratch.asked[0] = max_len = min(max_len, self._most)
        if max_len > scratch.drafts.shape[1]:
            scratch.drafts.resize((4, max_len), refcheck=False)
            scratch.probs.resize((2, max_len), refcheck=False)
            self._pointers.update()
        while (length := make()) == NO_ROOM:
            scratch.items.resize((2 * len(scratch.items), 3), refcheck=False)
            scratch.keys.resize(2 * len(scratch.keys), refcheck=False)
            self._pointers.update()
        row, match_len = scratch.found.tolist()
        if not match_len:
            return NO_DRAFT
        token_ids, parents = scratch.drafts[2 * row : 2 * row + 2, :length].tolist()
        probs = scratch.probs[row, :length].tolist()
        score = float(scratch.score[0])
        return Draft(token_ids, parents if self._is_tree else None, probs, score, match_len)

    def end(self, request: int) -> None:
        """Forget the local tree; the answer stays in the global one until its turn comes."""
        active = self.active.pop(request)
        if self._has_local:
            self._local_bytes -= active.tree.memory_bytes
        if self._has_global:
            self.answers.close(active.answer_cursor)

    @property
    def memory_bytes(self) -> int:
        return self.answers.memory_bytes + self._local_bytes
