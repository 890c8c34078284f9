"""Datastore: fixed texts behind a suffix array, and what followed the last tokens in them."""

from collections.abc import Iterable
from functools import lru_cache
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import TraceError
from specsim.core.resources import locate
from specsim.lookup import NO_DRAFT, Draft, KnownTexts, jit
from specsim.workload.readers import read_trace


class Corpus(NamedTuple):
    """Texts end to end, each followed by a border, and their suffixes in order."""

    token_ids: NDArray[np.int32]
    """Shape (n,); a border is a negative number that stands nowhere else."""
    suffixes: NDArray[np.int32]
    """Shape (m,): starts of all suffixes but those that begin with a border, sorted by as many of
    their tokens as `build_corpus` was asked to compare."""

    @property
    def nbytes(self) -> int:
        """Memory, bytes: 8 per token and 4 per text."""
        return self.token_ids.nbytes + self.suffixes.nbytes


def read_corpus(path: Path, *, includes_prompts: bool, depth: int) -> Corpus:
    """Return the corpus of a token trace's answers, or texts; a TraceError if it has no token ids.

    So many tokens, `depth`, of the suffixes can be compared. The last few corpora are kept: a
    search over options asks for the same one again and again.
    """
    try:
        stat = locate(path).stat()
        version = (stat.st_mtime_ns, stat.st_size)
    except OSError:
        version = (0, 0)  # the reader says what is wrong with it
    return _read(path, version, includes_prompts, 1 << (depth - 1).bit_length())


@lru_cache(maxsize=4)
def _read(path: Path, version: tuple[int, int], includes_prompts: bool, depth: int) -> Corpus:
    trace = read_trace(path)
    needed = [trace.output_token_ids, trace.prompt_token_ids][: 1 + includes_prompts]
    if any(column is None for column in needed):
        raise TraceError(
            f"{path}: format '{trace.format}' carries no token ids to draft from; give a token "
            "trace (prompt_token_ids, generated_token_ids) as corpus"
        )
    answers = trace.output_token_ids or []
    texts = (
        (request.text.token_ids for request in trace.requests()) if includes_prompts else answers
    )
    corpus = build_corpus(texts, depth)
    if not len(corpus.suffixes):
        raise TraceError(f"{path}: no answer in it has any tokens; give another corpus")
    return corpus


def build_corpus(texts: Iterable[NDArray[np.integer]], depth: int) -> Corpus:
    """Return a corpus of texts of ids from 0; `depth` tokens of suffixes, or more, are compared."""
    pieces: list[NDArray[np.int32]] = []
    for number, text in enumerate(texts, start=1):
        pieces += [np.asarray(text, dtype=np.int32), np.array([-number], dtype=np.int32)]
    token_ids = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32)
    borders = len(pieces) // 2  # they sort first
    return Corpus(token_ids, _sorted_suffixes(token_ids, depth)[borders:].copy())


def _sorted_suffixes(token_ids: NDArray[np.int32], depth: int) -> NDArray[np.int32]:
    """Sort by prefix doubling (Manber and Myers 1990), only where order is still open.

    The rank of a suffix is the first place of its group, those that agree so far (Larsson and
    Sadakane 1999). Suffixes that agree in some tokens hold no border among them, because no two
    borders are equal; so the tokens that come next are there.
    """
    n = len(token_ids)
    order = np.arange(n, dtype=np.int32)
    rank = np.empty(n, dtype=np.int32)
    open_places = order.copy()
    key = token_ids.astype(np.int64)
    length = 1
    while len(open_places):
        by_key = np.argsort(key)
        key = key[by_key]
        order[open_places] = order[open_places][by_key]
        is_first = np.append(True, key[1:] != key[:-1])
        rank[order[open_places]] = np.maximum.accumulate(np.where(is_first, open_places, 0))
        if length >= depth:
            break
        is_alone = is_first & np.append(is_first[1:], True)
        open_places = open_places[~is_alone]
        starts = order[open_places]
        key = rank[starts].astype(np.int64) * n + rank[starts + length]
        length *= 2
    return order


@jit
def _first_place(corpus: Corpus, text: NDArray[np.int32], begin: int, end: int) -> int:
    """Return the first suffix not before the pattern; one that ends with it counts as before."""
    token_ids, suffixes = corpus.token_ids, corpus.suffixes
    low, high = 0, len(suffixes)
    while low < high:
        middle = (low + high) // 2
        place = suffixes[middle]
        at = begin
        while at < end and token_ids[place] == text[at]:
            place += 1
            at += 1
        if token_ids[place] < (text[at] if at < end else 0):
            low = middle + 1
        else:
            high = middle
    return low


@jit
def _goes_on(corpus: Corpus, place: int, text: NDArray[np.int32], begin: int, end: int) -> bool:
    """Return whether a suffix begins with the pattern and does not end with it."""
    if place >= len(corpus.suffixes):
        return False
    start = corpus.suffixes[place]
    for at in range(begin, end):
        if corpus.token_ids[start + at - begin] != text[at]:
            return False
    return bool(corpus.token_ids[start + end - begin] >= 0)


@jit
def occurrences(
    corpus: Corpus, text: NDArray[np.int32], known_len: int, match_len: int
) -> tuple[int, int]:
    """Return the range of suffixes that begin with the last `match_len` known tokens, and go on."""
    begin = known_len - match_len
    low = _first_place(corpus, text, begin, known_len)
    if not _goes_on(corpus, low, text, begin, known_len):
        return low, low
    leap = 1  # most ranges are short, and each look far away is a cache miss
    while _goes_on(corpus, low + leap, text, begin, known_len):
        leap *= 2
    inside, outside = low + leap // 2, low + leap
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if _goes_on(corpus, middle, text, begin, known_len):
            inside = middle
        else:
            outside = middle
    return low, outside


@jit
def longest_match(
    corpus: Corpus, text: NDArray[np.int32], known_len: int, max_match_len: int
) -> int:
    """Return how many of the last known tokens stand in the corpus and go on there, by halving."""
    found, limit = 0, min(max_match_len, known_len)
    while found < limit:
        match_len = (found + limit + 1) // 2
        begin = known_len - match_len
        place = _first_place(corpus, text, begin, known_len)
        if _goes_on(corpus, place, text, begin, known_len):
            found = match_len
        else:
            limit = match_len - 1
    return found


Nodes = tuple[list[int], list[int], list[int]]  # tokens, parents, occurrences


@jit
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


@jit
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


@jit
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
    """The token-level mode of `specsim.proposers.lookups.Datastore`.

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
        return self._corpus.nbytes
