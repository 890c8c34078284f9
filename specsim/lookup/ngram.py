"""Prompt lookup: what followed the last few tokens where they stood before."""

import numpy as np
from numpy.typing import NDArray

from specsim.lookup import NO_DRAFT, Draft, KnownTexts, jit


@jit
def find_ngram(token_ids: NDArray[np.int32], known_len: int, shortest: int, longest: int) -> int:
    """Return where the text continues after the longest n-gram that ends it and stood before.

    Args:
        known_len: Only so many tokens are looked at.
        shortest, longest: Bounds of n, inclusive.

    Returns:
        Place of the token after the match, the earliest one among matches of equal length; -1 if
        there is none.

    References:
        vLLM 0.32.0 ``v1/spec_decode/ngram_proposer.py``:
        ``_find_longest_matched_ngram_and_propose_tokens`` decides the same from a table of borders
        of the reversed text.
    """
    best_len, best_end = shortest - 1, -1
    last = token_ids[known_len - 1] if known_len else 0
    for end in range(1, known_len):
        if token_ids[end - 1] != last:
            continue
        match_len = 1
        limit = min(longest, end)
        while match_len < limit and (
            token_ids[end - 1 - match_len] == token_ids[known_len - 1 - match_len]
        ):
            match_len += 1
        if match_len > best_len:
            best_len, best_end = match_len, end
            if match_len == longest:
                break
    return best_end


class NgramLookup(KnownTexts):
    """The token-level mode of `specsim.proposers.lookups.Ngram`.

    It keeps no index: like vLLM it scans the known text, which takes about a nanosecond per token.
    """

    def __init__(self, *, shortest: int, longest: int) -> None:
        super().__init__()
        self._shortest = shortest
        self._longest = longest
        find_ngram(np.zeros(1, dtype=np.int32), 1, 1, 1)  # compiled before anybody takes the time

    def draft(self, request: int, max_len: int) -> Draft:
        token_ids, known_len = self._texts[request].token_ids, self._known_lens[request]
        start = find_ngram(token_ids, known_len, self._shortest, self._longest)
        if start < 0 or max_len < 1:
            return NO_DRAFT
        return Draft(token_ids[start : min(start + max_len, known_len)].tolist())
