"""Suffix decoding as the drafter."""

from typing import ClassVar, Literal, final

from specsim.proposers.base import Proposer

__all__ = ["Suffix"]


@final
class Suffix(Proposer):
    """Drafts from suffix trees of this and earlier outputs (Oliaro et al. 2024, "SuffixDecoding").

    Here the method is statistical: it always offers a full draft, and the acceptance model says
    how much of it survives. It costs host time only, reserves no KV slots, and vLLM does not
    schedule asynchronously with it.
    """

    method: Literal["suffix"] = "suffix"
    supports_async: ClassVar[bool] = False
    writes_lookahead: ClassVar[bool] = False
