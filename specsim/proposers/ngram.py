"""Prompt lookup as the drafter."""

from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from specsim.lookup import Lookup, load
from specsim.proposers.base import LookupProposer


@final
class Ngram(LookupProposer):
    """Drafts what followed the last n tokens where they stood before (Saxena 2023, prompt lookup).

    On token ids (acceptance ``token_match``) it is vLLM's: the longest n-gram within the bounds,
    the earliest one on ties. Without them it finds a match of full length with `match_probability`,
    independently at every output position, and the acceptance model says how much of it survives.
    """

    method: Literal["ngram"] = "ngram"
    prompt_lookup_max: int = Field(default=5, ge=1, lt=2**31)
    """Longest n-gram to match, tokens."""
    prompt_lookup_min: int = Field(default=5, ge=1, lt=2**31)
    """Shortest n-gram to match, tokens."""
    match_probability: float = Field(default=1.0, ge=0, le=1)
    """P(there is a match to draft from)."""
    statistical_fields = frozenset({"match_probability"})
    has_confidence = False
    drafts_first_token = False

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Take one bound for both, as vLLM does (``config/speculative.py``)."""
        bounds = ("prompt_lookup_min", "prompt_lookup_max")
        given = [data[name] for name in bounds if name in data] if isinstance(data, dict) else []
        return {**dict.fromkeys(bounds, given[0]), **data} if len(given) == 1 else data

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) must not exceed "
                f"prompt_lookup_max ({self.prompt_lookup_max})"
            )
        return self

    def make_lookup(self) -> Lookup:
        """Return vLLM's search, which keeps nothing."""
        return load("ngram", "NgramLookup")(
            shortest=self.prompt_lookup_min, longest=self.prompt_lookup_max
        )

    @property
    def always_finds(self) -> bool:
        """Whether there always is a match."""
        return self.match_probability == 1.0

    def found_lens(self, uniforms: NDArray[np.float64], max_draft_len: int) -> NDArray[np.int64]:
        """Return a full draft or none."""
        return np.where(uniforms < self.match_probability, max_draft_len, 0)
