"""Suffix decoding as the drafter."""

from collections.abc import Sequence
from typing import ClassVar, Literal, final

import numpy as np
from pydantic import Field

from specsim.proposers.base import Proposer, split_rows
from specsim.request import Request
from specsim.rng import Luck

__all__ = ["Suffix"]


@final
class Suffix(Proposer):
    """Drafts from suffix trees of this and earlier outputs (Oliaro et al. 2024, "SuffixDecoding").

    Here the method is statistical: the length of the pattern that the tree recognises is
    geometric with mean `mean_match_len`, independently at every output position, and a draft is at
    most `suffix_decoding_max_spec_factor` times as long (there, MAX_SPEC = factor * match length).
    The acceptance model says how much of it survives. It costs host time only, reserves no KV
    slots, and vLLM does not schedule asynchronously with it.
    """

    method: Literal["suffix"] = "suffix"
    mean_match_len: float | None = Field(default=None, ge=0)
    """Mean length of the recognised pattern, tokens; by default long enough for any draft."""
    suffix_decoding_max_spec_factor: float = Field(default=1.0, gt=0)
    """Draft tokens per token of the pattern."""
    own_fields: ClassVar[frozenset[str]] = Proposer.own_fields | {"mean_match_len"}
    supports_async: ClassVar[bool] = False
    writes_lookahead: ClassVar[bool] = False
    is_model: ClassVar[bool] = False
    has_prefill: ClassVar[bool] = False

    def start(
        self, requests: Sequence[Request], luck: Luck, max_draft_len: int
    ) -> list[bytes] | None:
        """Return the longest draft, by request and output position; None if there is no limit."""
        if self.mean_match_len is None:
            return None
        counts = [request.output_len + 1 for request in requests]
        uniforms = luck.uniforms([request.index for request in requests], counts)
        longer = self.mean_match_len / (1.0 + self.mean_match_len)  # P(the match goes on)
        match_lens = np.floor(np.log1p(-uniforms) / np.log(longer)) if longer else 0.0 * uniforms
        offered = np.minimum(self.suffix_decoding_max_spec_factor * match_lens, max_draft_len)
        return split_rows(offered.astype(np.uint8).tobytes(), counts)

    def offered_len(self, request: int, position: int, draft_len: int, memory: list[bytes]) -> int:
        """Return what the recognised pattern is good for."""
        return min(draft_len, memory[request][position])
