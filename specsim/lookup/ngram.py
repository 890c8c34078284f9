"""Prompt lookup: what followed the last few tokens where they stood before."""

import numpy as np
from numpy.typing import NDArray

from specsim.core.request import Text
from specsim.lookup import NO_DRAFT, Draft, KnownTexts, jit


@jit
def find_ngram(
    token_ids: NDArray[np.int32], known_len: int, shortest: int, longest: int, from_end: bool
) -> int:
    """Return where the text continues after the longest n-gram that ends it and stood before.

    Args:
        known_len: Only so many tokens are looked at.
        shortest, longest: Bounds of n, inclusive.
        from_end: Which of several matches of equal length counts: the last, not the first.

    Returns:
        Place of the token after the match; -1 if there is none.

    References:
        vLLM 0.32.0 ``v1/spec_decode/ngram_proposer.py``:
        ``_find_longest_matched_ngram_and_propose_tokens`` decides on the first from a table of
        borders of the reversed text; ``v1/worker/gpu/spec_decode/ngram/speculator.py
        _ngram_scan_kernel`` on the last.
    """
    best_len, best_end = shortest - 1, -1
    last = token_ids[known_len - 1] if known_len else 0
    for count in range(1, known_len):
        end = known_len - count if from_end else count
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

    from_end = False

    def __init__(self, *, shortest: int, longest: int) -> None:
        super().__init__()
        self._bounds = shortest, longest
        # Compiled before anybody takes the time.
        find_ngram(np.zeros(1, dtype=np.int32), 1, 1, 1, self.from_end)

    def draft(self, request: int, max_len: int) -> Draft:
        token_ids, known_len = self._texts[request].token_ids, self._known_lens[request]
        start = find_ngram(token_ids, known_len, *self._bounds, self.from_end)
        if start < 0 or max_len < 1:
            return NO_DRAFT
        return Draft(token_ids[start : min(start + max_len, known_len)].tolist())


class NgramGpuLookup(NgramLookup):
    """The token-level mode of `specsim.proposers.lookups.NgramGpu`."""

    from_end = True

    def draft(self, request: int, max_len: int) -> Draft:
        found = [*super().draft(request, max_len).token_ids]
        last = int(self._texts[request].token_ids[self._known_lens[request] - 1])
        return Draft(found + [last] * (max_len - len(found)))


@jit
def _count_accepted(
    token_ids: NDArray[np.int32],
    shortest: int,
    longest: int,
    max_len: int,
    counts: NDArray[np.uint8],
) -> None:
    """Note how much of the draft after each output token the text confirms."""
    prompt_len = len(token_ids) - len(counts)
    for position in range(len(counts)):
        known_len = prompt_len + position
        start = find_ngram(token_ids, known_len, shortest, longest, True)
        count = 0
        while count < max_len and known_len + count < len(token_ids):
            place = start + count
            drafted = token_ids[place if start >= 0 and place < known_len else known_len - 1]
            if drafted != token_ids[known_len + count]:
                break
            count += 1
        counts[position] = count


def accepted_lens(text: Text, shortest: int, longest: int, max_len: int) -> bytes:
    """Return how much survives of each draft of `NgramGpuLookup`, by output position."""
    counts = np.zeros(text.output_len, dtype=np.uint8)
    _count_accepted(text.token_ids, shortest, longest, max_len, counts)
    return counts.tobytes()
