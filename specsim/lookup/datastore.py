"""Datastore lookup: what followed the last tokens in a corpus."""

from heapq import heappop, heappush

import numpy as np
from numba import njit

from specsim.lookup import NO_DRAFT, Draft, KnownTexts
from specsim.lookup.corpus import Corpus, build_corpus, longest_match, occurrences

Nodes = tuple[list[int], list[int], list[int]]  # tokens, parents, occurrences


@njit(cache=True)
def _run_end(corpus: Corpus, low: int, high: int, offset: int) -> int:
    """Return the end of the suffixes with `low`'s token at `offset`: leap, then halve."""
    token_ids, suffixes = corpus.token_ids, corpus.suffixes
    token = token_ids[suffixes[low] + offset]
    leap = 1
    while low + leap < high and token_ids[suffixes[low + leap] + offset] == token:
        leap *= 2
    inside, outside = low + leap // 2, min(low + leap, high)
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if token_ids[suffixes[middle] + offset] == token:
            inside = middle
        else:
            outside = middle
    return outside


@njit(cache=True)
def _draft_chain(corpus: Corpus, low: int, high: int, match_len: int, max_len: int) -> Nodes:
    """Take the most frequent next token, again and again; the smallest one on ties."""
    tokens, parents, counts = [0] * 0, [0] * 0, [0] * 0
    for depth in range(max_len):
        offset = match_len + depth
        best_low, best_high = low, low
        while low < high:
            end = _run_end(corpus, low, high, offset)
            goes_on = corpus.token_ids[corpus.suffixes[low] + offset] >= 0
            if goes_on and end - low > best_high - best_low:
                best_low, best_high = low, end
            low = end
        if best_low == best_high:
            break
        low, high = best_low, best_high
        tokens.append(int(corpus.token_ids[corpus.suffixes[low] + offset]))
        parents.append(depth - 1)
        counts.append(high - low)
    return tokens, parents, counts


@njit(cache=True)
def _draft_tree(
    corpus: Corpus, place: tuple[int, int], match_len: int, branch_len: int, max_nodes: int
) -> Nodes:
    """Take the most frequent continuations; on ties the one that was met first."""
    tokens, parents, counts = [0] * 0, [0] * 0, [0] * 0
    met = 0
    heap = [(0, met, place[0], place[1], 0, -1)]  # the root
    while heap and len(tokens) < max_nodes:
        negative_count, _, low, high, depth, parent = heappop(heap)
        if depth:
            tokens.append(int(corpus.token_ids[corpus.suffixes[low] + match_len + depth - 1]))
            parents.append(parent)
            counts.append(-negative_count)
        node, offset = len(tokens) - 1, match_len + depth
        while depth < branch_len and low < high:
            end = _run_end(corpus, low, high, offset)
            if corpus.token_ids[corpus.suffixes[low] + offset] >= 0:
                met += 1
                heappush(heap, (low - end, met, low, end, depth + 1, node))
            low = end
    return tokens, parents, counts


class DatastoreLookup(KnownTexts):
    """The token-level mode of `specsim.proposers.datastore.Datastore`.

    No trie is built: as suffixes are sorted, each of its nodes is a range of them, and the number
    of occurrences is the length of the range.

    Args:
        corpus: Sorted by at least ``max_prefix_len + branch_len`` tokens.
    """

    def __init__(
        self,
        *,
        corpus: Corpus,
        max_prefix_len: int,
        branch_len: int,
        max_continuations: int,
        use_tree: bool,
    ) -> None:
        super().__init__()
        self._corpus = corpus
        self._max_prefix_len = max_prefix_len
        self._branch_len = branch_len
        self._max_continuations = max_continuations
        self._use_tree = use_tree
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile everything before anybody takes the time."""
        text = np.zeros(2, dtype=np.int32)
        tiny = build_corpus([text], 1)
        longest_match(tiny, text, 1, 1)
        low, high = occurrences(tiny, text, 1, 1)
        _draft_chain(tiny, low, high, 1, 1)
        _draft_tree(tiny, (low, high), 1, 1, 1)

    def draft(self, request: int, max_len: int) -> Draft:
        """Return the most frequent continuation of the longest match, or a tree of several."""
        if max_len < 1:
            return NO_DRAFT
        text, known_len = self._texts[request].token_ids, self._known_lens[request]
        match_len = longest_match(self._corpus, text, known_len, self._max_prefix_len)
        if not match_len:
            return NO_DRAFT
        low, high = occurrences(self._corpus, text, known_len, match_len)
        high = min(high, low + self._max_continuations)
        if self._use_tree:
            tokens, parents, counts = _draft_tree(
                self._corpus, (low, high), match_len, self._branch_len, max_len
            )
        else:
            longest = min(max_len, self._branch_len)
            tokens, parents, counts = _draft_chain(self._corpus, low, high, match_len, longest)
        probs = [count / (high - low) for count in counts]
        return Draft(tokens, parents if self._use_tree else None, probs, sum(probs), match_len)

    @property
    def memory_bytes(self) -> int:
        """That of the corpus."""
        return self._corpus.nbytes
