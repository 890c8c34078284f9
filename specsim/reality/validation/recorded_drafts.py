"""What was drafted in a measured run, and accepted of it, as records of its requests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.base import MAX_DRAFT_LEN, run_lengths
from specsim.core.request import Request
from specsim.proposers import PROPOSERS
from specsim.reality.validation.run_folder import RunFolder

RECORD = "run"
"""Name of the record that `replayed` adds to each request; acceptance ``recorded`` reads it."""
_UNKNOWN = -1
Entries = Sequence[tuple[int, int, int]]


def replayed(
    requests: list[Request], run: RunFolder, config: dict[str, Any], notes: list[str]
) -> list[Request]:
    """Return the requests of a measured run with what was drafted and accepted of each.

    What the run says of a draft made at one position it says of later ones as well: as far as it
    was accepted, later drafts up to there would have been, and the token at which it failed fails
    for them too. Of other tokens nothing is known, so they are accepted at random, as often as
    those of the request are that are known. Of a method that may find no draft, the positions at
    which it found one, and how long, are those of the run.

    Args:
        config: From `speculative_config`.
        notes: Told how much is not known.
    """
    drafts_always = PROPOSERS.find(config["method"]).is_model
    longest = int(config.get("num_speculative_tokens") or MAX_DRAFT_LEN)
    fates = [
        _token_fates(entries, request.output_len)
        for entries, request in zip(run.accepted, requests, strict=True)
    ]
    known = np.concatenate([fate[fate != _UNKNOWN] for fate in fates])
    overall = float(known.mean()) if len(known) else 0.0
    num_tokens = sum(len(fate) for fate in fates)
    notes.append(
        f"acceptance is the run's, by output position; of {1 - len(known) / num_tokens:.1%} of the "
        "tokens it says nothing: they are accepted as often as the others of their request"
    )
    return [
        replace(
            request,
            recorded_lens={RECORD: _survival_lens(fate, entries, overall, request.index)},
            offered_lens=None if drafts_always else _offers(entries, request.output_len, longest),
        )
        for request, fate, entries in zip(requests, fates, run.accepted, strict=True)
    ]


def _token_fates(entries: Entries, output_len: int) -> NDArray[np.int8]:
    """Return, by output position, whether a draft of that token is accepted: 1, 0 or unknown."""
    fates = np.full(output_len, _UNKNOWN, dtype=np.int8)
    for position, draft_len, accepted_len in entries:
        end = position + accepted_len
        fates[position:end] = 1
        if accepted_len < draft_len and end < output_len:
            fates[end] = 0
    return fates


def _survival_lens(fates: NDArray[np.int8], entries: Entries, overall: float, index: int) -> bytes:
    is_known = fates != _UNKNOWN
    rate = float(fates[is_known].mean()) if is_known.any() else overall
    drawn = np.random.default_rng(index).random(len(fates)) < rate
    lens = run_lengths(np.where(is_known, fates == 1, drawn), MAX_DRAFT_LEN)
    for position, draft_len, accepted_len in entries:
        # Of the drafts that were really made, what really came of them, whatever others say.
        if position < len(lens) and (accepted_len < draft_len or lens[position] < accepted_len):
            lens[position] = accepted_len
    return lens.tobytes()


def _offers(entries: Entries, output_len: int, longest: int) -> bytes:
    """Return how long a draft was found at each position; where the run never was, any length."""
    offers = bytearray([MAX_DRAFT_LEN]) * (output_len + 1)
    found = {position: (draft_len, accepted_len) for position, draft_len, accepted_len in entries}
    position = 1  # the first token comes without a draft
    while position < output_len:
        draft_len, accepted_len = found.get(position, (0, 0))
        if draft_len < longest:
            offers[position] = draft_len
        position += accepted_len + 1
    return bytes(offers)
