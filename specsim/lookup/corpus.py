"""Corpus: fixed texts behind a suffix array, so that whatever stands in them is found quickly."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specsim.core.errors import TraceError
from specsim.core.resources import locate
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
    """Return the corpus that a token trace holds.

    The last few are kept: a search over options asks for the same one again and again.

    Args:
        includes_prompts: Whether a text is a prompt with its answer, or the answer alone.
        depth: So many tokens of the suffixes will be compared.

    Raises:
        TraceError: It cannot be read, or has no token ids.
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


@njit(cache=True)
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


@njit(cache=True)
def _goes_on(corpus: Corpus, place: int, text: NDArray[np.int32], begin: int, end: int) -> bool:
    """Return whether a suffix begins with the pattern and does not end with it."""
    if place >= len(corpus.suffixes):
        return False
    start = corpus.suffixes[place]
    for at in range(begin, end):
        if corpus.token_ids[start + at - begin] != text[at]:
            return False
    return bool(corpus.token_ids[start + end - begin] >= 0)


@njit(cache=True)
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


@njit(cache=True)
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
